package registry

import (
	"net/http"
	"strings"
)

// maxChallenge bounds the bytes of a WWW-Authenticate header that are read.
const maxChallenge = 16 << 10

// challenge is one entry of a WWW-Authenticate header, RFC 9110 section 11.6.1.
type challenge struct {
	scheme     string            // lower case: "bearer", "basic"
	parameters map[string]string // names in lower case
}

// challenges reads the WWW-Authenticate headers of a 401. What does not parse
// is left out.
func challenges(h http.Header) []challenge {
	var all []challenge
	for _, line := range h.Values("WWW-Authenticate") {
		if len(line) > maxChallenge {
			continue
		}
		all = append(all, parseChallenges(line)...)
	}
	return all
}

// parseChallenges reads `Scheme name="value", name=value, Other ...`. A scheme
// is a token that no "=" follows.
func parseChallenges(s string) []challenge {
	var all []challenge
	p := headerParser{rest: s}
	for {
		p.skip(" \t,")
		token := p.token()
		if token == "" {
			return all
		}
		p.skip(" \t")
		if !p.take('=') {
			all = append(all, challenge{scheme: strings.ToLower(token), parameters: map[string]string{}})
			continue
		}
		p.skip(" \t")
		value, ok := p.value()
		if !ok {
			return all
		}
		if len(all) == 0 {
			return nil // a parameter before any scheme
		}
		parameters := all[len(all)-1].parameters
		if name := strings.ToLower(token); parameters[name] == "" {
			parameters[name] = value
		}
	}
}

type headerParser struct{ rest string }

func (p *headerParser) skip(characters string) { p.rest = strings.TrimLeft(p.rest, characters) }

func (p *headerParser) take(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// token reads the characters of RFC 9110's token and, since some registries
// leave out the quotes, those of a URL.
func (p *headerParser) token() string {
	end := strings.IndexAny(p.rest, " \t,=\"")
	if end < 0 {
		end = len(p.rest)
	}
	token := p.rest[:end]
	p.rest = p.rest[end:]
	return token
}

func (p *headerParser) value() (string, bool) {
	if !p.take('"') {
		end := strings.IndexAny(p.rest, " \t,")
		if end < 0 {
			end = len(p.rest)
		}
		value := p.rest[:end]
		p.rest = p.rest[end:]
		return value, true
	}
	var b strings.Builder
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; c {
		case '\\':
			if i+1 < len(p.rest) {
				i++
				b.WriteByte(p.rest[i])
			}
		case '"':
			p.rest = p.rest[i+1:]
			return b.String(), true
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}
