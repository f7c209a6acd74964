package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/archkeeper/archkeeper/provider"
)

// pathGeneration says whether asking again makes sense.
const pathGeneration = "/v1/generation"

// Generation asks one replica of the provider for its generation: on a connection
// that is given up afterwards, so that the replicas behind a Service take turns.
func (c *Client) Generation(ctx context.Context) (provider.Generation, error) {
	failed := func(err error) (provider.Generation, error) {
		return provider.Generation{}, fmt.Errorf("asking the provider at %s for its generation: %w", c.base.Host, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+pathGeneration, http.NoBody)
	if err != nil {
		return failed(err)
	}
	request.Close = true
	c.sign(request)
	reply, err := c.http.Do(request)
	if err != nil {
		return failed(withoutURL(err))
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(io.LimitReader(reply.Body, 4<<10))
	if err != nil {
		return failed(err)
	}
	var generation provider.Generation
	switch {
	case reply.StatusCode != http.StatusOK:
		return failed(fmt.Errorf("status %d", reply.StatusCode))
	case json.Unmarshal(body, &generation) != nil || generation.Instance == "":
		return failed(errors.New("the answer is none"))
	}
	return generation, nil
}

// Generation asks the provider for its generation.
func (d *Deferred) Generation(ctx context.Context) (provider.Generation, error) {
	if c := d.client.Load(); c != nil {
		return c.Generation(ctx)
	}
	return provider.Generation{}, fmt.Errorf("the provider cannot be asked yet: %s", *d.failure.Load())
}
