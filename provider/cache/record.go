package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"slices"
	"time"

	"github.com/archkeeper/archkeeper/provider"
)

// A record is what a store keeps of one entry:
//
//	CRC-32C of all that follows and of the entry's key   4 bytes, big endian
//	payload
//
// The payload of a tag answer is its Checked (Unix milliseconds, 8 bytes), the
// key of its facts (16), Candidate and Credential. That of facts is written by
// appendFacts. That of a hint is when it was given (Unix seconds, 4 bytes).

var errDamaged = errors.New("a record is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli) //nolint:gochecknoglobals // a constant table

const checksumSize = 4

// seal puts the checksum in front of a payload that was appended to four bytes
// of room.
func seal(key, record []byte) []byte {
	binary.BigEndian.PutUint32(record, checksum(key, record[checksumSize:]))
	return record
}

// unseal gives the payload of a record whose checksum is right.
func unseal(key, record []byte) ([]byte, error) {
	if len(record) < checksumSize || binary.BigEndian.Uint32(record) != checksum(key, record[checksumSize:]) {
		return nil, errDamaged
	}
	return record[checksumSize:], nil
}

func checksum(key, payload []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, payload)
}

const (
	tagPayload  = 8 + 16 + 2
	hintPayload = 4
)

func appendTime(b []byte, at time.Time) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(at.Unix())) //nolint:gosec // G115: good until 2106
}

func appendTag(b []byte, e tagEntry) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(e.checked)) //nolint:gosec // G115: back to int64 when read
	b = append(b, e.facts[:]...)
	return append(b, byte(e.candidate), byte(e.credential)) //nolint:gosec // G115: back to int8 when read
}

func readTag(b []byte) (tagEntry, error) {
	if len(b) != tagPayload {
		return tagEntry{}, errDamaged
	}
	return tagEntry{
		checked: int64(binary.BigEndian.Uint64(b)), facts: Key(b[8:24]), candidate: int8(b[24]), credential: int8(b[25]), public: true, //nolint:gosec // G115: as written
	}, nil
}

// kinds and classes are written as positions in these lists, which only grow.
var (
	//nolint:gochecknoglobals // a constant
	kinds = []provider.Kind{"", provider.KindIndex, provider.KindManifest, provider.KindArtifact, provider.KindSchema1}
	//nolint:gochecknoglobals // a constant
	classes = append([]provider.Class{""}, provider.Classes()...)
)

const (
	flagContentOnly = 1 << iota
	flagPublic
)

// appendFacts writes: when they were kept (Unix seconds, 4 bytes), flags, kind,
// class of the error (0 for none), digest, its message, warnings, and the
// lists of platforms and architectures as shapes writes them. Texts and lists
// have their length before them.
func appendFacts(b []byte, f *Facts, now time.Time) []byte {
	b = appendTime(b, now)
	flags := byte(0)
	if f.ContentOnly {
		flags |= flagContentOnly
	}
	if f.Public {
		flags |= flagPublic
	}
	class, message := byte(0), ""
	if f.Err != nil {
		class, message = byte(max(slices.Index(classes, f.Err.Class), 0)), f.Err.Message //nolint:gosec // G115: a short list
	}
	b = append(b, flags, byte(max(slices.Index(kinds, f.Kind), 0)), class) //nolint:gosec // G115: a short list
	b = appendText(b, f.Digest)
	b = appendText(b, message)
	b = appendList(b, f.Warnings)
	b = appendList(b, f.Platforms)
	return appendList(b, f.Architectures)
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendList(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = appendText(b, s)
	}
	return b
}

// readFacts reads what appendFacts wrote.
func readFacts(b []byte, s *shapes) (*Facts, error) {
	if len(b) < 7 {
		return nil, errDamaged
	}
	flags, kind, class := b[4], int(b[5]), int(b[6])
	if kind >= len(kinds) || class >= len(classes) {
		return nil, errDamaged
	}
	r := reader{rest: b[7:]}
	f := &Facts{Kind: kinds[kind], ContentOnly: flags&flagContentOnly != 0, Public: flags&flagPublic != 0}
	f.Digest = r.text()
	message := r.text()
	f.Warnings = r.list()
	if class > 0 {
		f.Err = provider.Errorf(classes[class], "%s", message)
	}
	if r.failed {
		return nil, errDamaged
	}
	var err error
	if f.Platforms, f.Architectures, f.shared, err = s.read(r.rest); err != nil {
		return nil, err
	}
	return f, nil
}

// thawTag gives the tag answer of a payload that readTag has taken.
func thawTag(b []byte) tagEntry {
	e, err := readTag(b)
	if err != nil {
		return tagEntry{} // cannot be: the length is right
	}
	return e
}

// packedFacts is the width of packed facts: flags, kind, the position of their
// lists, a SHA-256. So little is enough for most.
const (
	packedFacts  = 2 + 2 + sha256.Size
	sha256Prefix = "sha256:"
)

// pack appends the packed form of what appendFacts wrote; false when it
// needs more room, or is damaged: readFacts tells.
func (s *shapes) pack(to, b []byte) ([]byte, bool) {
	const hexAt = 8 + len(sha256Prefix)
	const end = hexAt + 2*sha256.Size
	if len(b) < end+2 || int(b[5]) >= len(kinds) || b[6] != 0 || // no error
		int(b[7]) != end-8 || string(b[8:hexAt]) != sha256Prefix || b[end] != 0 || b[end+1] != 0 { // no message, no warnings
		return to, false
	}
	n, ok := s.find(b[end+2:])
	if !ok {
		return to, false
	}
	packed, err := hex.AppendDecode(binary.BigEndian.AppendUint16(append(to, b[4], b[5]), n), b[hexAt:end])
	if err != nil {
		return to, false
	}
	return packed, true
}

// thaw gives the facts of their packed form.
func (s *shapes) thaw(b []byte) *Facts {
	lists := s.at(binary.BigEndian.Uint16(b[2:]))
	return &Facts{
		Digest: sha256Prefix + hex.EncodeToString(b[4:]), Kind: kinds[b[1]],
		Platforms: lists.platforms, Architectures: lists.architectures, shared: true,
		ContentOnly: b[0]&flagContentOnly != 0, Public: b[0]&flagPublic != 0,
	}
}

type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) number() int {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > uint64(len(r.rest)) {
		r.failed = true
		return 0
	}
	r.rest = r.rest[size:]
	return int(n) //nolint:gosec // G115: bounded by a length
}

func (r *reader) text() string {
	n := r.number()
	if r.failed || n > len(r.rest) {
		r.failed = true
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

// list gives nil for an empty list.
func (r *reader) list() []string {
	n := r.number()
	if n == 0 || r.failed {
		return nil
	}
	list := make([]string, 0, min(n, 64))
	for range n {
		list = append(list, r.text())
		if r.failed {
			return nil
		}
	}
	return list
}
