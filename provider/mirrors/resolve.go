package mirrors

import (
	"strings"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

// Candidate is one place from which an image may be pulled.
type Candidate struct {
	// Reference keeps the tag and the digest of what was asked for.
	Reference imageref.Reference
	// Insecure allows plain HTTP and unverified certificates there.
	Insecure bool
	// Mirror is false for the source itself.
	Mirror bool
}

// Resolution says where a runtime would look for one reference.
type Resolution struct {
	// Candidates in the order in which they are tried, without those that are
	// blocked; the source itself is last unless it is blocked. Empty when the
	// pull is refused or bound to fail.
	Candidates []Candidate
	// Blocked is true when the source itself may not be contacted. Mirrors
	// among the Candidates are used all the same.
	Blocked bool
	// Prefix of the entry that matched; empty when none did.
	Prefix string
	// Skipped are mirrors that apply to this pull and are themselves blocked.
	Skipped []Skipped
	// Err is set when the matching entry makes of the reference what is no
	// reference: runtimes then fail the whole pull, and so there are no
	// Candidates. Its class is unreachable, for the configuration may be mended.
	// A policy that rejects the reference is of ClassBlocked.
	Err *provider.Error
}

// Skipped is a mirror that is not tried because Prefix, the entry that governs
// it, is blocked.
type Skipped struct {
	Reference imageref.Reference
	Prefix    string
}

// maxName is how long a name may be for runtimes, registry included.
const maxName = 255

// Resolve gives the places to try for ref. It agrees with what
// sysregistriesv2.Registry.PullSourcesFromReference and the docker transport of
// the containers library do, their peculiarities included: an entry without a
// port matches references with one, and of a wildcard and a host of equal
// length the wildcard wins. A reference with tag and digest is a pull by digest.
func (c *Config) Resolve(ref imageref.Reference) Resolution {
	if c != nil && c.policy != nil && !c.policy.Permits(ref) {
		return Resolution{Blocked: true, Err: provider.Errorf(provider.ClassBlocked, "policy.json rejects %s", ref.Name())}
	}
	entry, length := c.match(ref.Name())
	if entry == nil {
		return Resolution{Candidates: []Candidate{{Reference: ref}}}
	}
	res := Resolution{Prefix: entry.Prefix, Blocked: entry.Blocked}
	rest := ref.Name()[length:]
	for _, m := range entry.Mirrors {
		if !m.serves(ref, entry.DigestOnly) {
			continue
		}
		moved, err := rewrite(ref, m.Location+rest)
		if err != nil {
			return failing(entry, m.Location, err)
		}
		if by, _ := c.match(moved.Name()); by != nil && by.Blocked {
			res.Skipped = append(res.Skipped, Skipped{Reference: moved, Prefix: by.Prefix})
			continue
		}
		res.Candidates = append(res.Candidates, Candidate{Reference: moved, Insecure: m.Insecure, Mirror: true})
	}
	source := ref
	if entry.Location != "" {
		moved, err := rewrite(ref, entry.Location+rest)
		if err != nil {
			return failing(entry, entry.Location, err)
		}
		source = moved
	}
	if by, _ := c.match(source.Name()); by != nil && by.Blocked {
		res.Blocked = true
	}
	if !res.Blocked {
		res.Candidates = append(res.Candidates, Candidate{Reference: source, Insecure: entry.Insecure})
	}
	return res
}

func (m Mirror) serves(ref imageref.Reference, digestOnly bool) bool {
	byDigest := ref.Digest() != ""
	switch {
	case digestOnly, m.Pull == PullDigest:
		return byDigest
	case m.Pull == PullTag:
		return !byDigest
	}
	return true
}

// rewrite gives ref at another name. What comes of it must be canonical as it
// stands: runtimes do not add library/ here.
func rewrite(ref imageref.Reference, name string) (imageref.Reference, error) {
	text := name + ref.String()[len(ref.Name()):]
	moved, err := imageref.Parse(text)
	switch {
	case err != nil:
		return imageref.Reference{}, err
	case moved.String() != text:
		return imageref.Reference{}, provider.Errorf(provider.ClassMalformed, "%s is not canonical, which would be %s", provider.Quote(text), moved)
	case len(moved.Name()) > maxName:
		return imageref.Reference{}, provider.Errorf(provider.ClassMalformed, "%s is longer than %d characters", provider.Quote(name), maxName)
	}
	return moved, nil
}

func failing(entry *Entry, location string, cause error) Resolution {
	return Resolution{
		Prefix: entry.Prefix, Blocked: entry.Blocked,
		Err: provider.Errorf(provider.ClassUnreachable,
			"registries.conf entry %s rewrites to %s what is then no reference, and every pull through it fails: %w",
			provider.Quote(entry.Prefix), provider.Quote(location), cause),
	}
}

// match finds the entry with the longest prefix that fits name, which is
// registry/repository, and how many bytes of name it covers.
func (c *Config) match(name string) (*Entry, int) {
	if c == nil || len(c.entries) == 0 {
		return nil, 0
	}
	best, covers := -1, 0
	try := func(prefix string, end int) {
		i, ok := c.byPrefix[prefix]
		if !ok {
			return
		}
		// The first of equal length in the order of prefixes wins.
		if best < 0 || len(prefix) > len(c.entries[best].Prefix) ||
			len(prefix) == len(c.entries[best].Prefix) && prefix < c.entries[best].Prefix {
			best, covers = i, end
		}
	}
	for end := 1; end <= len(name); end++ {
		if end == len(name) || name[end] == '/' || name[end] == ':' {
			try(name[:end], end)
		}
	}
	end := strings.IndexAny(name, ":/")
	if end < 0 {
		end = len(name)
	}
	for dot := 0; dot < end; dot++ {
		// The first occurrence in the name decides, as in the containers library.
		if name[dot] == '.' && strings.Index(name, name[dot:end]) == dot {
			try("*"+name[dot:end], end)
		}
	}
	if best < 0 {
		return nil, 0
	}
	return &c.entries[best], covers
}
