package cache_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/bbolt"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/cache"
)

func openStore(t testing.TB, path string, log *bytes.Buffer, now time.Time) *cache.Store {
	t.Helper()
	s, err := cache.OpenStore(cache.StoreOptions{Path: path, Log: slog.New(slog.NewTextHandler(log, nil)), Clock: clocktesting.NewFakeClock(now)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func closeStore(t testing.TB, s *cache.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestARestartIsWarm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache.db")
	now := time.Now().Truncate(time.Millisecond)
	var log bytes.Buffer
	s := openStore(t, path, &log, now)
	c := cache.New(cache.Options{Store: s})
	facts := map[string]*cache.Facts{
		"index":  {Digest: digestOf("1"), Kind: provider.KindIndex, Platforms: []string{"linux/amd64", "linux/arm64"}, Architectures: []string{"amd64", "arm64"}, Public: true, Warnings: []string{"a", "b"}},
		"none":   {Digest: digestOf("2"), Kind: provider.KindArtifact, Err: provider.Errorf(provider.ClassNotRunnable, "an artifact"), Architectures: []string{}},
		"bundle": {Digest: digestOf("3"), Kind: provider.KindManifest, ContentOnly: true, Architectures: []string{}},
		"many":   {Digest: digestOf("4"), Kind: provider.KindIndex, Platforms: strings.Split(strings.Repeat("linux/riscv64,", 200), ","), Architectures: []string{"riscv64"}},
	}
	for name, f := range facts {
		c.PutFacts(cache.KeyOf("facts", name), f)
		c.PutTag(cache.KeyOf("public", name), cache.Tag{Facts: cache.KeyOf("facts", name), Checked: now, Candidate: 1, Credential: -1, Public: true})
		c.PutTag(cache.KeyOf("private", name), cache.Tag{Facts: cache.KeyOf("facts", name), Checked: now})
		c.MarkSeen(cache.KeyOf("seen", name))
	}
	c.PutTag(cache.KeyOf("failed"), cache.Tag{Err: facts["none"].Err, Until: now.Add(time.Hour), Public: true})
	c.PutTag(cache.KeyOf("old"), cache.Tag{Facts: cache.KeyOf("facts", "index"), Checked: now.Add(-72 * time.Hour), Public: true})
	closeStore(t, s)

	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	c = cache.New(cache.Options{Store: openStore(t, path, &log, now)})
	for name, f := range facts {
		got, ok := c.Facts(cache.KeyOf("facts", name))
		if !ok {
			t.Fatalf("the facts of %s are gone", name)
		}
		if diff := cmp.Diff(f, got, cmpopts.IgnoreUnexported(cache.Facts{}, provider.Error{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		want := cache.Tag{Facts: cache.KeyOf("facts", name), Checked: now, Candidate: 1, Credential: -1, Public: true}
		if tag, ok := c.Tag(cache.KeyOf("public", name), now); !ok || !tag.Checked.Equal(now) || tag.Facts != want.Facts || tag.Candidate != 1 || tag.Credential != -1 || !tag.Public {
			t.Errorf("tag of %s: %+v, %v", name, tag, ok)
		}
		if _, ok := c.Tag(cache.KeyOf("private", name), now); ok {
			t.Error("an answer that needs a credential was kept across a restart")
		}
		if !c.Seen(cache.KeyOf("seen", name)) {
			t.Error("a hint is gone")
		}
	}
	for _, gone := range []string{"failed", "old"} {
		if tag, ok := c.Tag(cache.KeyOf(gone), now); ok {
			t.Errorf("%s was kept: %+v", gone, tag)
		}
	}
	if log.Len() > 0 {
		t.Errorf("log: %s", &log)
	}
}

func TestAStoreThatCannotBeReadIsSetAside(t *testing.T) {
	now := time.Now()
	made := func(t *testing.T, path string) {
		t.Helper()
		var log bytes.Buffer
		s := openStore(t, path, &log, now)
		fill(cache.New(cache.Options{Store: s}), 2000, now)
		closeStore(t, s)
	}
	edit := func(t *testing.T, path string, change func([]byte) []byte) {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, change(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	update := func(t *testing.T, path string, change func(*bbolt.Tx) error) {
		t.Helper()
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Update(change); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, damage := range map[string]func(t *testing.T, path string){
		"it is no store": func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("no store ", 10000)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"it is cut in half": func(t *testing.T, path string) {
			made(t, path)
			edit(t, path, func(b []byte) []byte { return b[:len(b)/2] })
		},
		"it is cut after its first pages": func(t *testing.T, path string) {
			made(t, path)
			edit(t, path, func(b []byte) []byte { return b[:4*os.Getpagesize()] })
		},
		"zeros in the middle": func(t *testing.T, path string) {
			made(t, path)
			edit(t, path, func(b []byte) []byte { clear(b[len(b)/4 : len(b)*3/4]); return b })
		},
		"a flipped bit in a record": func(t *testing.T, path string) {
			made(t, path)
			update(t, path, func(tx *bbolt.Tx) error {
				bucket := tx.Bucket([]byte("records"))
				k, v := bucket.Cursor().First()
				v = bytes.Clone(v)
				v[len(v)-1] ^= 1
				return bucket.Put(bytes.Clone(k), v)
			})
		},
		"a record under another's key": func(t *testing.T, path string) {
			made(t, path)
			update(t, path, func(tx *bbolt.Tx) error {
				bucket := tx.Bucket([]byte("records"))
				cursor := bucket.Cursor()
				_, v := cursor.First()
				v = bytes.Clone(v)
				k, _ := cursor.Next()
				return bucket.Put(bytes.Clone(k), v)
			})
		},
		"a later format": func(t *testing.T, path string) {
			made(t, path)
			update(t, path, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte{2}) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cache.db")
			damage(t, path)
			var log bytes.Buffer
			s := openStore(t, path, &log, now)
			c := cache.New(cache.Options{Store: s})
			for i := range 2000 { // wherever the damage is, it shows
				if tag, ok := c.Tag(tagKey(i), now); ok {
					if f, ok := c.Facts(tag.Facts); ok && f.Digest != digestOf(fmt.Sprint(i)) {
						t.Errorf("tag %d became %s", i, f.Digest)
					}
				}
				c.Facts(cache.KeyOf("facts", "registry.example", digestOf(fmt.Sprint(i))))
				c.Tag(cache.KeyOf("tag", "registry.example/app@"+digestOf(fmt.Sprint(i))), now)
				c.Seen(cache.KeyOf("seen", fmt.Sprint(i)))
			}
			if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "set aside") {
				t.Errorf("%d lines in the log, want one:\n%s", lines, &log)
			}
			if aside, err := filepath.Glob(path + ".set-aside-*"); err != nil || len(aside) != 1 {
				t.Errorf("set aside: %v, %v", aside, err)
			}
			fillFrom(c, 5000, 5010, now)
			closeStore(t, s)
			c = cache.New(cache.Options{Store: openStore(t, path, &log, now)})
			if _, ok := c.Tag(tagKey(5009), now); !ok {
				t.Error("the new store does not keep")
			}
		})
	}
}

func TestAStoreInAFolderThatIsNotThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "cache.db")
	if _, err := cache.OpenStore(cache.StoreOptions{Path: path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// stocked makes a store of so many tags, of as many images.
func stocked(t testing.TB, tags int, now time.Time) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "cache.db")
	var log bytes.Buffer
	s := openStore(t, path, &log, now)
	c := cache.New(cache.Options{Store: s})
	for part := range 10 { // in parts, that the queue may be written
		fillFrom(c, part*tags/10, (part+1)*tags/10, now)
		s.Flush()
	}
	closeStore(t, s)
	return path
}

func TestWhatAStoreKeepsIsBroughtIntoMemory(t *testing.T) {
	const tags = 10_000
	now := time.Now()
	path := stocked(t, tags, now)
	var log bytes.Buffer
	t.Run("all of it", func(t *testing.T) {
		s := openStore(t, path, &log, now)
		c := cache.New(cache.Options{Store: s})
		<-c.Warm()
		if !c.Seen(cache.KeyOf("seen", "1")) {
			t.Error("a hint is gone")
		}
		closeStore(t, s) // from here on, memory is all there is
		kept, facts, size := c.Usage()
		if kept != 2*tags || facts != tags {
			t.Errorf("%d answers and %d facts are in memory", kept, facts)
		}
		if limit := int64(150 * tags); size > limit {
			t.Errorf("what nobody asked for takes %d bytes, more than %d", size, limit)
		}
		for i := range tags {
			tag, ok := c.Tag(tagKey(i), now)
			if !ok {
				t.Fatalf("tag %d is not in memory", i)
			}
			if f, ok := c.Facts(tag.Facts); !ok || f.Digest != digestOf(fmt.Sprint(i)) {
				t.Fatalf("tag %d: facts %+v", i, f)
			}
		}
		if kept, facts, grown := c.Usage(); kept != 2*tags || facts != tags || grown <= size {
			t.Errorf("once asked for: %d answers and %d facts, %d bytes that were %d", kept, facts, grown, size)
		}
	})
	t.Run("as much as may be", func(t *testing.T) {
		const limit = 1 << 20
		s := openStore(t, path, &log, now)
		c := cache.New(cache.Options{Store: s, MaxBytes: limit})
		<-c.Warm()
		kept, facts, size := c.Usage()
		if size > limit || size < limit*3/4 || kept == 0 || facts == 0 {
			t.Errorf("%d answers, %d facts, %d bytes of %d", kept, facts, size, limit)
		}
		for i := range tags { // the rest is in the file
			if _, ok := c.Tag(tagKey(i), now); !ok {
				t.Fatalf("tag %d is gone", i)
			}
		}
		if _, _, size := c.Usage(); size > limit {
			t.Errorf("%d bytes of %d", size, limit)
		}
	})
	t.Run("what nobody asked for gives way to what is new", func(t *testing.T) {
		const limit = 2 << 20
		s := openStore(t, path, &log, now)
		c := cache.New(cache.Options{Store: s, MaxBytes: limit})
		<-c.Warm()
		closeStore(t, s)
		for i := range 4000 {
			c.PutTag(cache.KeyOf("new", fmt.Sprint(i)), cache.Tag{Facts: cache.KeyOf("other"), Checked: now, Credential: -1, Public: true})
			if _, _, size := c.Usage(); size > limit {
				t.Fatalf("%d bytes of %d", size, limit)
			}
		}
		for i := range 4000 {
			if _, ok := c.Tag(cache.KeyOf("new", fmt.Sprint(i)), now); !ok {
				t.Fatalf("new tag %d is gone", i)
			}
		}
	})
	t.Run("nothing that is too old", func(t *testing.T) {
		c := cache.New(cache.Options{Store: openStore(t, path, &log, now.Add(72*time.Hour))})
		<-c.Warm()
		if kept, facts, _ := c.Usage(); kept != 0 || facts != tags {
			t.Errorf("%d answers and %d facts are in memory", kept, facts)
		}
	})
	t.Run("what was learnt meanwhile stays", func(t *testing.T) {
		s := openStore(t, path, &log, now)
		c := cache.New(cache.Options{Store: s})
		later := now.Add(time.Minute).Truncate(time.Millisecond)
		for i := range tags {
			c.PutTag(tagKey(i), cache.Tag{Facts: cache.KeyOf("other"), Checked: later, Credential: -1, Public: true})
		}
		<-c.Warm()
		for i := range tags {
			if tag, ok := c.Tag(tagKey(i), now); !ok || !tag.Checked.Equal(later) {
				t.Fatalf("tag %d: %+v, %v", i, tag, ok)
			}
		}
	})
	t.Run("until the store is closed", func(t *testing.T) {
		for range 20 {
			s := openStore(t, path, &log, now)
			c := cache.New(cache.Options{Store: s})
			closeStore(t, s)
			<-c.Warm()
		}
		c := cache.New(cache.Options{Store: openClosed(t, path, &log, now)})
		<-c.Warm()
	})
	if log.Len() > 0 {
		t.Errorf("log: %s", &log)
	}
}

func openClosed(t *testing.T, path string, log *bytes.Buffer, now time.Time) *cache.Store {
	t.Helper()
	s := openStore(t, path, log, now)
	closeStore(t, s)
	return s
}

// BenchmarkRestart opens a store of 100,000 tags and waits until all of it is in
// memory, by turns with a bare scan of the same file, which checks nothing and
// keeps nothing. It prints how many times as long that takes, how many times as
// much processor time, which depends less on what else the machine does, and how
// long the first answer takes, which does not wait for the others.
//
//	go test -run '^$' -bench Restart -benchtime 20x ./provider/cache
func BenchmarkRestart(b *testing.B) {
	const tags = 100_000
	now := time.Now()
	path := stocked(b, tags, now)
	var log bytes.Buffer
	var bare, first, all, bareWork, allWork time.Duration
	for b.Loop() {
		runtime.GC() // the garbage of one is not the other's work
		worked, started := processorTime(b), time.Now()
		scan(b, path)
		bare += time.Since(started)
		bareWork += processorTime(b) - worked

		worked, started = processorTime(b), time.Now()
		s := openStore(b, path, &log, now)
		c := cache.New(cache.Options{Store: s})
		tag, ok := c.Tag(tagKey(tags/2), now)
		if _, known := c.Facts(tag.Facts); !ok || !known {
			b.Fatal("an answer is gone")
		}
		first += time.Since(started)
		<-c.Warm()
		all += time.Since(started)
		allWork += processorTime(b) - worked
		if kept, facts, _ := c.Usage(); kept != 2*tags || facts != tags {
			b.Fatalf("%d answers and %d facts are in memory", kept, facts)
		}
		closeStore(b, s)
	}
	b.ReportMetric(bare.Seconds()*1000/float64(b.N), "bare-ms")
	b.ReportMetric(first.Seconds()/bare.Seconds(), "first-x-bare")
	b.ReportMetric(all.Seconds()/bare.Seconds(), "all-x-bare")
	b.ReportMetric(allWork.Seconds()/bareWork.Seconds(), "all-x-bare-cpu")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func scan(b *testing.B, path string) {
	b.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("records")).ForEach(func(_, v []byte) error { n += len(v); return nil })
	})
	if err != nil || n == 0 {
		b.Fatal(n, err)
	}
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
}
