package mirrors

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// HostsFile is one file of containerd's config_path folder.
type HostsFile struct {
	// Host is the registry, host[:port]; the file is <Host>/hosts.toml.
	Host string
	Data []byte
}

// Unsupported is a rule that a container runtime cannot follow.
type Unsupported struct {
	// Scope is the Prefix of the entry with the rule; empty for search registries.
	Scope string `json:"scope"`
	// Reason says what is lost, or what is wider than it should be.
	Reason string `json:"reason"`
}

// ContainerdHosts writes what containerd can express of the Config, sorted by
// host, and names what it cannot. containerd knows mirrors of a whole registry
// alone (its docs/hosts.md): a mirror of a repository path is expressed when
// its own path ends with that path, and is then tried for the whole registry.
// A mirror by digest has the capability pull; one that is there by tag as well
// has resolve too. An insecure place is written with http and skip_verify,
// which makes containerd try HTTPS without verification and then plain HTTP.
func (c *Config) ContainerdHosts() ([]HostsFile, []Unsupported) {
	hosts := map[string]*containerdHost{}
	var lost []Unsupported
	for _, e := range c.Entries() {
		lost = append(lost, e.containerd(hosts)...)
	}
	if len(c.SearchRegistries()) > 0 {
		lost = append(lost, Unsupported{Reason: "containerd has no search registries"})
	}
	var files []HostsFile
	for name, h := range hosts {
		if len(h.lists) == 0 && !h.insecure {
			continue
		}
		files = append(files, HostsFile{Host: name, Data: h.write(name)})
	}
	slices.SortFunc(files, func(a, b HostsFile) int { return strings.Compare(a.Host, b.Host) })
	return files, lost
}

// containerdHost collects what is known of one registry.
type containerdHost struct {
	insecure bool
	lists    [][]string // of mirrors, as written into the file
	mirrors  map[string]containerdMirror
}

type containerdMirror struct{ insecure, resolve bool }

// containerd adds an entry to the registry that it belongs to and says what of
// it is lost.
func (e Entry) containerd(hosts map[string]*containerdHost) (lost []Unsupported) {
	lose := func(format string, args ...any) {
		lost = append(lost, Unsupported{Scope: e.Prefix, Reason: fmt.Sprintf(format, args...)})
	}
	if e.Blocked {
		lose("containerd cannot block a registry; it is contacted after its mirrors")
	}
	if isWildcard(e.Prefix) {
		if e.Insecure || len(e.Mirrors) > 0 {
			lose("containerd has no wildcards")
		}
		return lost
	}
	if e.Location != e.Prefix {
		lose("containerd cannot move a prefix to another location")
		return lost
	}
	host, path := e.Prefix, ""
	if slash := strings.IndexByte(host, '/'); slash >= 0 {
		host, path = host[:slash], host[slash:]
	}
	h := hosts[host]
	if h == nil {
		h = &containerdHost{mirrors: map[string]containerdMirror{}}
		hosts[host] = h
	}
	if e.Insecure {
		if path == "" {
			h.insecure = true
		} else if !h.insecure { // entries are sorted: that of the host came before
			lose("containerd knows insecure registries, not insecure repositories")
		}
	}
	byTag := map[string]bool{}
	for _, m := range e.Mirrors {
		if m.Pull == PullTag || m.Pull == PullAll || m.Pull == "" {
			byTag[m.Location] = true
		}
	}
	used, wide := []string{}, false
	for _, m := range e.Mirrors {
		if m.Pull == PullTag {
			if !slices.ContainsFunc(e.Mirrors, func(o Mirror) bool { return o.Location == m.Location && o.Pull != PullTag }) {
				lose("containerd has no mirrors by tag alone: %s is left out", m.Location)
			}
			continue
		}
		if m.Location == e.Location {
			lose("containerd tries the source last, not before other mirrors")
			continue
		}
		place, ok := containerdPlace(m, path)
		if !ok {
			lose("containerd mirrors whole registries: the path of mirror %s does not end with %s", m.Location, path)
			continue
		}
		wide = wide || path != ""
		known := h.mirrors[place]
		h.mirrors[place] = containerdMirror{insecure: known.insecure || m.Insecure, resolve: known.resolve || byTag[m.Location]}
		used = append(used, place)
	}
	if len(used) > 0 {
		h.lists = append(h.lists, used)
	}
	if wide {
		lose("containerd tries the mirrors for all of %s", host)
	}
	return lost
}

// containerdPlace gives the URL path of a mirror for the whole registry.
func containerdPlace(m Mirror, path string) (string, bool) {
	if !strings.HasSuffix(m.Location, path) {
		return "", false
	}
	place := strings.TrimSuffix(m.Location, path)
	if place == "" || strings.HasSuffix(place, "/") {
		return "", false
	}
	return place, true
}

func (h *containerdHost) write(name string) []byte {
	server := name
	if name == hub {
		server = "registry-1.docker.io"
	}
	var out bytes.Buffer
	writeServer(&out, server, h.insecure)
	for _, place := range mergeOrder(name, h.lists) {
		m := h.mirrors[place]
		host, path, hasPath := strings.Cut(place, "/")
		url := scheme(m.insecure) + host
		if hasPath {
			url += "/v2/" + path
		}
		out.WriteString("\n[host." + tomlString(url) + "]\n")
		if m.resolve {
			out.WriteString("capabilities = [\"pull\", \"resolve\"]\n")
		} else {
			out.WriteString("capabilities = [\"pull\"]\n")
		}
		writeFlag(&out, "override_path", hasPath)
		writeFlag(&out, "skip_verify", m.insecure)
	}
	return out.Bytes()
}

func writeServer(out *bytes.Buffer, server string, insecure bool) {
	out.WriteString("server = " + tomlString(scheme(insecure)+server) + "\n")
	writeFlag(out, "skip_verify", insecure)
}

func scheme(insecure bool) string {
	if insecure {
		return "http://"
	}
	return "https://"
}

// Unsupported gives what containerd cannot follow, each with the field that
// asks for it.
func (r *Result) Unsupported() []Problem {
	_, lost := r.Config.ContainerdHosts()
	problems := make([]Problem, 0, len(lost))
	for _, l := range lost {
		p := r.origins[l.Scope]
		p.Reason = l.Reason
		problems = append(problems, p)
	}
	return problems
}
