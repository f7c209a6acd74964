package cache

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
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
	records int                  // in the file, about
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
	s := &Store{path: o.Path, log: o.Log, clock: o.Clock, pending: map[recordKey][]byte{}, stop: make(chan struct{}), stopped: make(chan struct{})}
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
		s.pending, s.records = map[recordKey][]byte{}, 0
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

func (s *Store) read(c *Cache) error {
	now := s.clock.Now()
	oldTag, oldFacts := now.Add(-tagLife).UnixMilli(), now.Add(-factsLife)
	return s.db.View(func(tx *bbolt.Tx) error {
		cursor := tx.Bucket(bucketRecords).Cursor()
		n := 0
		for k, record := cursor.First(); k != nil; k, record = cursor.Next() {
			if len(k) != len(recordKey{}) {
				return errDamaged
			}
			payload, err := unseal(k, record)
			if err != nil {
				return err
			}
			key, old := Key(k[1:]), false
			switch k[0] {
			case recordTag:
				e, err := readTag(payload)
				if err != nil {
					return err
				}
				if old = e.checked < oldTag || e.checked > now.Add(time.Hour).UnixMilli(); !old {
					c.tags.put(key, e)
				}
			case recordFacts:
				f, at, err := readFacts(payload, &c.shapes)
				if err != nil {
					return err
				}
				if old = at.Before(oldFacts); !old {
					c.facts.put(key, f)
				}
			case recordHint:
				c.hints.put(key, struct{}{})
			default:
				return errDamaged
			}
			n++
			if old {
				s.write(k[0], key, nil)
			}
		}
		s.mu.Lock()
		s.records = n
		s.mu.Unlock()
		return nil
	})
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
	pending, db, room := s.pending, s.db, maxRecords-s.records
	s.pending = make(map[recordKey][]byte)
	s.mu.Unlock()
	if len(pending) == 0 || db == nil {
		return
	}
	added := 0
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
						added--
					}
				case there:
					err = bucket.Put(k[:], record)
				case added < room:
					err = bucket.Put(k[:], record)
					added++
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.records += added
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
