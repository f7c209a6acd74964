package cache

import (
	"errors"
	"sync"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// fillBatch is how many records are read in one transaction: a long one would
// hold up writers that need the file to grow.
const fillBatch = 4096

var errStopped = errors.New("the store is closing")

// fill brings the answers and facts that the store keeps into memory, up to the
// bound of each table, and displaces nothing that is there. Meanwhile the cache
// asks the store for what it misses, as ever. Each kind of record is read by
// itself: their tables share no lock. Hints stay in the file: they are wanted only
// before a registry is asked, which takes a thousand times as long as reading one.
func (c *Cache) fill() {
	tooOld := agesAt(c.store.clock.Now())
	var running sync.WaitGroup
	running.Go(func() {
		fillTable(c.store, recordTag, c.tags, func(_ Key, payload, to []byte) ([]byte, error) {
			if len(payload) != tagPayload {
				return to, errDamaged
			}
			if tooOld.tag(payload) {
				return to, nil
			}
			return append(to, payload...), nil
		})
	})
	running.Go(func() {
		fillTable(c.store, recordFacts, c.facts, func(k Key, payload, to []byte) ([]byte, error) {
			if packed, ok := c.shapes.pack(to, payload); ok {
				if tooOld.other(payload) {
					return to, nil
				}
				return packed, nil
			}
			f, err := readFacts(payload, &c.shapes)
			if err == nil && !tooOld.other(payload) {
				c.facts.putOldest(k, f) // the first with its lists, or with a warning or verdict
			}
			return to, err
		})
	})
	running.Wait()
}

// fillTable reads all records of one kind into a table until it is full. pack
// appends what the table keeps of a payload to values, or nothing.
func fillTable[V any](s *Store, kind byte, t *table[V], pack func(k Key, payload, values []byte) ([]byte, error)) {
	t.beginFill()
	defer t.endFill()
	var keys []Key
	var values []byte
	room := true
	flush := func() {
		room = t.freeze(keys, values) && room
		keys, values = keys[:0], values[:0]
	}
	next := recordKey{kind}
	for more := true; more && room; {
		var db *bbolt.DB
		var err error
		more, db, err = s.scan(&next, func(k Key, payload []byte) error {
			if len(keys) > 0 && keys[0][0] != k[0] {
				flush()
			}
			before := len(values)
			var err error
			if values, err = pack(k, payload, values); len(values) > before {
				keys = append(keys, k)
			}
			return err
		})
		if err != nil {
			if !errors.Is(err, errStopped) && !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
				s.exchange(db, err)
			}
			return
		}
	}
	flush()
}

// scan gives take the payloads of up to fillBatch records, from the key next,
// in one transaction, and moves next behind the last one. more is false at the
// last record of the kind. db is the file that was read.
func (s *Store) scan(next *recordKey, take func(k Key, payload []byte) error) (more bool, db *bbolt.DB, err error) {
	select {
	case <-s.stop:
		return false, nil, errStopped
	default:
	}
	s.dbMu.RLock()
	defer s.dbMu.RUnlock()
	db = s.db
	if db == nil {
		return false, nil, errStopped
	}
	err = guard(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			cursor := tx.Bucket(bucketRecords).Cursor()
			n := 0
			for k, record := cursor.Seek(next[:]); len(k) > 0 && k[0] == next[0]; k, record = cursor.Next() {
				if len(k) != len(next) {
					return errDamaged
				}
				if n == fillBatch {
					copy(next[:], k)
					more = true
					return nil
				}
				n++
				payload, err := unseal(k, record)
				if err != nil {
					return err
				}
				if err := take(Key(k[1:]), payload); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return more, db, err
}
