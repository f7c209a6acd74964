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
	mu     sync.Mutex
	index  map[Key]int32
	frozen frozen[V]
	chunks []*[chunkSize]node[V]
	next   int32 // first node never used
	free   int32 // head of the list of freed nodes, -1 when empty
	newest int32 // most recently used, -1 when empty
	oldest int32
	bytes  int64
	limit  int64
	cost   func(V) int64 // heap of a value in bytes, beside nodeOverhead
	early  *[256][]Key   // keys put since beginFill, by first byte; nil when nothing is filled in
}

type node[V any] struct {
	key          Key
	newer, older int32
	value        V
}

func newTable[V any](limit int64, cost func(V) int64) *table[V] {
	return &table[V]{index: map[Key]int32{}, free: -1, newest: -1, oldest: -1, limit: limit, cost: cost}
}

func (t *table[V]) at(i int32) *node[V] { return &t.chunks[i/chunkSize][i%chunkSize] }

func (t *table[V]) get(k Key) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.index[k]
	if !ok {
		v, ok := t.frozen.take(k)
		if ok {
			t.add(k, v)
		}
		return v, ok
	}
	t.touch(i)
	return t.at(i).value, true
}

// add enters a key that is not there as the most recently used one. The lock is
// held.
func (t *table[V]) add(k Key, v V) {
	i := t.take()
	n := t.at(i)
	n.key, n.value = k, v
	t.index[k] = i
	t.bytes += t.cost(v) + nodeOverhead
	t.pushNewest(i)
	t.shrink()
}

// shrink forgets others until the table is within its limit: those that nobody
// asked for, then the least recently used. The lock is held.
func (t *table[V]) shrink() {
	for t.bytes+t.frozen.bytes > t.limit && t.frozen.count > 0 {
		t.frozen.shrink()
	}
	for t.bytes > t.limit && t.oldest >= 0 {
		i := t.oldest
		t.bytes -= t.cost(t.at(i).value) + nodeOverhead
		t.remove(i)
	}
}

// put stores a value and forgets others until the table is within its limit.
// A value that alone exceeds an eighth of the limit is not kept: one hostile
// image must not empty the cache.
func (t *table[V]) put(k Key, v V) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.enter(k, v)
}

// putUnlessThere is put for what was read elsewhere meanwhile: what is there is
// younger, and stays. It gives the value that counts.
func (t *table[V]) putUnlessThere(k Key, v V) V {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.index[k]; ok {
		t.touch(i)
		return t.at(i).value
	}
	t.enter(k, v)
	return v
}

// enter is put. The lock is held.
func (t *table[V]) enter(k Key, v V) bool {
	if t.early != nil {
		t.early[k[0]] = append(t.early[k[0]], k)
	}
	t.frozen.take(k)
	cost := t.cost(v) + nodeOverhead
	i, ok := t.index[k]
	switch {
	case cost > t.limit/8:
		if ok {
			t.bytes -= t.cost(t.at(i).value) + nodeOverhead
			t.remove(i)
		}
		return false
	case ok:
		t.bytes += cost - t.cost(t.at(i).value) - nodeOverhead
		t.at(i).value = v
		t.touch(i)
		t.shrink()
	default:
		t.add(k, v)
	}
	return true
}

func (t *table[V]) usage() (entries int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.index) + t.frozen.count, t.bytes + t.frozen.bytes
}

// remove unlinks a node and frees it; the caller has settled bytes.
func (t *table[V]) remove(i int32) {
	t.unlink(i)
	n := t.at(i)
	delete(t.index, n.key)
	var none V
	n.value = none
	n.older = t.free
	t.free = i
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
