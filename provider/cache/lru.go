package cache

import "sync"

// chunkSize is how many nodes a table allocates at a time: small enough that
// an idle cache stays small, large enough that growth never copies a node.
const chunkSize = 1024

// nodeOverhead is what one entry costs in bytes beside its value's own heap:
// the node itself and its slot in the index.
const nodeOverhead = 96

// table is a map bounded by bytes that forgets the least recently used entry
// first. Nodes live in chunks and are linked by index, so that an entry costs
// no allocation and no pointer beside those of its value.
type table[V any] struct {
	mu sync.Mutex
	// index is one map for each first byte of a key, so that filling in from a
	// file, in the order of the keys, works on one small map at a time.
	index  [256]map[Key]int32
	count  int // of entries
	chunks []*[chunkSize]node[V]
	next   int32 // first node never used
	free   int32 // head of the list of freed nodes, -1 when empty
	newest int32 // most recently used, -1 when empty
	oldest int32
	bytes  int64
	limit  int64
	cost   func(V) int64    // heap of a value in bytes, beside nodeOverhead
	early  map[Key]struct{} // keys put since beginFill; nil when nothing is filled in
}

type node[V any] struct {
	key          Key
	newer, older int32
	value        V
}

func newTable[V any](limit int64, cost func(V) int64) *table[V] {
	return &table[V]{free: -1, newest: -1, oldest: -1, limit: limit, cost: cost}
}

func (t *table[V]) at(i int32) *node[V] { return &t.chunks[i/chunkSize][i%chunkSize] }

func (t *table[V]) get(k Key) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.index[k[0]][k]
	if !ok {
		var none V
		return none, false
	}
	t.touch(i)
	return t.at(i).value, true
}

// put stores a value and forgets others until the table is within its limit.
// A value that alone exceeds an eighth of the limit is not kept: one hostile
// image must not empty the cache.
func (t *table[V]) put(k Key, v V) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.early != nil {
		t.early[k] = struct{}{}
	}
	cost := t.cost(v) + nodeOverhead
	if i, ok := t.index[k[0]][k]; ok {
		t.bytes -= t.cost(t.at(i).value) + nodeOverhead
		if cost > t.limit/8 {
			t.remove(i)
			return false
		}
		t.at(i).value = v
		t.bytes += cost
		t.touch(i)
	} else {
		if cost > t.limit/8 {
			return false
		}
		i := t.take()
		n := t.at(i)
		n.key, n.value = k, v
		t.enter(k, i)
		t.bytes += cost
		t.pushNewest(i)
	}
	for t.bytes > t.limit && t.oldest >= 0 {
		i := t.oldest
		t.bytes -= t.cost(t.at(i).value) + nodeOverhead
		t.remove(i)
	}
	return true
}

// beginFill makes room in the index for so many entries, as far as the limit
// allows, and notes from here on what comes by put, which fill must not touch.
func (t *table[V]) beginFill(entries int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.early = make(map[Key]struct{}, t.count)
	each := min(int64(entries), t.limit/nodeOverhead) / int64(len(t.index))
	for first, part := range t.index {
		for k := range part {
			t.early[k] = struct{}{}
		}
		if part == nil {
			t.index[first] = make(map[Key]int32, each+each/8)
		}
	}
}

func (t *table[V]) endFill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.early = nil
}

// filled is an entry for fill.
type filled[V any] struct {
	key   Key
	value V
}

// fill adds entries, each key once between beginFill and endFill, as the least
// recently used ones and displaces none. It tells whether there is room for more.
func (t *table[V]) fill(entries []filled[V]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := range entries {
		e := &entries[n]
		if _, ok := t.early[e.key]; ok {
			continue
		}
		cost := t.cost(e.value) + nodeOverhead
		if cost > t.limit/8 {
			continue
		}
		if t.bytes+cost > t.limit {
			return false
		}
		i := t.take()
		n := t.at(i)
		n.key, n.value = e.key, e.value
		t.enter(e.key, i)
		t.bytes += cost
		t.pushOldest(i)
	}
	return true
}

func (t *table[V]) usage() (entries int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count, t.bytes
}

// remove unlinks a node and frees it; the caller has settled bytes.
func (t *table[V]) remove(i int32) {
	t.unlink(i)
	n := t.at(i)
	delete(t.index[n.key[0]], n.key)
	t.count--
	var none V
	n.value = none
	n.older = t.free
	t.free = i
}

// enter puts a new key into the index.
func (t *table[V]) enter(k Key, i int32) {
	part := t.index[k[0]]
	if part == nil {
		part = make(map[Key]int32)
		t.index[k[0]] = part
	}
	part[k] = i
	t.count++
}

func (t *table[V]) take() int32 {
	if i := t.free; i >= 0 {
		t.free = t.at(i).older
		return i
	}
	if int(t.next) == len(t.chunks)*chunkSize {
		t.chunks = append(t.chunks, new([chunkSize]node[V]))
	}
	i := t.next
	t.next++
	return i
}

func (t *table[V]) touch(i int32) {
	if t.newest == i {
		return
	}
	t.unlink(i)
	t.pushNewest(i)
}

func (t *table[V]) unlink(i int32) {
	n := t.at(i)
	if n.newer >= 0 {
		t.at(n.newer).older = n.older
	} else {
		t.newest = n.older
	}
	if n.older >= 0 {
		t.at(n.older).newer = n.newer
	} else {
		t.oldest = n.newer
	}
}

func (t *table[V]) pushNewest(i int32) {
	n := t.at(i)
	n.newer, n.older = -1, t.newest
	if t.newest >= 0 {
		t.at(t.newest).newer = i
	} else {
		t.oldest = i
	}
	t.newest = i
}

func (t *table[V]) pushOldest(i int32) {
	n := t.at(i)
	n.newer, n.older = t.oldest, -1
	if t.oldest >= 0 {
		t.at(t.oldest).older = i
	} else {
		t.newest = i
	}
	t.oldest = i
}
