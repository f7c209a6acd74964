package server

import (
	"context"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

// Pinner gives what PathPin answers to callers in the same process: the reference
// with its digest for those images that may be pinned. An image that is left out,
// or comes back as it was, must not be.
func Pinner(inspector provider.Inspector, hasTagMirrors func(imageref.Reference) bool) func(ctx context.Context, images []string) map[string]string {
	read := pinKey(hasTagMirrors)
	return func(ctx context.Context, images []string) map[string]string {
		pinned := make(map[string]string, len(images))
		var queries []provider.Query
		for _, image := range images {
			switch step := read(image); {
			case !step.settled:
				queries = append(queries, step.query)
			case step.verdict == nil:
				pinned[image] = image
			}
		}
		for _, answer := range inspector.Inspect(ctx, queries) {
			if answer.Err != nil {
				continue
			}
			if value, bad := pinnedValue(answer); bad == nil {
				pinned[answer.Image], _ = value.(string)
			}
		}
		return pinned
	}
}
