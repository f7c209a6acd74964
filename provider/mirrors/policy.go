package mirrors

import (
	"encoding/json"
)

type (
	policyRequirement struct {
		Type string `json:"type"`
	}
	policyScopes map[string][]policyRequirement
	policyFile   struct {
		Default    []policyRequirement     `json:"default"`
		Transports map[string]policyScopes `json:"transports"`
	}
)

// PolicyJSON writes a containers-policy.json(5) out of the allowed or the
// blocked scopes; nil when there are none. The policy is judged on the reference
// that a user names, never on a mirror's. So a scope with mirrors is not
// rejected because it is blocked: registries.conf keeps its source from being
// contacted, and its mirrors stay in use.
func (r *Result) PolicyJSON() ([]byte, error) {
	accept := []policyRequirement{{Type: "insecureAcceptAnything"}}
	reject := []policyRequirement{{Type: "reject"}}
	scopes := policyScopes{}
	file := policyFile{
		Default:    accept,
		Transports: map[string]policyScopes{"docker": scopes, "atomic": scopes, "docker-daemon": {"": accept}},
	}
	switch {
	case len(r.Allowed) > 0:
		file.Default = reject
		for _, scope := range r.Allowed {
			scopes[scope] = accept
		}
		for _, ref := range r.protected {
			if !r.allows(ref) {
				scopes[ref.Name()] = accept
			}
		}
	case len(r.Blocked) > 0:
		for _, scope := range r.Blocked {
			scopes[scope] = reject
		}
		for _, e := range r.Config.entries {
			if len(e.Mirrors) == 0 || !r.insideBlocked(e.Prefix) {
				continue
			}
			if _, itself := scopes[e.Prefix]; itself && !r.insideBlocked(parent(e.Prefix)) {
				delete(scopes, e.Prefix)
			} else {
				scopes[e.Prefix] = accept
			}
		}
	default:
		return nil, nil
	}
	if len(scopes) == 0 {
		return nil, nil
	}
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// insideBlocked tells whether blockedRegistries cover a scope.
func (r *Result) insideBlocked(scope string) bool {
	return scope != "" && within(scope, r.Blocked)
}

// parent is the next scope around a scope; empty when there is none.
func parent(scope string) string {
	for outer := range enclosing(scope) {
		if outer != scope {
			return outer
		}
	}
	return ""
}
