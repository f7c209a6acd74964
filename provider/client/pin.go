package client

import (
	"context"
	"encoding/json"
)

// pathPin answers with references by digest.
const pathPin = "/v1/pin"

// Pin gives, for those images that the provider pins, the reference with its
// digest. An image that is left out, or comes back as it was, must not be pinned:
// it is not known, or has mirrors that serve tags alone.
func (c *Client) Pin(ctx context.Context, images []string) map[string]string {
	pinned := make(map[string]string, len(images))
	for len(images) > 0 {
		keys := images[:min(len(images), MaxBatch)]
		images = images[len(keys):]
		found := c.ask(ctx, kind{path: pathPin}, keys)
		for _, key := range keys {
			var reference string
			if value, ok := found.values[key]; ok && json.Unmarshal(value, &reference) == nil && reference != "" {
				pinned[key] = reference
			}
		}
	}
	return pinned
}
