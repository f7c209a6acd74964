// Package batch asks an Inspector about many images and says how far it is.
package batch

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/archkeeper/archkeeper/provider"
)

// AtOnce is how many images are asked about at the same time; the inspector
// limits further by host.
const AtOnce = 64

// Inspect gives the answers for images in their order, as inspector.Inspect
// would in one call, without the credentials of any namespace. An image that is
// named twice is asked about once. Each image has timeout for itself from the
// moment that its turn comes; 0 is none. step is called after each image,
// concurrently; nil for nobody.
func Inspect(ctx context.Context, inspector provider.Inspector, images []string, timeout time.Duration, step func()) []provider.Answer {
	answers := make([]provider.Answer, len(images))
	var turns errgroup.Group
	turns.SetLimit(AtOnce)
	var once sync.Map // image -> func() provider.Answer
	for i, image := range images {
		ask, _ := once.LoadOrStore(image, sync.OnceValue(func() provider.Answer {
			asking, cancel := within(ctx, timeout)
			defer cancel()
			return inspector.Inspect(asking, []provider.Query{{Image: image}})[0]
		}))
		turns.Go(func() error {
			answers[i] = ask.(func() provider.Answer)() //nolint:forcetypeassert // the map holds nothing else
			if step != nil {
				step()
			}
			return nil
		})
	}
	_ = turns.Wait() // the functions give no errors
	return answers
}

func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}
