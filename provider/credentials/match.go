package credentials

import (
	"errors"
	"net"
	"net/url"
	"path"
	"slices"
	"strings"
)

// pattern is a location of a configuration, in the form in which the kubelet
// indexes it: no scheme, the prefixes /v1 and /v2 of a path dropped.
// Rule: pkg/credentialprovider/keyring.go of Kubernetes.
type pattern struct {
	key    string   // host[:port][/path]
	labels []string // of the host, each possibly a glob
	port   string
	path   string
}

// hubKey is the location under which credentials for Docker Hub are kept; they
// serve every name of the hub when nothing else matched.
const hubKey = "index.docker.io"

// parseLocation reads a location as in "https://index.docker.io/v1/",
// "registry.example:5000/team" or "*.example.com".
func parseLocation(location string) (pattern, error) {
	if !strings.HasPrefix(location, "https://") && !strings.HasPrefix(location, "http://") {
		location = "https://" + location
	}
	parsed, err := url.Parse(location)
	if err != nil {
		return pattern{}, errors.New("is no location of a registry")
	}
	effective := parsed.Path
	if strings.HasPrefix(effective, "/v2/") || strings.HasPrefix(effective, "/v1/") {
		effective = effective[len("/v1"):]
	}
	key := parsed.Host
	if effective != "" && effective != "/" {
		key += effective
	}
	return parsePattern(key)
}

// parsePattern reads host[:port][/path] with globs in the host.
func parsePattern(key string) (pattern, error) {
	labels, port, path, err := split(key)
	if err != nil {
		return pattern{}, errors.New("is no location of a registry")
	}
	return pattern{key: key, labels: labels, port: port, path: path}, nil
}

// split takes host[:port][/path] apart as a URL without its scheme.
func split(schemeless string) (labels []string, port, path string, err error) {
	parsed, err := url.Parse("https://" + schemeless)
	if err != nil {
		return nil, "", "", err
	}
	host, port, err := net.SplitHostPort(parsed.Host)
	if err != nil {
		host, port = parsed.Host, ""
	}
	return strings.Split(host, "."), port, parsed.Path, nil
}

// matches tells whether the pattern covers an image, registry/repository: as
// many labels, each one matching (a glob covers one label or a part of it), the
// same port, and a path that begins with the pattern's.
func (p pattern) matches(image target) bool {
	if p.port != image.port || len(p.labels) != len(image.labels) || !strings.HasPrefix(image.path, p.path) {
		return false
	}
	for i, glob := range p.labels {
		if matched, err := path.Match(glob, image.labels[i]); err != nil || !matched {
			return false
		}
	}
	return true
}

// target is an image to match.
type target struct {
	name       string
	labels     []string
	port, path string
}

// parseTarget reads registry/repository.
func parseTarget(name string) (target, error) {
	labels, port, path, err := split(name)
	return target{name: name, labels: labels, port: port, path: path}, err
}

// onHub tells whether the image is on Docker Hub: by name, or by having no
// registry in its name.
func (t target) onHub() bool {
	first, _, found := strings.Cut(t.name, "/")
	switch {
	case first == "":
		return false
	case !found, first == "docker.io", first == hubKey:
		return true
	}
	return !strings.ContainsAny(first, ".:")
}

// selectFor gives the credentials for an image, in the kubelet's order: by
// location in reverse lexical order, which puts a longer path before its
// prefixes and names before globs; then as given. Credentials for Docker Hub
// serve when nothing else matched. Repeated secrets are given once.
func selectFor(name string, entries []entry) []Credential {
	image, err := parseTarget(name)
	var matched []entry
	for _, candidate := range entries {
		if err == nil && candidate.pattern.matches(image) {
			matched = append(matched, candidate)
		}
	}
	if len(matched) == 0 && image.onHub() {
		for _, candidate := range entries {
			if candidate.pattern.key == hubKey {
				matched = append(matched, candidate)
			}
		}
	}
	slices.SortStableFunc(matched, func(a, b entry) int { return strings.Compare(b.pattern.key, a.pattern.key) })
	found := make([]Credential, 0, len(matched))
	for _, match := range matched {
		found = append(found, match.credential)
	}
	return distinct(found)
}

// distinct drops credentials whose secret came before, and anonymous ones.
func distinct(found []Credential) []Credential {
	var kept []Credential
	for _, credential := range found {
		repeated := slices.ContainsFunc(kept, func(k Credential) bool { return k.print == credential.print })
		if !repeated && !credential.Anonymous() {
			kept = append(kept, credential)
		}
	}
	return kept
}
