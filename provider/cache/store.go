package cache

import (
	"bytes"
	"encoding/binary"
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

//nolint:gochecknoglobals // constants
var (
	bucketMeta    = []byte("meta")
	bucketRecords = []byte("records")
	keyFormat     = []byte("format")
	keyCount      = []byte("count")
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
// A restart is warm as soon as the file is open: a cache asks for what it
// misses, while it reads the whole file behind.
//
// Entries are written behind, many in one transaction. Each has a checksum. A
// file that is corrupt, or of a later format, is renamed and a new one begun,
// with one line in the log, whenever that shows: a cache may be lost, and must
// never stop the start.
type Store struct {
	path  string
	log   *slog.Logger
	clock clock.Clock

	dbMu sync.RWMutex // held to read while db is used, to write while it is exchanged
	db   *bbolt.DB    // nil when the cache goes on without

	flushing sync.Mutex // one Flush at a time: what was kept last is written last

	mu      sync.Mutex
	pending map[recordKey][]byte // nil to delete
	writing map[recordKey][]byte // what a Flush is at
	failed  bool                 // the last write did

	stop, stopped chan struct{}
	once          sync.Once
	filling       sync.WaitGroup
	closed        bool // guarded by mu
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

func (s *Store) open() error {
	return guard(func() error {
		// The list of free pages is written with each transaction. Without it
		// bbolt looks for them in a goroutine of its own, whose panic at a
		// damaged page nobody could catch.
		db, err := bbolt.Open(s.path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType})
		if err != nil {
			return err
		}
		ready := false
		err = db.View(func(tx *bbolt.Tx) error {
			meta := tx.Bucket(bucketMeta)
			ready = meta != nil && tx.Bucket(bucketRecords) != nil && bytes.Equal(meta.Get(keyFormat), []byte{storeFormat})
			return nil
		})
		if ready {
			s.db = db
			return nil
		}
		if err != nil {
			_ = db.Close() // the error before it is the one to tell
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
			return err
		}
		s.db = db
		return nil
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

// exchange sets a damaged file aside and begins a new one, unless another has
// done so already.
func (s *Store) exchange(broken *bbolt.DB, cause error) {
	s.dbMu.Lock()
	defer s.dbMu.Unlock()
	if s.db != broken {
		return
	}
	s.db = nil
	err := s.setAside(cause)
	if err == nil {
		err = s.open()
	}
	if err != nil {
		s.log.Warn("the cache goes on without its store", "file", s.path, "error", err)
	}
	// What is mapped to a broken file may fault again, and a transaction that
	// it broke may hold a lock for ever: nobody waits for this.
	go func() { _ = guard(broken.Close) }()
}

// get calls read with the payload of a record, which is valid only during the
// call. It tells whether there was a record that read took.
func (s *Store) get(kind byte, key Key, read func(payload []byte) error) bool {
	var k recordKey
	k[0] = kind
	copy(k[1:], key[:])
	if record, waits := s.waiting(k); waits { // younger than what the file has
		if record == nil {
			return false
		}
		payload, err := unseal(k[:], record)
		return err == nil && read(payload) == nil
	}
	s.dbMu.RLock()
	db := s.db
	found := false
	var err error
	if db != nil {
		err = guard(func() error {
			return db.View(func(tx *bbolt.Tx) error {
				record := tx.Bucket(bucketRecords).Get(k[:])
				if record == nil {
					return nil
				}
				payload, err := unseal(k[:], record)
				if err != nil {
					return err
				}
				if err := read(payload); err != nil {
					return err
				}
				found = true
				return nil
			})
		})
	}
	s.dbMu.RUnlock()
	switch {
	case errors.Is(err, errExpired):
		s.expire(k)
		return false
	case err != nil && !errors.Is(err, bolterrors.ErrDatabaseNotOpen):
		s.exchange(db, err)
		return false
	}
	return found
}

var errExpired = errors.New("a record is too old")

func (s *Store) tag(key Key) (tagEntry, bool) {
	var e tagEntry
	tooOld := agesAt(s.clock.Now())
	ok := s.get(recordTag, key, func(payload []byte) (err error) {
		if e, err = readTag(payload); err == nil && tooOld.tag(payload) {
			err = errExpired
		}
		return err
	})
	return e, ok
}

func (s *Store) facts(key Key, known *shapes) (*Facts, bool) {
	var f *Facts
	tooOld := agesAt(s.clock.Now())
	ok := s.get(recordFacts, key, func(payload []byte) (err error) {
		if f, err = readFacts(payload, known); err == nil && tooOld.other(payload) {
			err = errExpired
		}
		return err
	})
	return f, ok
}

func (s *Store) hint(key Key) bool {
	tooOld := agesAt(s.clock.Now())
	return s.get(recordHint, key, func(payload []byte) error {
		if len(payload) != hintPayload {
			return errDamaged
		}
		if tooOld.other(payload) {
			return errExpired
		}
		return nil
	})
}

// ages are the limits within which a record is worth reading.
type ages struct {
	tagFrom, tagTo int64 // Unix milliseconds
	otherFrom      int64 // Unix seconds
}

func agesAt(now time.Time) ages {
	return ages{now.Add(-tagLife).UnixMilli(), now.Add(time.Hour).UnixMilli(), now.Add(-factsLife).Unix()}
}

// tag tells whether the payload of a tag answer, of the right length, is too old
// to be used, and other whether that of another record is: each begins with its
// time.
func (a ages) tag(payload []byte) bool {
	at := int64(binary.BigEndian.Uint64(payload)) //nolint:gosec // G115: as written
	return at < a.tagFrom || at > a.tagTo
}

func (a ages) other(payload []byte) bool {
	return int64(binary.BigEndian.Uint32(payload)) < a.otherFrom
}

func (a ages) record(kind byte, payload []byte) bool {
	if kind == recordTag {
		return a.tag(payload)
	}
	return a.other(payload)
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

// waiting gives what is not yet in the file: the record, or nil when it is to be
// deleted there.
func (s *Store) waiting(k recordKey) (record []byte, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if record, waits = s.pending[k]; !waits {
		record, waits = s.writing[k]
	}
	return record, waits
}

// expire has a record of the file deleted, unless a younger one waits.
func (s *Store) expire(k recordKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, pending := s.pending[k]
	_, writing := s.writing[k]
	if !pending && !writing && len(s.pending) < maxPending {
		s.pending[k] = nil
	}
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
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.mu.Lock()
	pending := s.pending
	s.pending, s.writing = make(map[recordKey][]byte), pending
	s.mu.Unlock()
	s.dbMu.RLock()
	db := s.db
	var err error
	if len(pending) > 0 && db != nil {
		err = guard(func() error {
			return db.Update(func(tx *bbolt.Tx) error { return s.update(tx, pending) })
		})
	}
	s.dbMu.RUnlock()
	if damaged(err) {
		s.exchange(db, err)
		err = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = nil
	if err != nil && !s.failed {
		s.log.Warn("the cache's store could not be written; the cache goes on in memory", "file", s.path, "error", err)
	}
	s.failed = err != nil
}

func (s *Store) update(tx *bbolt.Tx, pending map[recordKey][]byte) error {
	bucket, meta := tx.Bucket(bucketRecords), tx.Bucket(bucketMeta)
	total := uint64(0)
	if noted := meta.Get(keyCount); len(noted) == 8 {
		total = binary.BigEndian.Uint64(noted)
	}
	if total >= maxRecords {
		left, err := s.prune(bucket)
		if err != nil {
			return err
		}
		total = left
	}
	for k, record := range pending {
		there := bucket.Get(k[:]) != nil
		switch {
		case record == nil && there:
			if err := bucket.Delete(k[:]); err != nil {
				return err
			}
			total = max(total, 1) - 1
		case record != nil && (there || total < maxRecords):
			if err := bucket.Put(k[:], record); err != nil {
				return err
			}
			if !there {
				total++
			}
		}
	}
	return meta.Put(keyCount, binary.BigEndian.AppendUint64(nil, total))
}

// prune deletes the records that are too old and, when these were few, each
// second of the others. It gives how many are left.
func (s *Store) prune(bucket *bbolt.Bucket) (left uint64, err error) {
	tooOld := agesAt(s.clock.Now())
	for _, keepAll := range []bool{true, false} {
		left = 0
		second := false
		var gone [][]byte
		cursor := bucket.Cursor()
		for k, record := cursor.First(); k != nil; k, record = cursor.Next() {
			payload, err := unseal(k, record)
			if err != nil || len(payload) < hintPayload || k[0] == recordTag && len(payload) != tagPayload {
				return 0, errDamaged
			}
			second = !second
			if tooOld.record(k[0], payload) || !keepAll && second {
				gone = append(gone, bytes.Clone(k))
			} else {
				left++
			}
		}
		for _, k := range gone {
			if err := bucket.Delete(k); err != nil {
				return 0, err
			}
		}
		if left < maxRecords*7/8 {
			break
		}
	}
	return left, nil
}

// begin runs work that ends soon after stop is closed; Close waits for it. It
// tells whether the store is open.
func (s *Store) begin(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.filling.Go(work)
	return true
}

// Close writes what waits and closes the file.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		close(s.stop)
		<-s.stopped
		s.filling.Wait()
		s.dbMu.Lock()
		defer s.dbMu.Unlock()
		if s.db != nil {
			err = guard(s.db.Close)
		}
	})
	return err
}
