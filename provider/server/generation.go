package server

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync/atomic"

	"github.com/archkeeper/archkeeper/provider"
)

// Generation counts the changes of what this process answers from. Whoever waits
// for an image compares it, and asks again as soon as that makes sense instead of
// at the end of a pause.
type Generation struct {
	instance string
	changes  atomic.Uint64
	look     []func(context.Context)
}

// NewGeneration makes a Generation of this process. The functions look for changes
// that nobody tells of, such as those of files, and call Changed; they come back
// soon, and run whenever somebody wants to know.
func NewGeneration(look ...func(context.Context)) *Generation {
	return &Generation{instance: rand.Text(), look: look}
}

// Changed counts one change.
func (g *Generation) Changed() { g.changes.Add(1) }

// Now looks for changes and gives what was counted.
func (g *Generation) Now(ctx context.Context) provider.Generation {
	for _, look := range g.look {
		look(ctx)
	}
	return provider.Generation{Instance: g.instance, Changes: g.changes.Load()}
}

func (s *Server) serveGeneration(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.o.Deadline)
	defer cancel()
	writeJSON(w, http.StatusOK, s.o.Generation.Now(ctx))
}
