// Package cache remembers what registries said, bounded by bytes, and keeps
// apart what callers with different credentials may know.
//
// It holds three things, each under a Key that is a hash:
//
//   - tag answers: what a reference named for one set of credentials, and the
//     failures of late;
//   - facts: what stands behind a digest at one registry host. Facts are shared
//     between callers, so a caller may be given them only after the registry
//     let the caller's own credentials reach that digest: a tag answer under a
//     key of these credentials is the proof that it did;
//   - hints that a reference was seen by somebody, which decide whether asking
//     for the digest alone is likely to be enough. A hint holds no answer.
//
// The package makes no decision about who may know what: the keys that its
// caller builds do. It does no I/O but that of its optional tiers.
package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/archkeeper/archkeeper/provider"
)

// Key names an entry: the first 16 bytes of a SHA-256.
type Key [16]byte

// KeyOf hashes parts, each with its length before it, so that no two different
// lists of parts have the same input.
func KeyOf(parts ...string) Key {
	var buf [256]byte
	b := buf[:0]
	for _, p := range parts {
		b = binary.AppendUvarint(b, uint64(len(p)))
		b = append(b, p...)
	}
	sum := sha256.Sum256(b)
	return Key(sum[:16])
}

// Facts are what stands behind a digest. They are immutable and shared.
type Facts struct {
	// Digest as "algorithm:hex".
	Digest string
	// Kind of the content.
	Kind provider.Kind
	// Platforms and Architectures as in provider.Answer.
	Platforms     []string
	Architectures []string
	// ContentOnly as in provider.Answer.
	ContentOnly bool
	// Warnings as in provider.Answer.
	Warnings []string
	// Err is a durable verdict on the content, or nil.
	Err *provider.Error
	// Public is true when a registry gave the content to an anonymous caller.
	Public bool

	// shared is true when the two lists are counted by no entry of their own.
	shared bool
}

// Tag is what a reference named, for one set of credentials.
type Tag struct {
	// Facts is the key of the content's facts; zero when Err is set.
	Facts Key
	// Checked is when a registry last confirmed it.
	Checked time.Time
	// Candidate is the position of the location that answered, and Credential
	// that of the credential it accepted there; -1 for anonymous.
	Candidate, Credential int8
	// Public is true when the answer was got without any credential and none
	// was at hand, so that everybody may know it.
	Public bool
	// Err is a failure of late, or nil. It holds until Until.
	Err   *provider.Error
	Until time.Time
}

// tagEntry is Tag as it is kept: 40 bytes.
type tagEntry struct {
	facts                 Key
	checked               int64 // Unix milliseconds
	err                   *failure
	candidate, credential int8
	public                bool
}

type failure struct {
	err   *provider.Error
	until int64 // Unix milliseconds
}

// Options of a Cache.
type Options struct {
	// MaxBytes of heap that the cache may take, about; 64 MiB when zero.
	MaxBytes int64
	// Store makes restarts warm; nil for none. What is kept goes there too,
	// except tag answers that need credentials: their keys die with the process.
	Store *Store
	// Shared is a tier that replicas share; nil for none. It is given what
	// everybody may know, and asked by SharedTag and SharedFacts alone.
	Shared *Shared
}

// DefaultMaxBytes of a Cache.
const DefaultMaxBytes = 64 << 20

// Cache is safe for concurrent use.
type Cache struct {
	tags   *table[tagEntry]
	facts  *table[*Facts]
	hints  *table[struct{}]
	shapes shapes
	store  *Store
	shared *Shared
	warm   chan struct{}
}

// New makes a Cache. What its store keeps is brought into memory behind, up to
// MaxBytes, until the store is closed.
func New(o Options) *Cache {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	share := func(percent int64) int64 { return o.MaxBytes / 100 * percent }
	c := &Cache{
		warm:   make(chan struct{}),
		store:  o.Store,
		shared: o.Shared,
		tags:   newTable(share(40), tagCost),
		facts:  newTable(share(48), factsCost),
		hints:  newTable(share(12), func(struct{}) int64 { return 0 }),
		shapes: shapes{known: make(map[string]uint16)},
	}
	c.tags.frozen.width, c.tags.frozen.thaw = tagPayload, thawTag
	c.facts.frozen.width, c.facts.frozen.thaw = packedFacts, c.shapes.thaw
	if c.store == nil || !c.store.begin(func() { defer close(c.warm); c.fill() }) {
		close(c.warm)
	}
	return c
}

// Warm is closed when what the store keeps is in memory, or as much of it as
// may be.
func (c *Cache) Warm() <-chan struct{} { return c.warm }

func tagCost(e tagEntry) int64 {
	if e.err == nil {
		return 0
	}
	return 160 + int64(len(e.err.err.Message))
}

func factsCost(f *Facts) int64 {
	n := int64(224) // the struct and its digest
	for _, w := range f.Warnings {
		n += 16 + int64(len(w))
	}
	if f.Err != nil {
		n += 96 + int64(len(f.Err.Message))
	}
	if !f.shared {
		n += sliceCost(f.Platforms) + sliceCost(f.Architectures)
	}
	return n
}

func sliceCost(s []string) int64 {
	n := int64(0)
	for _, v := range s {
		n += 16 + int64(len(v))
	}
	return n
}

// Tag gives the answer kept under a key, fresh or stale: the caller decides by
// Checked. A failure is given until it runs out.
func (c *Cache) Tag(k Key, now time.Time) (Tag, bool) {
	e, ok := c.tags.get(k)
	if !ok && c.store != nil {
		if e, ok = c.store.tag(k); ok {
			e = c.tags.putUnlessThere(k, e)
		}
	}
	if !ok {
		return Tag{}, false
	}
	t := Tag{Facts: e.facts, Candidate: e.candidate, Credential: e.credential, Public: e.public}
	if e.checked != 0 {
		t.Checked = time.UnixMilli(e.checked)
	}
	if e.err != nil {
		if until := time.UnixMilli(e.err.until); now.Before(until) {
			t.Err, t.Until = e.err.err, until
		} else if e.facts == (Key{}) {
			return Tag{}, false
		}
	}
	return t, true
}

// PutTag keeps an answer. A Tag that has both Facts and Err is a known answer
// that could not be confirmed of late. One that has Err alone takes back what was
// kept: in the store too, and in the shared tier when it is what a registry said,
// so that neither a restart nor a replica brings it back.
func (c *Cache) PutTag(k Key, t Tag) {
	e := tagEntry{facts: t.Facts, candidate: t.Candidate, credential: t.Credential, public: t.Public}
	if !t.Checked.IsZero() {
		e.checked = t.Checked.UnixMilli()
	}
	if t.Err != nil {
		e.err = &failure{err: t.Err, until: t.Until.UnixMilli()}
	}
	c.tags.put(k, e)
	switch {
	case !e.public:
		return
	case e.err != nil:
		if e.facts == (Key{}) {
			c.takeBack(k, t.Err.Class)
		}
		return
	}
	if c.store != nil {
		c.store.write(recordTag, k, appendTag(make([]byte, checksumSize, checksumSize+tagPayload), e))
	}
	if c.shared != nil {
		c.shared.put(recordTag, k, appendTag(make([]byte, checksumSize, checksumSize+tagPayload), e))
	}
}

// takeBack has the tiers forget an answer. An outage here, or a rule of this
// process, says nothing of what other replicas may answer.
func (c *Cache) takeBack(k Key, class provider.Class) {
	if c.store != nil {
		c.store.write(recordTag, k, nil)
	}
	if c.shared == nil {
		return
	}
	switch class { //nolint:exhaustive // the others are no word of a registry's
	case provider.ClassNotFound, provider.ClassUnauthorized, provider.ClassInvalidContent, provider.ClassNotRunnable:
		c.shared.remove(recordTag, k)
	}
}

// Facts gives what is known of a digest.
func (c *Cache) Facts(k Key) (*Facts, bool) {
	f, ok := c.facts.get(k)
	if !ok && c.store != nil {
		if f, ok = c.store.facts(k, &c.shapes); ok {
			f = c.facts.putUnlessThere(k, f)
		}
	}
	return f, ok
}

// PutFacts keeps facts. Equal lists of platforms are kept once. What was once
// public stays so.
func (c *Cache) PutFacts(k Key, f *Facts) *Facts {
	kept := *f
	kept.Platforms, kept.Architectures, kept.shared = c.shapes.share(f.Platforms, f.Architectures)
	if old, ok := c.Facts(k); ok && old.Public {
		kept.Public = true
	}
	if !c.facts.put(k, &kept) {
		return &kept // too large to be kept anywhere
	}
	if c.store != nil {
		c.store.write(recordFacts, k, appendFacts(make([]byte, checksumSize, 256), &kept, c.store.clock.Now()))
	}
	if c.shared != nil && kept.Public {
		c.shared.put(recordFacts, k, appendFacts(make([]byte, checksumSize, 256), &kept, c.shared.clock.Now()))
	}
	return &kept
}

// Seen tells whether somebody was given an answer for a reference.
func (c *Cache) Seen(k Key) bool {
	_, ok := c.hints.get(k)
	if !ok && c.store != nil && c.store.hint(k) {
		c.hints.put(k, struct{}{})
		return true
	}
	return ok
}

// MarkSeen keeps the hint that Seen reads.
func (c *Cache) MarkSeen(k Key) {
	if _, ok := c.hints.get(k); ok {
		return
	}
	c.hints.put(k, struct{}{})
	if c.store != nil {
		c.store.write(recordHint, k, appendTime(make([]byte, checksumSize, checksumSize+hintPayload), c.store.clock.Now()))
	}
}

// Usage gives the number of tag answers and facts, and the bytes that the
// cache believes to hold.
func (c *Cache) Usage() (tags, facts int, bytes int64) {
	tags, tagBytes := c.tags.usage()
	facts, factBytes := c.facts.usage()
	_, hintBytes := c.hints.usage()
	return tags, facts, tagBytes + factBytes + hintBytes
}
