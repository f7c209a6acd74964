package mirrors

import (
	"fmt"
	"strings"

	"github.com/archkeeper/archkeeper/provider/imageref"
)

// Explain resolves ref and tells, one sentence each, what would surprise in it.
func (r *Result) Explain(ref imageref.Reference) (Resolution, []string) {
	res := r.Config.Resolve(ref)
	var warnings []string
	_, port, hasPort := strings.Cut(ref.Registry()[strings.LastIndexByte(ref.Registry(), ']')+1:], ":")
	if e, covers := r.Config.match(ref.Name()); e != nil && hasPort && covers == len(ref.Registry())-len(port)-1 {
		switch {
		case !isWildcard(e.Prefix):
			warnings = append(warnings, fmt.Sprintf("runtimes apply the entry of %s, which has no port, to %s", e.Prefix, ref.Registry()))
		case len(e.Mirrors) > 0:
			warnings = append(warnings, fmt.Sprintf("runtimes carry the port of %s over to the mirrors of %s", ref.Registry(), e.Prefix))
		}
	}
	if res.Err != nil {
		warnings = append(warnings, res.Err.Message)
	}
	if r.Allowed != nil && !r.allows(ref) {
		warnings = append(warnings, fmt.Sprintf("%s lies in no scope of allowedRegistries; a policy.json made of them refuses it", ref.Name()))
	}
	return res, warnings
}

func (r *Result) allows(ref imageref.Reference) bool {
	return within(ref.Name(), r.Allowed)
}
