package imageref

import (
	"net/netip"
	"strconv"
	"strings"
)

// The grammar is written by hand: references are parsed for every question that
// is answered from memory, and regular expressions took most of that time. The
// fuzz target holds it against the runtimes' own.

func lowerAlnum(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
func alnum(c byte) bool      { return lowerAlnum(c) || 'A' <= c && c <= 'Z' }

// validPath: components between slashes, each of [a-z0-9]+ joined by one dot,
// one or two underscores, or any number of dashes.
func validPath(path string) bool {
	for component := range strings.SplitSeq(path, "/") {
		if !validComponent(component) {
			return false
		}
	}
	return true
}

func validComponent(text string) bool {
	if text == "" || !lowerAlnum(text[0]) || !lowerAlnum(text[len(text)-1]) {
		return false
	}
	for i := 0; i < len(text); i++ {
		if lowerAlnum(text[i]) {
			continue
		}
		start := i
		for text[i+1] == text[start] { // the last character is no separator
			i++
		}
		if !lowerAlnum(text[i+1]) || !separator(text[start], i+1-start) {
			return false
		}
	}
	return true
}

func separator(c byte, length int) bool {
	switch c {
	case '.':
		return length == 1
	case '_':
		return length <= 2
	}
	return c == '-'
}

// validTag: [A-Za-z0-9_][A-Za-z0-9_.-]{0,127}.
func validTag(tag string) bool {
	if tag == "" || len(tag) > maxTag || tag[0] == '.' || tag[0] == '-' {
		return false
	}
	for i := range len(tag) {
		if c := tag[i]; !alnum(c) && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// validHost: a DNS name, an IPv4 address or an IPv6 address in brackets, and
// perhaps a port.
func validHost(host string) bool {
	if strings.HasPrefix(host, "[") {
		inside, rest, closed := strings.Cut(host[1:], "]")
		ip, err := netip.ParseAddr(inside)
		if !closed || err != nil || !ip.Is6() || ip.Zone() != "" {
			return false
		}
		return rest == "" || rest[0] == ':' && validPort(rest[1:])
	}
	address, port, withPort := strings.Cut(host, ":")
	if withPort && !validPort(port) || len(address) > maxHost {
		return false
	}
	for label := range strings.SplitSeq(address, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if c := label[i]; !alnum(c) && c != '-' {
				return false
			}
		}
	}
	return true
}

func validPort(port string) bool {
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && number > 0
}

// ValidDigest tells whether text is a sha256 or sha512 digest in the form
// algorithm:hex, in lower case and of the right length.
func ValidDigest(text string) bool {
	algorithm, hex, _ := strings.Cut(text, ":")
	switch algorithm {
	case "sha256":
		return len(hex) == 64 && lowerHex(hex)
	case "sha512":
		return len(hex) == 128 && lowerHex(hex)
	}
	return false
}

func lowerHex(text string) bool {
	for i := range len(text) {
		if c := text[i]; ('0' > c || c > '9') && ('a' > c || c > 'f') {
			return false
		}
	}
	return true
}
