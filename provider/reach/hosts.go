package reach

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpproxy"
)

// canonicalHost gives host[:port] in lower case, without a final dot or the
// default port of HTTPS, and docker.io for the names under which the hub's
// registry answers.
func canonicalHost(host string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ":443")
	name, port := host, ""
	if h, p, err := net.SplitHostPort(host); err == nil {
		name, port = h, ":"+p
		if strings.Contains(h, ":") {
			name = "[" + h + "]"
		}
	}
	name = strings.TrimSuffix(name, ".")
	switch name {
	case "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		name = "docker.io"
	}
	return name + port
}

// hostname gives the host without port and brackets.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// hostList is a list of registries, by host[:port] or by *.domain.
type hostList struct {
	exact    map[string]bool
	suffixes []string // ".example.com"
}

func newHostList(entries []string) (hostList, error) {
	list := hostList{exact: map[string]bool{}}
	for _, entry := range entries {
		domain, wildcard := strings.CutPrefix(entry, "*.")
		if domain == "" || strings.ContainsAny(domain, "/@* ") {
			return hostList{}, fmt.Errorf("%q is neither host[:port] nor *.domain", entry)
		}
		if wildcard {
			list.suffixes = append(list.suffixes, "."+canonicalHost(domain))
		} else {
			list.exact[canonicalHost(domain)] = true
		}
	}
	return list, nil
}

func (l hostList) empty() bool { return len(l.exact) == 0 && len(l.suffixes) == 0 }

func (l hostList) has(host string) bool {
	if l.exact[host] {
		return true
	}
	return slices.ContainsFunc(l.suffixes, func(suffix string) bool { return strings.HasSuffix(host, suffix) })
}

// withoutPort drops the port of a canonical host.
func withoutPort(host string) string {
	name := hostname(host)
	if strings.Contains(name, ":") {
		return "[" + name + "]"
	}
	return name
}

// ProxyFromEnvironment reads HTTP_PROXY, HTTPS_PROXY and NO_PROXY, upper case
// before lower, from getenv and gives a Config.Proxy. The rules are those of
// golang.org/x/net/http/httpproxy.
func ProxyFromEnvironment(getenv func(string) string) func(*url.URL) (*url.URL, error) {
	either := func(name string) string {
		if value := getenv(name); value != "" {
			return value
		}
		return getenv(strings.ToLower(name))
	}
	config := httpproxy.Config{
		HTTPProxy:  either("HTTP_PROXY"),
		HTTPSProxy: either("HTTPS_PROXY"),
		NoProxy:    either("NO_PROXY"),
		CGI:        getenv("REQUEST_METHOD") != "",
	}
	return config.ProxyFunc()
}

// redactProxy keeps a proxy's URL, which may hold a password, out of an error.
func redactProxy(err error) error {
	var parse *url.Error
	if errors.As(err, &parse) {
		return errors.New("the proxy's URL cannot be parsed")
	}
	return errors.New("the proxy's address is invalid")
}
