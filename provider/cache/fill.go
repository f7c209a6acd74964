package cache

import (
	"encoding/binary"
	"errors"
	"sync"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// fillBatch is how many records are read in one transaction: a long one would
// hold up writers that need the file to grow.
const fillBatch = 4096

var errStopped = errors.New("the store is closing")

// fill brings the answers and facts that the store keeps into memory, up to the bound of each table,
// and displaces nothing that is there. Meanwhile the cache asks the store for
// what it misses, as ever. Each kind of record is read by itself: their tables
// share no lock. Hints stay in the file: they are wanted only before a registry
// is asked, which takes a thousand times as long as reading one.
func (c *Cache) fill() {
	now := c.store.clock.Now()
	total := c.store.count()
	var running sync.WaitGroup
	running.Go(func() {
		fillTable(c.store, recordTag, c.tags, total/2, func(payload []byte) (tagEntry, bool, error) {
			e, err := readTag(payload)
			return e, err == nil && !c.store.expired(recordTag, payload, now), err
		})
	})
	running.Go(func() {
		fillTable(c.store, recordFacts, c.facts, total/4, func(payload []byte) (*Facts, bool, error) {
			f, err := readFacts(payload, &c.shapes)
			return f, err == nil && !c.store.expired(recordFacts, payload, now), err
		})
	})
	running.Wait()
}

// fillTable reads all records of one kind into a table until it is full.
// expected is about how many there are.
func fillTable[V any](s *Store, kind byte, t *table[V], expected int, read func(payload []byte) (v V, good bool, err error)) {
	t.beginFill(expected)
	defer t.endFill()
	batch := make([]filled[V], 0, fillBatch)
	next := recordKey{kind}
	for more := true; more; {
		batch = batch[:0]
		var db *bbolt.DB
		var err error
		more, db, err = s.scan(&next, func(k Key, payload []byte) error {
			v, good, err := read(payload)
			if good {
				batch = append(batch, filled[V]{k, v})
			}
			return err
		})
		if err != nil {
			if !errors.Is(err, errStopped) && !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
				s.exchange(db, err)
			}
			return
		}
		more = t.fill(batch) && more
	}
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

// count gives how many records the file has, about.
func (s *Store) count() int {
	s.dbMu.RLock()
	defer s.dbMu.RUnlock()
	total := uint64(0)
	if s.db != nil {
		_ = guard(func() error { // it is only an estimate
			return s.db.View(func(tx *bbolt.Tx) error {
				if noted := tx.Bucket(bucketMeta).Get(keyCount); len(noted) == 8 {
					total = min(binary.BigEndian.Uint64(noted), maxRecords)
				}
				return nil
			})
		})
	}
	return int(total) //nolint:gosec // G115: bounded
}
