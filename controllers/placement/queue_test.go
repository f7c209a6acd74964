package placement

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestWorkersEndWhateverWaits ends queues while items arrive, become ready and are
// worked on, as a burst does to a leader that is told to end.
func TestWorkersEndWhateverWaits(t *testing.T) {
	for round := range 200 {
		done := make(chan struct{}, 1000)
		queue := newQueue(fmt.Sprint("round-", round), workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Microsecond, time.Millisecond))
		var workers sync.WaitGroup
		for range DefaultWorkers {
			workers.Go(func() {
				for {
					item, shutdown := queue.Get()
					if shutdown {
						return
					}
					queue.Done(item)
					queue.AddAfter(item, time.Microsecond)
					select {
					case done <- struct{}{}:
					default:
					}
				}
			})
		}
		for i := range 10 { // fewer than workers, some of which wait
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(i)}})
		}
		for range 200 {
			<-done
		}
		queue.ShutDown()
		ended := make(chan struct{})
		go func() {
			workers.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("round %d: workers wait for ever", round)
		}
	}
}
