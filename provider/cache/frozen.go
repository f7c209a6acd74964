package cache

import (
	"bytes"
	"slices"
)

// frozen is what was read from a file before anybody asked for it: entries of a
// fixed width in the order of their keys, in one part for each first byte of a
// key. They take a fraction of what a node takes, no allocation each, and hold no
// pointer. One that is asked for becomes a node; the rest gives way, part by
// part, when nodes need the room: the file has it still.
type frozen[V any] struct {
	width int            // of a value in bytes
	thaw  func([]byte) V // gives the value of so many bytes
	parts [256]frozenPart
	count int   // of entries
	bytes int64 // of all parts
	next  int   // the part to give way next
}

// frozenPart holds keys in order. The value of key n is values[n*width:], and
// gone[n] once it is wanted no more.
type frozenPart struct {
	keys   []Key
	values []byte
	gone   []bool
	left   int
}

func (p *frozenPart) bytes() int64 {
	return int64(len(p.keys)*(len(Key{})+1) + len(p.values))
}

func (p *frozenPart) find(k Key) (int, bool) {
	n, ok := slices.BinarySearchFunc(p.keys, k, func(a, b Key) int { return bytes.Compare(a[:], b[:]) })
	return n, ok && !p.gone[n]
}

// take gives an entry and drops it.
func (f *frozen[V]) take(k Key) (v V, ok bool) {
	p := &f.parts[k[0]]
	if p.left == 0 {
		return v, false
	}
	n, ok := p.find(k)
	if !ok {
		return v, false
	}
	v = f.thaw(p.values[n*f.width : (n+1)*f.width])
	p.gone[n] = true
	p.left--
	f.count--
	if p.left == 0 {
		f.drop(int(k[0]))
	}
	return v, true
}

// drop frees a part.
func (f *frozen[V]) drop(first int) {
	p := &f.parts[first]
	f.bytes -= p.bytes()
	f.count -= p.left
	*p = frozenPart{}
}

// shrink frees one part of those that hold something; there must be one.
func (f *frozen[V]) shrink() {
	for f.parts[f.next].left == 0 {
		f.next = (f.next + 1) % len(f.parts)
	}
	f.drop(f.next)
}

// freeze adds entries whose keys all begin with the same byte, in order, and
// leaves out those that were put since beginFill. It displaces nothing, and
// tells whether there was room. Key and values are copied.
func (t *table[V]) freeze(keys []Key, values []byte) bool {
	if len(keys) == 0 {
		return true
	}
	p := frozenPart{keys: slices.Clone(keys), values: bytes.Clone(values), gone: make([]bool, len(keys)), left: len(keys)}
	first := keys[0][0]
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bytes+t.frozen.bytes+p.bytes() > t.limit {
		return false
	}
	t.frozen.parts[first] = p
	t.frozen.count += p.left
	t.frozen.bytes += p.bytes()
	if t.early != nil {
		for _, k := range t.early[first] {
			t.frozen.take(k)
		}
	}
	return true
}

// beginFill notes from here on what comes by put, which freeze must not touch.
func (t *table[V]) beginFill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.early = &[256][]Key{}
	for k := range t.index {
		t.early[k[0]] = append(t.early[k[0]], k)
	}
}

func (t *table[V]) endFill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.early = nil
}

// putOldest adds an entry as the least recently used one. It displaces nothing,
// neither what is there nor what was put since beginFill.
func (t *table[V]) putOldest(k Key, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	cost := t.cost(v) + nodeOverhead
	if cost > t.limit/8 || t.bytes+t.frozen.bytes+cost > t.limit || t.early != nil && slices.Contains(t.early[k[0]], k) {
		return
	}
	if _, ok := t.index[k]; ok {
		return
	}
	i := t.take()
	n := t.at(i)
	n.key, n.value = k, v
	t.index[k] = i
	t.bytes += cost
	t.pushOldest(i)
}
