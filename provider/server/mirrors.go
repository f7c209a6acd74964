package server

import (
	"slices"

	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// TagMirrors gives Options.HasTagMirrors for a mirror configuration that may
// change: a reference has tag mirrors when a runtime would look for it, as it
// is written, anywhere but at its own location.
func TagMirrors(current func() *mirrors.Config) func(imageref.Reference) bool {
	return func(ref imageref.Reference) bool {
		return slices.ContainsFunc(current().Resolve(ref).Candidates, func(c mirrors.Candidate) bool { return c.Mirror })
	}
}
