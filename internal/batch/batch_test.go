package batch_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/archkeeper/archkeeper/internal/batch"
	"github.com/archkeeper/archkeeper/provider"
)

// inspector answers with the image's own name; "slow" waits for its deadline.
type inspector struct {
	mu       sync.Mutex
	asked    map[string]int
	now      int
	greatest int
}

func (i *inspector) Inspect(ctx context.Context, queries []provider.Query) []provider.Answer {
	i.mu.Lock()
	i.asked[queries[0].Image]++
	i.now++
	i.greatest = max(i.greatest, i.now)
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		i.now--
		i.mu.Unlock()
	}()
	answer := provider.Answer{Image: queries[0].Image}
	if queries[0].Image == "slow" {
		<-ctx.Done()
		answer.Err = provider.Errorf(provider.ClassTimeout, "%w", ctx.Err())
		return []provider.Answer{answer}
	}
	time.Sleep(time.Second)
	return []provider.Answer{answer}
}

func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		images := []string{"a", "slow", "b", "a"}
		for i := range 2 * batch.AtOnce {
			images = append(images, fmt.Sprint(i))
		}
		asked := &inspector{asked: map[string]int{}}
		var steps atomic.Int32
		answers := batch.Inspect(t.Context(), asked, images, 10*time.Second, func() { steps.Add(1) })
		for i, answer := range answers {
			if answer.Image != images[i] || (answer.Err != nil) != (images[i] == "slow") {
				t.Errorf("%s: %+v", images[i], answer)
			}
		}
		if asked.asked["a"] != 1 || len(asked.asked) != len(images)-1 {
			t.Errorf("asked %v", asked.asked)
		}
		if int(steps.Load()) != len(images) || asked.greatest != batch.AtOnce {
			t.Errorf("%d steps, %d at once", steps.Load(), asked.greatest)
		}
	})
}

func TestNoImages(t *testing.T) {
	if got := batch.Inspect(t.Context(), &inspector{}, nil, 0, nil); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}
