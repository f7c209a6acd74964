package placement_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Somebody else writes to a gated pod while its image is being asked for, again and
// again: our patch was made from what was there before, is refused, and is made anew.
// Nothing of the other's is lost.
func TestAnotherWriterLosesNothing(t *testing.T) {
	t.Parallel()
	k, f := test(t, ownWebhooks+"=none")
	before := slow.Requests()
	k.CreatePod(pod("p", gatedSpec, cold(slow, 10, "arm")))
	k.Eventually("the image is being asked for", func(context.Context) error {
		if slow.Requests() == before {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	written := 0
	for ; !freed(f.of("p")) && written < 200; written++ {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/%d":"theirs"},"labels":{"example.com/%d":"theirs"}}}`, written, written)
		if _, err := cluster.Client.CoreV1().Pods(k.Namespace).Patch(t.Context(), "p", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // slower than a decision, faster than the registry
	}
	p := f.run("p")
	wantRequired(t, p, "kubernetes.io/arch In [arm64]")
	if !strings.HasPrefix(p.Spec.NodeName, "arm64-") {
		t.Errorf("the pod is on %s", p.Spec.NodeName)
	}
	for i := range written {
		key := fmt.Sprintf("example.com/%d", i)
		if p.Labels[key] != "theirs" || p.Annotations[key] != "theirs" {
			t.Errorf("of %d writes of another's, number %d is lost: labels %v, annotations %v", written, i, p.Labels, p.Annotations)
		}
	}
	if p.Annotations["archkeeper.io/architectures"] != "arm64" || p.Labels["architecture.archkeeper.io/arm64"] != "supported" {
		t.Errorf("our marks are %v and %v", p.Labels, p.Annotations)
	}
	if w := f.writes(); w.stale == 0 || w.done["p"] != 1 {
		t.Errorf("%d patches of ours were refused as stale, %d taken; %d writes of another's", w.stale, w.done["p"], written)
	}
	f.check()
}
