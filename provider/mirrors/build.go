package mirrors

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

// Options of Build. The zero value has none.
type Options struct {
	// Protected are images without which nobody could mend a mistake, such as
	// Archkeeper's own. A blocked scope that would leave one of them without
	// any place to pull from is rejected.
	Protected []imageref.Reference
}

// Result is what the objects mean together.
type Result struct {
	// Config resolves references as a runtime with RegistriesConf would.
	Config *Config
	// Allowed are the scopes of allowedRegistries, sorted; they matter to
	// PolicyJSON alone. Nil when none are given.
	Allowed []string
	// Blocked are the scopes of blockedRegistries, sorted.
	Blocked []string
	// Rejected are the parts of the objects that do not count.
	Rejected []Problem
	// Conflicts are contradictions that were settled the stricter way.
	Conflicts []Problem
	// Warnings tell of rules that do not do what one would expect of them.
	Warnings []Problem
	// Notes tell of parts without effect.
	Notes []Problem

	emission  []string           // prefixes, in the order in which they are written
	origins   map[string]Problem // by prefix, the field that asked for the entry; "" for search registries
	protected []imageref.Reference
}

// merged is what all objects say about one source and one kind of pull.
type merged struct {
	lists [][]string
	order []string // of the mirrors, merged
	first Problem  // where the source is named first, for messages
	never bool
	allow *Problem // an entry that allows contact
}

// builder collects while Build goes over the objects, which are sorted.
type builder struct {
	digest, tag      map[string]*merged // by source; lists with a mirror alone
	insecure         map[string]Problem // by scope, with the field that says so
	blocked, allowed map[string]Problem
	search           []string
	searched         Problem // the first field with a search registry
	res              *Result
}

// Build merges objects. Their order and names do not matter to the Config and
// to what is written; the input is not changed. What cannot be accepted is
// reported, and everything else counts.
func Build(objects []Object, opts Options) *Result {
	objects = sorted(objects)
	b := read(objects)
	for {
		b.entries()
		scope, reference := b.cutsOff(opts.Protected)
		if scope == "" {
			break
		}
		at := b.blocked[scope]
		at.Reason = fmt.Sprintf("%s is rejected: it would leave %s without a place to pull from", provider.Quote(scope), reference)
		b.res.Rejected = append(b.res.Rejected, at)
		delete(b.blocked, scope)
	}
	b.settleAllowed()
	b.warn()
	b.res.protected = slices.Clone(opts.Protected)
	b.res.origins = map[string]Problem{"": b.searched}
	for _, prefix := range b.res.emission {
		b.res.origins[prefix] = b.origin(prefix)
	}
	return b.res
}

// sorted orders objects so that messages are the same whatever the order of
// the input: by kind, name and content.
func sorted(objects []Object) []Object {
	type keyed struct {
		Object
		content string // made when two objects have one name
	}
	list := make([]*keyed, 0, len(objects))
	for _, o := range objects {
		list = append(list, &keyed{Object: o})
	}
	content := func(k *keyed) string {
		if k.content == "" {
			k.content = fmt.Sprintf("%q", []any{k.lists, k.insecure, k.blocked, k.allowed, k.search, k.rejected})
		}
		return k.content
	}
	slices.SortStableFunc(list, func(a, b *keyed) int {
		if c := cmp.Or(strings.Compare(a.kind, b.kind), strings.Compare(a.name, b.name)); c != 0 {
			return c
		}
		return strings.Compare(content(a), content(b))
	})
	out := make([]Object, 0, len(list))
	for _, k := range list {
		out = append(out, k.Object)
	}
	return out
}

func read(objects []Object) *builder {
	b := &builder{
		digest: map[string]*merged{}, tag: map[string]*merged{},
		insecure: map[string]Problem{}, blocked: map[string]Problem{}, allowed: map[string]Problem{},
		res: &Result{},
	}
	for _, o := range objects {
		b.res.Rejected = append(b.res.Rejected, o.rejected...)
		into := b.digest
		if o.kind == KindTagMirrorSet {
			into = b.tag
		}
		for _, l := range o.lists {
			b.readList(into, o, l)
		}
		o.scopes(b.insecure, o.insecure)
		o.scopes(b.blocked, o.blocked)
		o.scopes(b.allowed, o.allowed)
		for _, it := range o.search {
			if !slices.Contains(b.search, it.text) {
				if len(b.search) == 0 {
					b.searched = o.at(it.field)
				}
				b.search = append(b.search, it.text)
			}
		}
	}
	for _, sets := range []map[string]*merged{b.digest, b.tag} {
		for _, source := range slices.Sorted(maps.Keys(sets)) {
			m := sets[source]
			m.order = mergeOrder(source, m.lists)
			if m.never && m.allow != nil {
				at := *m.allow
				at.Reason = fmt.Sprintf("%s for source %s contradicts %s of another entry; the source is not contacted", policyAllow, source, policyNever)
				b.res.Conflicts = append(b.res.Conflicts, at)
			}
		}
	}
	return b
}

func (o Object) at(field string) Problem { return Problem{Kind: o.kind, Name: o.name, Field: field} }

func (o Object) scopes(into map[string]Problem, items []item) {
	for _, it := range items {
		if _, known := into[it.text]; !known {
			into[it.text] = o.at(it.field)
		}
	}
}

// readList takes in one entry. One with no mirror but the source counts for
// nothing, its policy included.
func (b *builder) readList(into map[string]*merged, o Object, l list) {
	source := l.source.text
	var texts []string
	other, own := false, ""
	for _, m := range l.mirrors {
		texts = append(texts, m.text)
		if m.text != source {
			other = true
		} else if own == "" {
			own = m.field
		}
	}
	if !other {
		if l.policy.text == policyNever {
			at := o.at(l.policy.field)
			at.Reason = "without a mirror the policy has no effect, and the source stays reachable"
			b.res.Notes = append(b.res.Notes, at)
		}
		return
	}
	m, known := into[source]
	if !known {
		m = &merged{first: o.at(l.source.field)}
		into[source] = m
	}
	m.lists = append(m.lists, texts)
	switch {
	case l.policy.text == policyNever:
		m.never = true
		if own != "" {
			at := o.at(own)
			at.Reason = fmt.Sprintf("the source %s is not tried, although it is listed, because of %s", source, policyNever)
			b.res.Warnings = append(b.res.Warnings, at)
		}
	case o.kind != KindContentSourcePolicy && m.allow == nil: // an absent policy allows
		at := o.at(l.policy.field)
		m.allow = &at
	}
}

// entries makes the Config: an entry for each scope that is named, with all
// that it inherits written out, since runtimes look at the longest match alone.
func (b *builder) entries() {
	var emission []string
	known := map[string]bool{}
	add := func(scopes []string) {
		for _, scope := range scopes {
			if !known[scope] {
				known[scope] = true
				emission = append(emission, scope)
			}
		}
	}
	add(slices.Sorted(maps.Keys(b.digest)))
	add(slices.Sorted(maps.Keys(b.tag)))
	add(slices.Sorted(maps.Keys(b.blocked)))
	add(slices.Sorted(maps.Keys(b.insecure)))

	entries := make([]Entry, 0, len(emission))
	for _, scope := range emission {
		entries = append(entries, b.entry(scope))
	}
	b.res.emission = emission
	b.res.Config = newConfig(entries, slices.Clone(b.search))
}

func (b *builder) entry(scope string) Entry {
	e := Entry{Prefix: scope}
	if !isWildcard(scope) {
		e.Location = scope
	}
	var digest, tag []string
	for outer := range enclosing(scope) { // the nearest comes first
		if m := b.digest[outer]; m != nil {
			e.Blocked = e.Blocked || m.never
			if digest == nil {
				digest = b.inherit(scope, outer, m.order)
			}
		}
		if m := b.tag[outer]; m != nil {
			e.Blocked = e.Blocked || m.never
			if tag == nil {
				tag = b.inherit(scope, outer, m.order)
			}
		}
		if _, ok := b.blocked[outer]; ok {
			e.Blocked = true
		}
		if _, ok := b.insecure[outer]; ok {
			e.Insecure = true
		}
	}
	for _, location := range digest {
		e.Mirrors = append(e.Mirrors, Mirror{Location: location, Insecure: b.isInsecure(location), Pull: PullDigest})
	}
	for _, location := range tag {
		e.Mirrors = append(e.Mirrors, Mirror{Location: location, Insecure: b.isInsecure(location), Pull: PullTag})
	}
	return e
}

// inherit gives the mirrors of outer for scope, which is outer itself or
// nested in it.
func (b *builder) inherit(scope, outer string, order []string) []string {
	below := suffix(scope, outer)
	out := make([]string, 0, len(order))
	for _, m := range order {
		out = append(out, m+below)
	}
	return out
}

func (b *builder) isInsecure(location string) bool {
	if len(b.insecure) == 0 {
		return false
	}
	for outer := range enclosing(location) {
		if _, ok := b.insecure[outer]; ok {
			return true
		}
	}
	return false
}

// cutsOff finds a blocked scope because of which a protected image has no
// place left, and that image.
func (b *builder) cutsOff(protected []imageref.Reference) (scope, reference string) {
	if len(b.blocked) == 0 {
		return "", ""
	}
	for _, ref := range protected {
		if len(b.res.Config.Resolve(ref).Candidates) > 0 {
			continue
		}
		for outer := range enclosing(ref.Name()) {
			if _, ok := b.blocked[outer]; ok {
				return outer, ref.String()
			}
		}
	}
	return "", ""
}

// settleAllowed fills in Allowed and Blocked. Both together contradict each
// other, and then what is blocked counts.
func (b *builder) settleAllowed() {
	b.res.Blocked = slices.Sorted(maps.Keys(b.blocked))
	allowed := slices.Sorted(maps.Keys(b.allowed))
	if len(allowed) == 0 {
		return
	}
	if len(b.res.Blocked) == 0 {
		b.res.Allowed = allowed
		return
	}
	at := b.allowed[allowed[0]]
	at.Field, _, _ = strings.Cut(at.Field, "[")
	at.Reason = "it is rejected because blockedRegistries is set too; only one of them may be"
	b.res.Rejected = append(b.res.Rejected, at)
}

// warn tells of what runtimes do with the file and nobody would expect.
func (b *builder) warn() {
	locations := b.mirrorLocations()
	b.warnNarrower(b.blocked, locations, "%s lies inside the mirror %s, which is used for the rest all the same",
		func(m mirrorAt) bool { return !m.blocked })
	b.warnNarrower(b.insecure, locations, "%s lies inside the mirror %s, which stays secure as a whole: a mirror has one insecure flag",
		func(m mirrorAt) bool { return !m.insecure })
	for _, e := range b.res.Config.entries {
		if isWildcard(e.Prefix) || strings.ContainsAny(e.Prefix, "/:") {
			continue
		}
		_, rest, _ := strings.Cut(e.Prefix, ".")
		wildcard := "*." + rest
		at, ok := b.res.Config.byPrefix[wildcard]
		if !ok || len(wildcard) != len(e.Prefix) || sameMeaning(e, b.res.Config.entries[at]) {
			continue
		}
		p := b.origin(e.Prefix)
		p.Reason = fmt.Sprintf("runtimes use the entry of %s for %s, because both are equally long", wildcard, e.Prefix)
		b.res.Warnings = append(b.res.Warnings, p)
	}
}

func sameMeaning(a, b Entry) bool {
	return a.Insecure == b.Insecure && a.Blocked == b.Blocked && slices.Equal(a.Mirrors, b.Mirrors)
}

// origin is the field that made the entry of a scope.
func (b *builder) origin(scope string) Problem {
	if m := b.digest[scope]; m != nil {
		return m.first
	}
	if m := b.tag[scope]; m != nil {
		return m.first
	}
	if p, ok := b.blocked[scope]; ok {
		return p
	}
	return b.insecure[scope]
}

// mirrorAt is what holds at the location of a mirror.
type mirrorAt struct{ insecure, blocked bool }

func (b *builder) mirrorLocations() map[string]mirrorAt {
	locations := map[string]mirrorAt{}
	if len(b.blocked)+len(b.insecure) == 0 {
		return locations
	}
	for _, e := range b.res.Config.entries {
		for _, m := range e.Mirrors {
			if _, known := locations[m.Location]; !known {
				locations[m.Location] = mirrorAt{insecure: m.Insecure, blocked: b.isBlocked(m.Location)}
			}
		}
	}
	return locations
}

// warnNarrower tells of scopes that lie inside a mirror's location and hold for
// a part of it alone.
func (b *builder) warnNarrower(scopes map[string]Problem, locations map[string]mirrorAt, reason string, matters func(mirrorAt) bool) {
	for _, scope := range slices.Sorted(maps.Keys(scopes)) {
		for outer := range enclosing(scope) {
			if m, ok := locations[outer]; ok && outer != scope && matters(m) {
				p := scopes[scope]
				p.Reason = fmt.Sprintf(reason, scope, outer)
				b.res.Warnings = append(b.res.Warnings, p)
				break
			}
		}
	}
}

func (b *builder) isBlocked(location string) bool {
	for outer := range enclosing(location) {
		if _, ok := b.blocked[outer]; ok {
			return true
		}
	}
	return false
}
