package placement_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestARegistryThatIsDownHoldsItsPodsUntilItIsUp(t *testing.T) {
	t.Parallel()
	k, f := test(t)
	if err := down.Down(); err != nil {
		t.Fatal(err)
	}
	warm(t, k, image(good, "two"))
	for i, name := range []string{"arm", "z", "amd", "power", "multi"} {
		k.CreatePod(pod(fmt.Sprintf("alone-%d", i), "", cold(down, 3, name)))
		k.CreatePod(pod(fmt.Sprintf("beside-%d", i), "", image(good, "multi"), cold(down, 3, name)))
	}
	f.wait("the pods are gated", 10, gatedFirst)
	note := event(k, "alone-0", "ImagesUnknown") // after five seconds
	for _, words := range []string{cold(down, 3, "arm"), "unreachable"} {
		if !strings.Contains(note, words) {
			t.Errorf("the event does not say %q: %s", words, note)
		}
	}
	for name, l := range f.all() {
		if freed(l) {
			t.Errorf("pod %s was released while its registry was down", name)
		}
	}
	if err := down.Up(); err != nil {
		t.Fatal(err)
	}
	f.wait("the pods are bound", 10, bound)
	if gated := f.check(); gated != 10 {
		t.Errorf("%d pods were gated", gated)
	}
	if err := down.Down(); err != nil {
		t.Fatal(err)
	}
}

// A registry that accepts and stalls must not stop the pods of others.
func TestARegistryThatStallsHoldsItsOwnPodsAlone(t *testing.T) {
	t.Parallel()
	k, f := test(t, ownWebhooks+"=none")
	const stalled = 40
	for i := range stalled {
		k.CreatePod(pod(fmt.Sprintf("stalled-%d", i), gatedSpec, image(mute, "arm")))
	}
	began := time.Now()
	for i := range 20 {
		k.CreatePod(pod(fmt.Sprintf("other-%d", i), gatedSpec, image(good, []string{"arm", "z", "multi", "power"}[i%4])))
	}
	f.wait("the others are bound", stalled+20, func(l life) bool { return strings.HasPrefix(l.last.Name, "stalled-") || bound(l) })
	t.Logf("20 pods beside %d stalled ones were placed within %s", stalled, time.Since(began).Round(time.Millisecond))
	for name, l := range f.all() {
		if strings.HasPrefix(name, "stalled-") && freed(l) {
			t.Errorf("pod %s was released", name)
		}
	}
	if gated := f.check(); gated != stalled+20 {
		t.Errorf("%d pods were gated", gated)
	}
}

func TestABadImageIsReleasedAtOnce(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]struct{ image, class string }{
		"malformed": {"UPPER/Case:1", "malformed"},
		"blocked":   {"127.0.0.1:1/x/y:1", "blocked"},
	} {
		t.Run(name, func(t *testing.T) {
			k, f := test(t, ownWebhooks+"=none")
			k.CreatePod(pod("bad", gatedSpec, bad.image, image(mute, "arm")))
			f.one("is released", "bad", freed)
			if got := required(f.of("bad").last); got != nil {
				t.Errorf("it requires %v", got)
			}
			note := event(k, "bad", "ImageUnusable")
			if !strings.Contains(note, bad.class) || !strings.Contains(note, bad.image) {
				t.Errorf("the event says %s", note)
			}
			if w := f.writes(); w.done["bad"] != 1 || len(w.refused)+len(w.others) > 0 {
				t.Errorf("we wrote %+v", w)
			}
			// With admission it is never gated.
			k, f = test(t)
			p := k.CreatePod(pod("bad", "", bad.image))
			if isGated(p) || required(p) != nil {
				t.Errorf("gates %v, requires %v", p.Spec.SchedulingGates, required(p))
			}
			f.run("bad")
		})
	}
}

func TestAMissingImageIsReleasedAfterOneRetry(t *testing.T) {
	t.Parallel()
	k, f := test(t)
	before := time.Now()
	k.CreatePod(pod("missing", "", good.Host+"/shop/missing:1"))
	f.one("is released", "missing", freed)
	l := f.of("missing")
	if !l.gated {
		t.Error("it was not gated")
	}
	if held := l.freed.Sub(before); held < time.Second || held > 10*time.Second {
		t.Errorf("it was held for %s", held)
	} else {
		t.Logf("held for %s", held.Round(10*time.Millisecond))
	}
	if note := event(k, "missing", "ImageUnusable"); !strings.Contains(note, "not-found") || !strings.Contains(note, "/shop/missing:1") {
		t.Errorf("the event says %s", note)
	}
	if w := f.writes(); w.done["missing"] != 1 {
		t.Errorf("we wrote %+v", w)
	}
}

func TestAtTheDeadlineAPodIsLetGo(t *testing.T) {
	t.Parallel()
	const deadline = 4 * time.Second
	for name, tc := range map[string]struct {
		annotations []string
		reason      string
		want        []string
		node        string
	}{
		"unchanged":       {nil, "DeadlineExceeded", nil, ""},
		"to the fallback": {[]string{"placement.archkeeper.io/fallback-architecture=s390x"}, "FallbackArchitecture", []string{"kubernetes.io/arch In [s390x]"}, "s390x-0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, f := test(t, append(tc.annotations, "placement.archkeeper.io/hold-deadline="+deadline.String())...)
			created := k.CreatePod(pod("p", "", image(away, "arm")))
			p := f.run("p")
			wantRequired(t, p, tc.want...)
			if tc.node != "" && p.Spec.NodeName != tc.node {
				t.Errorf("it is on %s", p.Spec.NodeName)
			}
			if held := f.of("p").freed.Sub(created.CreationTimestamp.Time); held < deadline {
				t.Errorf("it was held for %s", held)
			}
			if note := event(k, "p", tc.reason); !strings.Contains(note, image(away, "arm")) {
				t.Errorf("the event says %s", note)
			}
			if w := f.writes(); w.done["p"] != 1 {
				t.Errorf("we wrote %+v", w)
			}
		})
	}
}

func TestImagesThatShareNothingLeaveThePodPending(t *testing.T) {
	t.Parallel()
	k, f := test(t)
	warm(t, k, image(good, "amd"), image(good, "arm"))
	k.CreatePod(pod("known", "", image(good, "amd"), image(good, "arm")))
	k.CreatePod(pod("unknown", "", image(good, "amd"), cold(slow, 4, "arm")))
	for _, name := range []string{"known", "unknown"} {
		f.one("is unschedulable", name, func(l life) bool {
			for _, c := range l.last.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
					return strings.Contains(c.Message, "affinity")
				}
			}
			return false
		})
		wantRequired(t, f.of(name).last, "archkeeper.io/no-common-architecture Exists")
	}
	if note := event(k, "unknown", "NoCommonArchitecture"); !strings.Contains(note, "amd64") || !strings.Contains(note, "arm64") {
		t.Errorf("the event says %s", note)
	}
	if f.of("known").gated || !f.of("unknown").gated {
		t.Errorf("gated: known %t, unknown %t", f.of("known").gated, f.of("unknown").gated)
	}
	f.check()
}
