package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/controllers/config"
)

const head = "apiVersion: archkeeper.io/v1alpha1\nkind: Configuration\n"

func TestParse(t *testing.T) {
	t.Run("a document without placement has the defaults", func(t *testing.T) {
		c, err := config.Parse([]byte(head))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(config.Default(), c); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("the documented document has the defaults and a preference", func(t *testing.T) {
		c, err := config.Parse([]byte(head + `
placement:
  mode: enforce                    # or observe
  gate: archkeeper.io/architecture
  holdDeadline: 2m                 # from the pod's creation
  fallbackArchitecture: ""         # applied at the deadline
  schedulableArchitectures: []     # empty: all
  userArchitecture: preserve       # or tighten
  constrainAlways: true
  preferred: [{architecture: arm64, weight: 70}]
  tolerateArchitectureTaints: false
  pin: false
  excludedNamespaces: ["kube-*", "openshift-*", "hypershift-*"]
  namespaceSelector: {}
  podSelector: {}
`))
		if err != nil {
			t.Fatal(err)
		}
		want := config.Default()
		want.Placement.Preferred = []config.Preference{{Architecture: "arm64", Weight: 70}}
		if diff := cmp.Diff(want, c); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("an empty list of namespaces excludes none", func(t *testing.T) {
		c, err := config.Parse([]byte(head + "placement: {excludedNamespaces: []}"))
		if err != nil || len(c.Placement.ExcludedNamespaces) != 0 {
			t.Errorf("%v, %v", c.Placement.ExcludedNamespaces, err)
		}
	})
}

// The policy counts lists: null is none of them.
func TestJSONHasNoNullLists(t *testing.T) {
	c, err := config.Parse([]byte(head + "placement: {preferred: null, schedulableArchitectures: null, excludedNamespaces: null}"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.Placement.JSON()
	if err != nil || strings.Contains(string(raw), "null") {
		t.Errorf("%s, %v", raw, err)
	}
}

func TestParseRefusesWithThePath(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"an unknown field":                  {"placement: {modus: observe}", "placement.modus"},
		"an unknown field in a list":        {"placement: {preferred: [{arch: arm64, weight: 1}]}", "placement.preferred[0].arch"},
		"an unknown field at the top":       {"placements: {}", "placements"},
		"a field in the wrong case":         {"placement: {Mode: observe}", "placement.Mode"},
		"a field given twice":               {"placement: {mode: observe, mode: enforce}", "mode"},
		"a wrong type":                      {"placement: {constrainAlways: \"yes\"}", "placement.constrainAlways"},
		"a mode that is none":               {"placement: {mode: watch}", "placement.mode"},
		"a gate that is no name":            {"placement: {gate: 'a b'}", "placement.gate"},
		"an empty gate":                     {"placement: {gate: ''}", "placement.gate"},
		"a deadline that is no duration":    {"placement: {holdDeadline: soon}", "placement.holdDeadline"},
		"a deadline that is a number":       {"placement: {holdDeadline: 120}", "placement.holdDeadline"},
		"a deadline of nothing":             {"placement: {holdDeadline: 0s}", "placement.holdDeadline"},
		"a deadline beyond a day":           {"placement: {holdDeadline: 25h}", "placement.holdDeadline"},
		"a fallback that is no label value": {"placement: {fallbackArchitecture: 'a,b'}", "placement.fallbackArchitecture"},
		"a fallback that is not allowed":    {"placement: {fallbackArchitecture: amd64, schedulableArchitectures: [arm64]}", "placement.fallbackArchitecture"},
		"an empty architecture":             {"placement: {schedulableArchitectures: [amd64, '']}", "placement.schedulableArchitectures[1]"},
		"an architecture twice":             {"placement: {schedulableArchitectures: [amd64, amd64]}", "placement.schedulableArchitectures[1]"},
		"a user architecture that is none":  {"placement: {userArchitecture: loosen}", "placement.userArchitecture"},
		"a weight of 0":                     {"placement: {preferred: [{architecture: arm64, weight: 0}]}", "placement.preferred[0].weight"},
		"a weight of 101":                   {"placement: {preferred: [{architecture: arm64, weight: 101}]}", "placement.preferred[0].weight"},
		"a weight without architecture":     {"placement: {preferred: [{weight: 1}]}", "placement.preferred[0].architecture"},
		"two weights of one architecture":   {"placement: {preferred: [{architecture: a, weight: 1}, {architecture: a, weight: 2}]}", "placement.preferred[1].architecture"},
		"a namespace that is none":          {"placement: {excludedNamespaces: ['Kube']}", "placement.excludedNamespaces[0]"},
		"a selector that is none":           {"placement: {podSelector: {matchExpressions: [{key: a, operator: In}]}}", "placement.podSelector.matchExpressions[0].values"},
		"a null list entry":                 {"placement: {preferred: [null]}", "placement.preferred[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(head + tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v does not name %s", err, tc.want)
			}
		})
	}
	for name, tc := range map[string]struct{ text, want string }{
		"another kind":        {"apiVersion: archkeeper.io/v1alpha1\nkind: Pod", "kind"},
		"another version":     {"apiVersion: archkeeper.io/v2\nkind: Configuration", "apiVersion"},
		"nothing":             {"", "empty"},
		"a second document":   {head + "placement: {}\n---\nkind: Pod", "several documents"},
		"a key given twice":   {head + "placement:\n  mode: enforce\n  mode: observe", `line 5: key "mode"`},
		"something else":      {"[]", "configuration"},
		"no YAML":             {"a: [", "configuration"},
		"a very long one":     {strings.Repeat("#", config.MaxSize+1), "larger than"},
		"a list of placement": {head + "placement: []", "placement"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v does not say %s", err, tc.want)
			}
		})
	}
}

func TestForNamespace(t *testing.T) {
	base := config.Default().Placement
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        func(*config.Placement)
		err         string
	}{
		"nothing said":           {nil, func(*config.Placement) {}, ""},
		"observe":                {map[string]string{config.AnnotationMode: "observe"}, func(p *config.Placement) { p.Mode = config.ModeObserve }, ""},
		"a mode that is none":    {map[string]string{config.AnnotationMode: "off"}, func(*config.Placement) {}, config.AnnotationMode},
		"a shorter deadline":     {map[string]string{config.AnnotationHoldDeadline: "10s"}, func(p *config.Placement) { p.HoldDeadline = config.Duration(10 * time.Second) }, ""},
		"a longer deadline":      {map[string]string{config.AnnotationHoldDeadline: "1h"}, func(*config.Placement) {}, config.AnnotationHoldDeadline},
		"a fallback":             {map[string]string{config.AnnotationFallbackArchitecture: "arm64"}, func(p *config.Placement) { p.FallbackArchitecture = "arm64" }, ""},
		"a fallback that is bad": {map[string]string{config.AnnotationFallbackArchitecture: "a b"}, func(*config.Placement) {}, config.AnnotationFallbackArchitecture},
		"tighten":                {map[string]string{config.AnnotationUserArchitecture: "tighten"}, func(p *config.Placement) { p.UserArchitecture = config.UserArchitectureTighten }, ""},
		"a choice that is none":  {map[string]string{config.AnnotationUserArchitecture: "x"}, func(*config.Placement) {}, config.AnnotationUserArchitecture},
		"one bad, one good": {
			map[string]string{config.AnnotationUserArchitecture: "x", config.AnnotationMode: "observe"},
			func(p *config.Placement) { p.Mode = config.ModeObserve }, config.AnnotationUserArchitecture,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := base.ForNamespace(tc.annotations)
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			want := base
			tc.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An admin who locks the mode cannot be overruled: a namespace may only ask for less.
func TestANamespaceCannotEnforceWhatIsOnlyObserved(t *testing.T) {
	p := config.Default().Placement
	p.Mode = config.ModeObserve
	got, err := p.ForNamespace(map[string]string{config.AnnotationMode: "enforce"})
	if err == nil || got.Mode != config.ModeObserve {
		t.Errorf("mode %s, error %v", got.Mode, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "placement: {holdDeadline: 2m, preferred: [{architecture: arm64, weight: 70}]}"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, document []byte) {
		c, err := config.Parse(document)
		if err != nil {
			return
		}
		raw, err := c.Placement.JSON()
		if err != nil || len(raw) == 0 {
			t.Errorf("%v does not encode: %v", c, err)
		}
	})
}
