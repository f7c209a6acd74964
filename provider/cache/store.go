package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
)

const (
	// storeFormat of the file. A file with a greater one is set aside.
	storeFormat = 1

	// flushInterval is how often what was kept is written, in one transaction.
	flushInterval = 2 * time.Second
	// maxPending bounds the entries that wait to be written; those beyond it
	// are not: a cache may forget.
	maxPending = 1 << 16
	// maxRecords bounds the records of the file.
	maxRecords = 1 << 19
	// factsLife and tagLife are how long a record is worth reading.
	factsLife = 30 * 24 * time.Hour
	tagLife   = 48 * time.Hour
	lockWait  = 5 * time.Second
)

// The first byte of a record's key.
const (
	recordTag   = 't'
	recordFacts = 'f'
	recordHint  = 'h'
)

var (
	bucketMeta    = []byte("meta")
	bucketRecords = []byte("records")
	keyFormat     = []byte("format")
	keyCounts     = []byte("counts")
)

type recordKey [17]byte

// StoreOptions of a Store.
type StoreOptions struct {
	// Path of the file. Its folder must be there.
	Path string
	// Log hears of files that are set aside and of writes that fail.
	Log *slog.Logger
	// Clock; nil for the real one.
	Clock clock.Clock
}

// Store is a file that keeps what a Cache holds across restarts. It holds
// digests, platforms and hashes of references, never a name or a secret; its
// mode is 0600 all the same.
//
// Entries are written behind, many in one transaction. Each has a checksum. A
// file that is corrupt, or of a later format, is renamed and a new one begun,
// with one line in the log: a cache may be lost, and must never stop the start.
type Store struct {
	path  string
	log   *slog.Logger
	clock clock.Clock
	db    *bbolt.DB

	mu      sync.Mutex
	pending map[recordKey][]byte // nil to delete
	records map[byte]int         // in the file, by kind
	failed  bool                 // the last write did

	stop, stopped chan struct{}
	once          sync.Once
}

// OpenStore opens the file of a Store or makes it. An error is one of the file
// system, such as a folder that is not there, or another process that holds the
// file.
func OpenStore(o StoreOptions) (*Store, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{path: o.Path, log: o.Log, clock: o.Clock, pending: map[recordKey][]byte{}, records: map[byte]int{}, stop: make(chan struct{}), stopped: make(chan struct{})}
	err := s.open()
	if damaged(err) {
		if err = s.setAside(err); err == nil {
			err = s.open()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("opening the cache's store %s: %w", o.Path, err)
	}
	go s.run()
	return s, nil
}

var errNewer = errors.New("the file is of a later format")

// damaged tells whether an error is the content's, not the file system's.
func damaged(err error) bool {
	for _, kind := range []error{
		errNewer, errDamaged, bolterrors.ErrInvalid, bolterrors.ErrVersionMismatch, bolterrors.ErrChecksum, bolterrors.ErrInvalidMapping,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func (s *Store) open() (err error) {
	return guard(func() error {
		// The list of free pages is written with each transaction. Without it
		// bbolt looks for them in a goroutine of its own, whose panic at a
		// damaged page nobody could catch.
		db, err := bbolt.Open(s.path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType})
		if err != nil {
			return err
		}
		s.db = db
		ready := false
		err = db.View(func(tx *bbolt.Tx) error {
			meta := tx.Bucket(bucketMeta)
			ready = meta != nil && tx.Bucket(bucketRecords) != nil && bytes.Equal(meta.Get(keyFormat), []byte{storeFormat})
			return nil
		})
		if ready || err != nil {
			return err
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			meta, err := tx.CreateBucketIfNotExists(bucketMeta)
			if err != nil {
				return err
			}
			switch format := meta.Get(keyFormat); {
			case format == nil:
				err = meta.Put(keyFormat, []byte{storeFormat})
			case len(format) != 1 || format[0] > storeFormat:
				err = errNewer
			}
			if err != nil {
				return err
			}
			_, err = tx.CreateBucketIfNotExists(bucketRecords)
			return err
		})
		if err != nil {
			_ = db.Close() // the error before it is the one to tell
		}
		return err
	})
}

// guard turns a panic, or a fault of memory that is mapped to a file cut short,
// into errDamaged.
func guard(work func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%w: %v", errDamaged, fault)
		}
	}()
	return work()
}

// setAside renames the file and says so.
func (s *Store) setAside(cause error) error {
	aside := fmt.Sprintf("%s.set-aside-%d", s.path, s.clock.Now().Unix())
	if err := os.Rename(s.path, aside); err != nil {
		return err
	}
	s.log.Warn("the cache's store cannot be read; it was set aside and a new one begun", "file", s.path, "as", aside, "error", cause)
	return nil
}

// fill puts the records into a cache. A file that turns out to be damaged is
// set aside, and the cache stays as empty as it was.
func (s *Store) fill(c *Cache) {
	if err := guard(func() error { return s.read(c) }); err != nil {
		c.tags.reset()
		c.facts.reset()
		c.hints.reset()
		s.mu.Lock()
		s.pending, s.records = map[recordKey][]byte{}, map[byte]int{}
		s.mu.Unlock()
		_ = guard(s.db.Close) // what is mapped to a broken file may fault again
		if err := s.setAside(err); err != nil {
			s.log.Warn("the cache's store could not be set aside", "file", s.path, "error", err)
		}
		if err := s.open(); err != nil {
			s.log.Warn("the cache goes on without its store", "file", s.path, "error", err)
			s.mu.Lock()
			s.db = nil
			s.mu.Unlock()
		}
	}
}

// read fills the three tables at the same time: records of one kind stand
// together in the file, and no table needs another.
func (s *Store) read(c *Cache) error {
	now := s.clock.Now()
	oldTag, oldFacts, future := now.Add(-tagLife).UnixMilli(), now.Add(-factsLife), now.Add(time.Hour).UnixMilli()
	counts := s.counts()
	var group errgroup.Group
	group.Go(func() error {
		return guard(func() error {
			return c.tags.load(counts[recordTag], func(keep func(Key, tagEntry)) error {
				return s.each(recordTag, func(key Key, payload []byte) error {
					e, err := readTag(payload)
					if err != nil {
						return err
					}
					if e.checked < oldTag || e.checked > future {
						s.write(recordTag, key, nil)
						return nil
					}
					keep(key, e)
					return nil
				})
			})
		})
	})
	group.Go(func() error {
		return guard(func() error {
			return c.facts.load(counts[recordFacts], func(keep func(Key, *Facts)) error {
				return s.each(recordFacts, func(key Key, payload []byte) error {
					f, at, err := readFacts(payload, &c.shapes)
					if err != nil {
						return err
					}
					if at.Before(oldFacts) {
						s.write(recordFacts, key, nil)
						return nil
					}
					keep(key, f)
					return nil
				})
			})
		})
	})
	group.Go(func() error {
		return guard(func() error {
			return c.hints.load(counts[recordHint], func(keep func(Key, struct{})) error {
				return s.each(recordHint, func(key Key, _ []byte) error {
					keep(key, struct{}{})
					return nil
				})
			})
		})
	})
	return group.Wait()
}

// each reads the records of one kind, checksums included.
func (s *Store) each(kind byte, read func(key Key, payload []byte) error) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		cursor := tx.Bucket(bucketRecords).Cursor()
		n := 0
		for k, record := cursor.Seek([]byte{kind}); len(k) > 0 && k[0] == kind; k, record = cursor.Next() {
			if len(k) != len(recordKey{}) {
				return errDamaged
			}
			payload, err := unseal(k, record)
			if err != nil {
				return err
			}
			if err := read(Key(k[1:]), payload); err != nil {
				return err
			}
			n++
		}
		s.mu.Lock()
		s.records[kind] = n
		s.mu.Unlock()
		return nil
	})
}

// counts gives how many records of each kind there are, as the last write noted.
func (s *Store) counts() map[byte]int {
	counts := map[byte]int{}
	_ = guard(func() error { // a guess for the size of maps; what is damaged shows when it is read
		return s.db.View(func(tx *bbolt.Tx) error {
			noted := tx.Bucket(bucketMeta).Get(keyCounts)
			for len(noted) >= 5 {
				counts[noted[0]] = int(min(binary.BigEndian.Uint32(noted[1:]), maxRecords))
				noted = noted[5:]
			}
			return nil
		})
	})
	return counts
}

// write has a record written, or deleted when it is nil, with the next flush.
// The first four bytes of record are room for its checksum.
func (s *Store) write(kind byte, key Key, record []byte) {
	var k recordKey
	k[0] = kind
	copy(k[1:], key[:])
	if record != nil {
		seal(k[:], record)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, waits := s.pending[k]; !waits && len(s.pending) >= maxPending {
		return
	}
	s.pending[k] = record
}

func (s *Store) run() {
	defer close(s.stopped)
	ticker := time.NewTicker(flushInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.Flush()
		case <-s.stop:
			s.Flush()
			return
		}
	}
}

// Flush writes what waits, in one transaction, without waiting for the next
// interval. What cannot be written is lost.
func (s *Store) Flush() {
	s.mu.Lock()
	pending, db, records, total := s.pending, s.db, maps.Clone(s.records), 0
	s.pending = make(map[recordKey][]byte)
	s.mu.Unlock()
	if len(pending) == 0 || db == nil {
		return
	}
	for _, n := range records {
		total += n
	}
	err := guard(func() error {
		return db.Update(func(tx *bbolt.Tx) error {
			bucket := tx.Bucket(bucketRecords)
			for k, record := range pending {
				there := bucket.Get(k[:]) != nil
				var err error
				switch {
				case record == nil:
					err = bucket.Delete(k[:])
					if there {
						records[k[0]]--
						total--
					}
				case there:
					err = bucket.Put(k[:], record)
				case total < maxRecords:
					err = bucket.Put(k[:], record)
					records[k[0]]++
					total++
				}
				if err != nil {
					return err
				}
			}
			var noted []byte
			for _, kind := range []byte{recordTag, recordFacts, recordHint} {
				noted = append(noted, kind)
				noted = binary.BigEndian.AppendUint32(noted, uint32(records[kind])) //nolint:gosec // G115: at most maxRecords
			}
			return tx.Bucket(bucketMeta).Put(keyCounts, noted)
		})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.records = records
	} else if !s.failed {
		s.log.Warn("the cache's store could not be written; the cache goes on in memory", "file", s.path, "error", err)
	}
	s.failed = err != nil
}

// Close writes what waits and closes the file.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		<-s.stopped
		if s.db != nil {
			err = s.db.Close()
		}
	})
	return err
}
