// Package batch asks an Inspector about many images and says how far it is.
package batch

import (
	"context"
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
	places := map[string][]int{} // of each image in images
	for i, image := range images {
		places[image] = append(places[image], i)
	}
	answers := make([]provider.Answer, len(images))
	var turns errgroup.Group
	turns.SetLimit(AtOnce)
	for i, image := range images {
		if places[image][0] != i {
			continue // asked about at its first place
		}
		turns.Go(func() error {
			asking, cancel := within(ctx, timeout)
			defer cancel()
			answer := inspector.Inspect(asking, []provider.Query{{Image: image}})[0]
			for _, place := range places[image] {
				answers[place] = answer
				if step != nil {
					step()
				}
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
