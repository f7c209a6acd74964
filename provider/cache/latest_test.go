package cache_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/cache"
)

// crowdOut makes a cache of smallCache bytes forget all that it held before.
func crowdOut(c *cache.Cache, now time.Time) {
	for i := range smallCache / 80 {
		c.PutTag(cache.KeyOf("crowd", fmt.Sprint(i)), cache.Tag{Facts: cache.KeyOf("other"), Checked: now, Credential: -1})
	}
}

const smallCache = 64 << 10

// TestWhatWasLearntLastIsWhatIsGiven: whatever became of the memory since.
func TestWhatWasLearntLastIsWhatIsGiven(t *testing.T) {
	now := time.Now().Truncate(time.Millisecond)
	key := cache.KeyOf("tag")
	good := cache.Tag{Facts: cache.KeyOf("old"), Checked: now, Credential: -1, Public: true}
	newer := cache.Tag{Facts: cache.KeyOf("new"), Checked: now.Add(time.Minute), Credential: -1, Public: true}
	gone := func(class provider.Class) cache.Tag {
		return cache.Tag{Err: provider.Errorf(class, "no more"), Until: now.Add(2 * time.Minute), Candidate: -1, Credential: -1, Public: true}
	}
	outage := newer
	outage.Facts, outage.Checked = good.Facts, good.Checked
	outage.Err, outage.Until = provider.Errorf(provider.ClassUnreachable, "away"), now.Add(2*time.Minute)
	later := now.Add(3 * time.Minute)

	for learnt, test := range map[string]struct {
		puts []cache.Tag
		want cache.Key // zero for none
	}{
		"a newer answer":                      {[]cache.Tag{good, newer}, newer.Facts},
		"that the tag is gone":                {[]cache.Tag{good, gone(provider.ClassNotFound)}, cache.Key{}},
		"that it is hidden":                   {[]cache.Tag{good, gone(provider.ClassUnauthorized)}, cache.Key{}},
		"that its content is bad":             {[]cache.Tag{good, gone(provider.ClassInvalidContent)}, cache.Key{}},
		"that its place is blocked":           {[]cache.Tag{good, gone(provider.ClassBlocked)}, cache.Key{}},
		"that it is there again":              {[]cache.Tag{good, gone(provider.ClassNotFound), newer}, newer.Facts},
		"that its registry is away, only":     {[]cache.Tag{good, outage}, good.Facts},
		"that it is gone, and nothing before": {[]cache.Tag{gone(provider.ClassNotFound)}, cache.Key{}},
	} {
		for since, next := range map[string]func(t *testing.T, s *cache.Store, path string, c *cache.Cache) *cache.Cache{
			"nothing":            func(_ *testing.T, _ *cache.Store, _ string, c *cache.Cache) *cache.Cache { return c },
			"it was crowded out": func(_ *testing.T, _ *cache.Store, _ string, c *cache.Cache) *cache.Cache { crowdOut(c, now); return c },
			"it was flushed, and out": func(_ *testing.T, s *cache.Store, _ string, c *cache.Cache) *cache.Cache {
				s.Flush()
				crowdOut(c, now)
				return c
			},
			"a restart": func(t *testing.T, s *cache.Store, path string, _ *cache.Cache) *cache.Cache {
				closeStore(t, s)
				var log bytes.Buffer
				again := cache.New(cache.Options{Store: openStore(t, path, &log, now)})
				<-again.Warm()
				return again
			},
		} {
			for _, flushed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, then %s, each written at once %v", learnt, since, flushed), func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "cache.db")
					var log bytes.Buffer
					s := openStore(t, path, &log, now)
					c := cache.New(cache.Options{Store: s, MaxBytes: smallCache})
					<-c.Warm()
					for n, tag := range test.puts {
						c.PutTag(key, tag)
						if flushed || n == 0 {
							s.Flush()
						}
					}
					got, ok := next(t, s, path, c).Tag(key, later)
					if want := test.want != (cache.Key{}); ok != want || got.Facts != test.want {
						t.Errorf("got %+v, %v", got, ok)
					}
				})
			}
		}
	}
}

// TestARecordThatRanOutTakesNoNewerOneWithIt: it is deleted behind, when the
// newer one may wait to be written already.
func TestARecordThatRanOutTakesNoNewerOneWithIt(t *testing.T) {
	const tags = 2000
	now := time.Now().Truncate(time.Millisecond)
	path := stocked(t, tags, now)
	var log bytes.Buffer
	later := now.Add(72 * time.Hour)
	s := openStore(t, path, &log, later)
	c := cache.New(cache.Options{Store: s})
	<-c.Warm()
	for i := range tags {
		var both sync.WaitGroup
		begin := make(chan struct{})
		both.Go(func() { <-begin; c.Tag(tagKey(i), later) })
		both.Go(func() {
			<-begin
			c.PutTag(tagKey(i), cache.Tag{Facts: cache.KeyOf("other"), Checked: later, Credential: -1, Public: true})
		})
		close(begin)
		both.Wait()
	}
	closeStore(t, s)
	c = cache.New(cache.Options{Store: openStore(t, path, &log, later)})
	<-c.Warm()
	for i := range tags {
		if _, ok := c.Tag(tagKey(i), later); !ok {
			t.Fatalf("tag %d was lost", i)
		}
	}
}
