package mirrors

import (
	"iter"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// role says where a scope stands, and so which forms it may have.
type role int

const (
	roleSource role = iota // host[:port][/path] or *.host
	roleMirror             // host[:port][/path]
	roleScope              // insecure, blocked, allowed: as roleSource
	roleSearch             // host[:port]
)

const (
	hub     = "docker.io"
	maxHost = 253
)

var (
	hostGrammar = regexp.MustCompile(`^` + hostPattern + `$`)
	pathGrammar = regexp.MustCompile(`^` + pathPattern + `$`)
)

// objection says why text is no scope for a role; empty when it is one. The
// forms are those of the mirror API's patterns, and what they let through
// although every pull would then fail is refused as well.
func objection(text string, as role) string {
	switch {
	case text == "":
		return "it is empty"
	case strings.ContainsAny(text, " \t\r\n\v\f"):
		return "it contains white space"
	case strings.Contains(text, "://"):
		return "it begins with a scheme; only host[:port][/path] is allowed"
	case strings.Contains(text, "*"):
		return wildcardObjection(text, as)
	case strings.Contains(text, "@"):
		return "it has a digest; only host[:port][/path] is allowed"
	case len(text) > maxName:
		return "it is longer than " + strconv.Itoa(maxName) + " characters"
	case strings.HasSuffix(text, "/"):
		return "it ends with a slash"
	}
	host, path, hasPath := strings.Cut(text, "/")
	if reason := hostObjection(host); reason != "" {
		return reason
	}
	if !hasPath {
		return ""
	}
	if as == roleSearch {
		return "it has a path; only host[:port] is allowed"
	}
	switch {
	case strings.Contains(path, ":"):
		return "it has a tag; only host[:port][/path] is allowed"
	case strings.ToLower(path) != path:
		return "its path has upper-case letters"
	case !pathGrammar.MatchString(path):
		return "its path is no repository path"
	}
	return ""
}

func wildcardObjection(text string, as role) string {
	host, ok := strings.CutPrefix(text, "*.")
	switch {
	case as == roleMirror || as == roleSearch:
		return "a wildcard is not allowed here"
	case !ok || strings.Contains(host, "*"):
		return "a wildcard must be of the form *.host"
	case strings.ContainsAny(host, "/:@"):
		return "a wildcard covers hosts alone: *.host without port, path, tag or digest"
	case host == "" || strings.HasPrefix(host, ".") || strings.HasSuffix(host, ".") || strings.Contains(host, ".."):
		return "its host has an empty label"
	case len(host) > maxHost || !hostGrammar.MatchString(host):
		return "its host is no host name"
	}
	return ""
}

func hostObjection(host string) string {
	if strings.HasPrefix(host, "[") {
		inside, port, _ := strings.Cut(host[1:], "]")
		ip, err := netip.ParseAddr(inside)
		if err != nil || !ip.Is6() || ip.Zone() != "" || !strings.HasSuffix(host, "]"+port) || port != "" && port[0] != ':' {
			return "its host is no IPv6 address in brackets"
		}
		if port != "" && !validPort(port[1:]) {
			return "its port is no number from 1 to 65535"
		}
		return ""
	}
	label, port, hasPort := strings.Cut(host, ":")
	switch {
	case label == "" && !hasPort:
		return "it begins with a slash"
	case label == "" || strings.HasPrefix(label, ".") || strings.HasSuffix(label, ".") || strings.Contains(label, ".."):
		return "its host has an empty label"
	case len(label) > maxHost || !hostGrammar.MatchString(label):
		return "its host is no host name"
	case hasPort && !validPort(port):
		return "what follows its host is a tag, or a port that is no number from 1 to 65535"
	case !hasPort && !strings.Contains(label, ".") && label != "localhost":
		return "its host is one word without a port, which runtimes read as a repository of docker.io"
	case host == "index.docker.io":
		return "runtimes know this registry as docker.io"
	}
	return ""
}

func validPort(port string) bool {
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && number > 0
}

// isWildcard tells whether a scope is of the form *.host.
func isWildcard(scope string) bool { return strings.HasPrefix(scope, "*.") }

// enclosing yields scope itself and then every scope that it is nested in, the
// nearest first: shorter paths, the host with its port, and wildcards, which
// ignore the port. A host without the port does not enclose one with it.
func enclosing(scope string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield(scope) {
			return
		}
		host := scope
		if isWildcard(scope) {
			host = scope[2:]
		} else {
			for cut := strings.LastIndexByte(host, '/'); cut >= 0; cut = strings.LastIndexByte(host, '/') {
				host = host[:cut]
				if !yield(host) {
					return
				}
			}
			if strings.HasPrefix(host, "[") {
				return
			}
			host, _, _ = strings.Cut(host, ":")
		}
		for dot := strings.IndexByte(host, '.'); dot >= 0; dot = strings.IndexByte(host, '.') {
			host = host[dot+1:]
			if !yield("*." + host) {
				return
			}
		}
	}
}

// within tells whether scope is one of outer, which is sorted, or nested in one.
func within(scope string, outer []string) bool {
	for around := range enclosing(scope) {
		if _, found := slices.BinarySearch(outer, around); found {
			return true
		}
	}
	return false
}

// suffix is what a mirror of outer has to add to serve inner, which is nested
// in it: the path below outer, with its leading slash.
func suffix(inner, outer string) string {
	if !isWildcard(outer) {
		return inner[len(outer):]
	}
	if slash := strings.IndexByte(inner, '/'); slash >= 0 {
		return inner[slash:]
	}
	return ""
}
