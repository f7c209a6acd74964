package importmode

import (
	"fmt"
	"testing"
	"time"
)

func TestDecide(t *testing.T) {
	multi := Release{Image: "r@sha256:1", Architecture: "Multi", Completed: true, Latest: "Completed"}
	single := Release{Image: "r@sha256:1", Completed: true, Latest: "Completed"}
	upgrading := Release{Image: "r@sha256:2", Completed: true, Latest: "Partial"}
	with := func(r Release, edit func(*Release)) *Release { edit(&r); return &r }

	// want gives the decision for each current value of the status.
	type want struct {
		mode     Mode
		delay    time.Duration
		held     bool
		degraded bool
		reason   string
	}
	always := func(w want) map[Mode]want {
		return map[Mode]want{Unset: w, Legacy: w, PreserveOriginal: w}
	}
	demoted := func(reason string) map[Mode]want {
		return map[Mode]want{
			Unset:            {mode: Legacy, reason: reason},
			Legacy:           {mode: Legacy, reason: reason},
			PreserveOriginal: {mode: Legacy, delay: 2 * time.Minute, reason: reason},
		}
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  map[Mode]want
	}{
		"an override is taken without a ClusterVersion": {
			Facts{Spec: PreserveOriginal}, always(want{mode: PreserveOriginal, reason: "SpecOverride"}),
		},
		"an override of Legacy wins over a Multi payload, at once": {
			Facts{Spec: Legacy, Release: &multi}, always(want{mode: Legacy, reason: "SpecOverride"}),
		},
		"an override wins while an upgrade is under way": {
			Facts{Spec: PreserveOriginal, Release: &upgrading}, always(want{mode: PreserveOriginal, reason: "SpecOverride"}),
		},
		"an override that is no known mode holds": {
			Facts{Spec: "Sideways", Release: &multi}, always(want{held: true, degraded: true, reason: "UnknownValue"}),
		},
		"no ClusterVersion holds": {
			Facts{}, always(want{held: true, degraded: true, reason: "ClusterVersionMissing"}),
		},
		"a ClusterVersion without payload image holds": {
			Facts{Release: with(multi, func(r *Release) { r.Image = "" })}, always(want{held: true, degraded: true, reason: "ClusterVersionMissing"}),
		},
		"no ClusterVersion, configured to take Legacy": {
			Facts{WhenMissing: Legacy}, demoted("ClusterVersionMissing"),
		},
		"a Multi payload": {
			Facts{Release: &multi}, always(want{mode: PreserveOriginal, reason: "MultiArchPayload"}),
		},
		"a Multi payload whose upgrade is under way": {
			Facts{Release: with(multi, func(r *Release) { r.Latest = "Partial" })}, always(want{mode: PreserveOriginal, reason: "MultiArchPayload"}),
		},
		"a Multi payload at first install": {
			Facts{Release: with(multi, func(r *Release) { r.Latest, r.Completed = "Partial", false })}, always(want{mode: PreserveOriginal, reason: "MultiArchPayload"}),
		},
		"an architecture that this version does not know holds": {
			Facts{Release: with(multi, func(r *Release) { r.Architecture = "Sparse" })}, always(want{held: true, degraded: true, reason: "UnknownValue"}),
		},
		"first install of a single-arch payload is Legacy at once": {
			Facts{Release: with(single, func(r *Release) { r.Latest, r.Completed = "Partial", false })}, always(want{mode: Legacy, reason: "FirstInstall"}),
		},
		"first install without any history is Legacy at once": {
			Facts{Release: with(single, func(r *Release) { r.Latest, r.Completed = "", false })}, always(want{mode: Legacy, reason: "FirstInstall"}),
		},
		"a settled single-arch payload demotes only after the delay": {
			Facts{Release: &single}, demoted("SingleArchPayload"),
		},
		"an upgrade that hides the architecture holds": {
			Facts{Release: &upgrading}, always(want{held: true, reason: "UpgradeInProgress"}),
		},
		"an upgrade that hides the architecture restores what was cleared": {
			Facts{Release: &upgrading, Last: PreserveOriginal}, map[Mode]want{
				Unset:            {mode: PreserveOriginal, held: true, reason: "UpgradeInProgress"},
				Legacy:           {held: true, reason: "UpgradeInProgress"},
				PreserveOriginal: {held: true, reason: "UpgradeInProgress"},
			},
		},
	} {
		for _, status := range []Mode{Unset, Legacy, PreserveOriginal} {
			t.Run(fmt.Sprintf("%s, status %q", name, status), func(t *testing.T) {
				f := tc.facts
				f.Status = status
				d := Decide(f)
				got := want{d.Want, d.Delay, d.Held, d.Degraded, d.Reason}
				if got != tc.want[status] {
					t.Errorf("got %+v, want %+v", got, tc.want[status])
				}
				if d.Message == "" {
					t.Error("no message for a human")
				}
			})
		}
	}
}

// Unset is never written, whatever the facts.
func TestDecideNeverWantsToClear(t *testing.T) {
	modes := []Mode{Unset, Legacy, PreserveOriginal, "Sideways"}
	for _, spec := range modes {
		for _, status := range modes[:3] {
			for _, last := range modes[:3] {
				for _, arch := range []string{"", "Multi", "Sparse"} {
					for _, latest := range []string{"", "Partial", "Completed"} {
						for _, completed := range []bool{false, true} {
							d := Decide(Facts{Spec: spec, Status: status, Last: last,
								Release: &Release{Image: "i", Architecture: arch, Latest: latest, Completed: completed}})
							if !d.Settled(status) && d.Want == Unset {
								t.Fatalf("spec %q status %q: wants to clear the field", spec, status)
							}
							if d.Held && status != Unset && d.Want != Unset {
								t.Fatalf("spec %q status %q: a hold changes a value", spec, status)
							}
						}
					}
				}
			}
		}
	}
}
