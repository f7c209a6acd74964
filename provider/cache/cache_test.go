package cache_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/cache"
)

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// fill puts n tags of n different images into a cache, as the inspector does
// for one: an answer by tag, one by digest, a hint, and facts of their own.
func fill(c *cache.Cache, n int, now time.Time) { fillFrom(c, 0, n, now) }

func fillFrom(c *cache.Cache, from, to int, now time.Time) {
	for i := from; i < to; i++ {
		digest := digestOf(fmt.Sprint(i))
		key := cache.KeyOf("facts", "registry.example", digest)
		platforms := []string{"linux/amd64", "linux/arm64"}
		if i%3 == 0 {
			platforms = []string{"linux/amd64"}
		}
		c.PutFacts(key, &cache.Facts{Digest: digest, Kind: provider.KindIndex, Platforms: platforms, Architectures: []string{"amd64"}, Public: true})
		tag := cache.Tag{Facts: key, Checked: now, Credential: -1, Public: true}
		c.PutTag(tagKey(i), tag)
		c.PutTag(cache.KeyOf("tag", "registry.example/app@"+digest), tag)
		c.MarkSeen(cache.KeyOf("seen", fmt.Sprint(i)))
	}
}

func tagKey(i int) cache.Key { return cache.KeyOf("tag", fmt.Sprintf("registry.example/app:v%d", i)) }

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestAHundredThousandTagsTakeLessThan64MiB(t *testing.T) {
	const tags = 100_000
	before := heap()
	c := cache.New(cache.Options{})
	now := time.Now()
	fill(c, tags, now)
	grown := heap() - before
	kept, facts, believed := c.Usage()
	t.Logf("%d tags: %.1f MiB of heap, %.1f MiB believed", tags, float64(grown)/(1<<20), float64(believed)/(1<<20))
	if grown >= 64<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	if kept != 2*tags || facts != tags {
		t.Errorf("%d answers and %d facts are kept", kept, facts)
	}
	if grown > uint64(believed)*5/4 {
		t.Errorf("%d bytes are believed to be used, and %d are", believed, grown)
	}
	for i := 0; i < tags; i += 101 {
		if tag, ok := c.Tag(tagKey(i), now); !ok || tag.Checked.IsZero() {
			t.Fatalf("tag %d is gone", i)
		}
	}
	runtime.KeepAlive(c)
}

func TestTheCacheIsBoundedByBytes(t *testing.T) {
	const limit = 1 << 20
	const tags = 20_000
	c := cache.New(cache.Options{MaxBytes: limit})
	before := heap()
	now := time.Now()
	fill(c, tags, now)
	if _, _, bytes := c.Usage(); bytes > limit {
		t.Errorf("%d bytes of %d", bytes, limit)
	}
	if grown := heap() - before; grown > 2*limit {
		t.Errorf("the heap grew by %d bytes, the limit is %d", grown, limit)
	}
	if _, ok := c.Tag(tagKey(tags-1), now); !ok {
		t.Error("the newest tag is gone")
	}
	if _, ok := c.Tag(tagKey(0), now); ok {
		t.Error("the oldest tag is there")
	}
	t.Run("one hostile image does not empty it", func(t *testing.T) {
		huge := make([]string, 100_000)
		for i := range huge {
			huge[i] = fmt.Sprintf("linux/arch%d", i)
		}
		key := cache.KeyOf("huge")
		c.PutFacts(key, &cache.Facts{Digest: "sha256:x", Platforms: huge})
		if _, ok := c.Facts(key); ok {
			t.Error("it was kept")
		}
		if _, ok := c.Tag(tagKey(tags-1), now); !ok {
			t.Error("others were forgotten for it")
		}
	})
	runtime.KeepAlive(c)
}

func TestTags(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	failed := provider.Errorf(provider.ClassNotFound, "none")
	facts := cache.KeyOf("facts")
	for name, test := range map[string]struct {
		put  cache.Tag
		at   time.Time
		want cache.Tag
		ok   bool
	}{
		"an answer is given with its age": {
			cache.Tag{Facts: facts, Checked: now, Candidate: 1, Credential: 2, Public: true}, now.Add(time.Hour),
			cache.Tag{Facts: facts, Checked: now, Candidate: 1, Credential: 2, Public: true}, true},
		"a failure until it runs out": {
			cache.Tag{Err: failed, Until: now.Add(time.Second)}, now, cache.Tag{Err: failed, Until: now.Add(time.Second)}, true},
		"a failure that ran out is none": {
			cache.Tag{Err: failed, Until: now.Add(time.Second)}, now.Add(time.Second), cache.Tag{}, false},
		"an answer beside a failure outlives it": {
			cache.Tag{Facts: facts, Checked: now, Err: failed, Until: now.Add(time.Second)}, now.Add(time.Minute), cache.Tag{Facts: facts, Checked: now}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := cache.New(cache.Options{})
			c.PutTag(cache.KeyOf("k"), test.put)
			got, ok := c.Tag(cache.KeyOf("k"), test.at)
			if ok != test.ok {
				t.Fatalf("there: %v, want %v", ok, test.ok)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.EquateErrors()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestKeysOfDifferentPartsDiffer(t *testing.T) {
	seen := map[cache.Key][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"b", "a"}, {"a", "b", ""}, {"a\x01b"}, {strings.Repeat("a", 300)}, {strings.Repeat("a", 299), "a"}} {
		key := cache.KeyOf(parts...)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have one key", parts, other)
		}
		seen[key] = parts
	}
}

func TestWhatWasPublicStaysSo(t *testing.T) {
	c := cache.New(cache.Options{})
	key := cache.KeyOf("k")
	c.PutFacts(key, &cache.Facts{Digest: "d", Public: true})
	c.PutFacts(key, &cache.Facts{Digest: "d"})
	if facts, ok := c.Facts(key); !ok || !facts.Public {
		t.Errorf("%+v, %v", facts, ok)
	}
}

func TestConcurrentUse(t *testing.T) {
	c := cache.New(cache.Options{MaxBytes: 64 << 10})
	now := time.Now()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			fill(c, 300, now)
			for i := range 300 {
				c.Tag(tagKey(i), now)
				c.Seen(cache.KeyOf("seen", fmt.Sprint(i)))
			}
		})
	}
	wg.Wait()
	if _, _, bytes := c.Usage(); bytes > 64<<10 {
		t.Errorf("%d bytes", bytes)
	}
}

// go test -bench . -count 10 ./provider/cache | tee new.txt && benchstat new.txt
func BenchmarkTag(b *testing.B) {
	c := cache.New(cache.Options{})
	now := time.Now()
	fill(c, 10_000, now)
	keys := make([]cache.Key, 10_000)
	for i := range keys {
		keys[i] = tagKey(i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, ok := c.Tag(keys[i%len(keys)], now); !ok {
			b.Fatal("gone")
		}
		i++
	}
}
