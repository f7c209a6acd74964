package mirrors

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

// Policy is the part of a containers-policy.json(5) that decides without a
// look at signatures: which scopes are rejected whatever is there. A scope that
// asks for a signature counts as permitted, since only a pull can check it.
type Policy struct {
	rejected map[string]bool // docker transport: scope to verdict
	fallback bool            // the transport's "" or, without one, the default
}

// ParsePolicy reads a policy.json. A requirement of a kind that containers do not
// know is an error: they would refuse every pull.
func ParsePolicy(data []byte) (*Policy, error) {
	var file struct {
		Default    []policyRequirement     `json:"default"`
		Transports map[string]policyScopes `json:"transports"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("policy.json: %w", err)
	}
	if file.Default == nil {
		return nil, fmt.Errorf("policy.json: there is no default")
	}
	fallback, err := rejects("default", file.Default)
	if err != nil {
		return nil, err
	}
	p := &Policy{rejected: map[string]bool{}, fallback: fallback}
	for scope, requirements := range file.Transports["docker"] {
		verdict, err := rejects(fmt.Sprintf("transports.docker[%q]", scope), requirements)
		if err != nil {
			return nil, err
		}
		if scope == "" {
			p.fallback = verdict
		} else {
			p.rejected[scope] = verdict
		}
	}
	return p, nil
}

// rejects tells whether a list of requirements, all of which must hold, cannot hold.
func rejects(at string, requirements []policyRequirement) (bool, error) {
	if len(requirements) == 0 {
		return false, fmt.Errorf("policy.json: %s has no requirement", at)
	}
	verdict := false
	for _, r := range requirements {
		switch r.Type {
		case "reject":
			verdict = true
		case "insecureAcceptAnything", "signedBy", "signedBaseLayer", "sigstoreSigned":
		default:
			return false, fmt.Errorf("policy.json: %s has a requirement of the unknown type %s", at, provider.Quote(r.Type))
		}
	}
	return verdict, nil
}

// Permits judges the reference that a user names, never a mirror's. The most
// specific scope decides: the whole reference, its repository, the folders
// above, the registry, then *.domain from the nearest, then the default.
func (p *Policy) Permits(ref imageref.Reference) bool {
	full := ref.Name() + ":" + ref.Tag()
	if ref.Digest() != "" {
		full = ref.Name() + "@" + ref.Digest()
	}
	scopes := []string{full}
	for name := ref.Name(); ; {
		scopes = append(scopes, name)
		cut := strings.LastIndexByte(name, '/')
		if cut < 0 {
			break
		}
		name = name[:cut]
	}
	host, _, _ := strings.Cut(ref.Registry(), ":")
	for rest := host; ; {
		_, after, found := strings.Cut(rest, ".")
		if !found {
			break
		}
		scopes, rest = append(scopes, "*."+after), after
	}
	for _, scope := range scopes {
		if verdict, ok := p.rejected[scope]; ok {
			return !verdict
		}
	}
	return !p.fallback
}

// Under gives the configuration with a policy that is judged before anything is
// contacted. c may be nil; a nil policy permits everything.
func (c *Config) Under(policy *Policy) *Config {
	if policy == nil {
		return c
	}
	judged := Config{policy: policy}
	if c != nil {
		judged = *c
		judged.policy = policy
	}
	return &judged
}
