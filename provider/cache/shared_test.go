package cache_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/cache"
)

// startRedis gives the address of a server: Valkey or Redis where one is
// installed, else one in this process that speaks the same.
func startRedis(t *testing.T) (address string, stop func()) {
	t.Helper()
	for _, name := range []string{"valkey-server", "redis-server"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		server := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		stop := sync.OnceFunc(func() { _ = server.Process.Kill(); _ = server.Wait() })
		t.Cleanup(stop)
		client := redis.NewClient(&redis.Options{Addr: address})
		defer client.Close()
		for deadline := time.Now().Add(10 * time.Second); client.Ping(t.Context()).Err() != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s does not answer", name)
			}
		}
		t.Logf("the shared tier is %s", name)
		return address, stop
	}
	server := miniredis.RunT(t)
	t.Log("the shared tier is miniredis")
	return server.Addr(), sync.OnceFunc(server.Close)
}

func openShared(t *testing.T, address string, log *bytes.Buffer) *cache.Shared {
	t.Helper()
	s, err := cache.OpenShared(cache.SharedOptions{URL: "redis://" + address + "/0", Timeout: time.Second, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestReplicasShareWhatEverybodyMayKnow(t *testing.T) {
	address, _ := startRedis(t)
	var log bytes.Buffer
	ctx, now := t.Context(), time.Now().Truncate(time.Millisecond)
	first := openShared(t, address, &log)
	one := cache.New(cache.Options{Shared: first})
	public := &cache.Facts{Digest: digestOf("1"), Kind: provider.KindIndex, Platforms: []string{"linux/amd64"}, Architectures: []string{"amd64"}, Public: true}
	private := &cache.Facts{Digest: digestOf("2"), Kind: provider.KindIndex, Platforms: []string{"linux/s390x"}, Architectures: []string{"s390x"}}
	one.PutFacts(cache.KeyOf("facts", "public"), public)
	one.PutFacts(cache.KeyOf("facts", "private"), private)
	one.PutTag(cache.KeyOf("public"), cache.Tag{Facts: cache.KeyOf("facts", "public"), Checked: now, Credential: -1, Public: true})
	one.PutTag(cache.KeyOf("private"), cache.Tag{Facts: cache.KeyOf("facts", "private"), Checked: now})
	one.PutTag(cache.KeyOf("failed"), cache.Tag{Err: provider.Errorf(provider.ClassNotFound, "none"), Until: now.Add(time.Hour), Public: true})
	if err := first.Close(); err != nil { // writes what waits
		t.Fatal(err)
	}

	two := cache.New(cache.Options{Shared: openShared(t, address, &log)})
	tag, facts, ok := two.SharedTag(ctx, cache.KeyOf("public"))
	if !ok || !tag.Checked.Equal(now) || !tag.Public || tag.Credential != -1 || facts.Digest != public.Digest || facts.Platforms[0] != "linux/amd64" {
		t.Fatalf("got %+v, %+v, %v", tag, facts, ok)
	}
	if _, ok := two.Tag(cache.KeyOf("public"), now); !ok {
		t.Error("the answer was not kept here")
	}
	for _, key := range []string{"private", "failed", "never put"} {
		if _, _, ok := two.SharedTag(ctx, cache.KeyOf(key)); ok {
			t.Errorf("%s was shared", key)
		}
	}
	if _, ok := two.SharedFacts(ctx, cache.KeyOf("facts", "private")); ok {
		t.Error("private facts were shared")
	}
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	keys, err := client.Keys(ctx, "*").Result()
	if err != nil || len(keys) != 2 {
		t.Fatalf("keys %v, %v", keys, err)
	}
	t.Run("a damaged record is none", func(t *testing.T) {
		for _, key := range keys {
			if err := client.Append(ctx, key, "x").Err(); err != nil {
				t.Fatal(err)
			}
		}
		three := cache.New(cache.Options{Shared: openShared(t, address, &log)})
		if _, _, ok := three.SharedTag(ctx, cache.KeyOf("public")); ok {
			t.Error("it was believed")
		}
	})
	t.Run("a record under another's key is none", func(t *testing.T) {
		for _, key := range keys {
			if strings.HasPrefix(key, "archkeeper:1:t:") {
				record, err := client.Get(ctx, key).Bytes()
				if err != nil {
					t.Fatal(err)
				}
				other := cache.KeyOf("other")
				if err := client.Set(ctx, fmt.Sprintf("archkeeper:1:t:%x", other[:]), record, 0).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, _, ok := two.SharedTag(ctx, cache.KeyOf("other")); ok {
			t.Error("it was believed")
		}
	})
	if log.Len() > 0 {
		t.Errorf("log: %s", &log)
	}
}

func TestWhatOneReplicaLearntIsGoneNoOtherIsTold(t *testing.T) {
	address, _ := startRedis(t)
	var log bytes.Buffer
	ctx, now := t.Context(), time.Now().Truncate(time.Millisecond)
	facts := cache.KeyOf("facts")
	good := cache.Tag{Facts: facts, Checked: now, Credential: -1, Public: true}
	for name, test := range map[string]struct {
		then   cache.Tag
		shared bool
	}{
		"it is gone":                          {cache.Tag{Err: provider.Errorf(provider.ClassNotFound, "none"), Until: now.Add(time.Hour), Public: true}, false},
		"it is hidden":                        {cache.Tag{Err: provider.Errorf(provider.ClassUnauthorized, "none"), Until: now.Add(time.Hour), Public: true}, false},
		"its content is bad":                  {cache.Tag{Err: provider.Errorf(provider.ClassInvalidContent, "bad"), Until: now.Add(time.Hour), Public: true}, false},
		"its registry is away":                {cache.Tag{Err: provider.Errorf(provider.ClassUnreachable, "away"), Until: now.Add(time.Hour), Public: true}, true},
		"it is late":                          {cache.Tag{Err: provider.Errorf(provider.ClassTimeout, "late"), Until: now.Add(time.Hour), Public: true}, true},
		"one replica may not go there":        {cache.Tag{Err: provider.Errorf(provider.ClassBlocked, "blocked"), Until: now.Add(time.Hour), Public: true}, true},
		"it could not be confirmed":           {cache.Tag{Facts: facts, Checked: now, Err: provider.Errorf(provider.ClassUnreachable, "away"), Until: now.Add(time.Hour), Public: true}, true},
		"it is gone for who has a credential": {cache.Tag{Err: provider.Errorf(provider.ClassNotFound, "none"), Until: now.Add(time.Hour)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tier := openShared(t, address, &log)
			one := cache.New(cache.Options{Shared: tier})
			one.PutFacts(facts, &cache.Facts{Digest: digestOf("1"), Kind: provider.KindIndex, Platforms: []string{"linux/amd64"}, Architectures: []string{"amd64"}, Public: true})
			one.PutTag(cache.KeyOf(name), good)
			one.PutTag(cache.KeyOf(name), test.then)
			if err := tier.Close(); err != nil { // writes what waits
				t.Fatal(err)
			}
			two := cache.New(cache.Options{Shared: openShared(t, address, &log)})
			if _, _, ok := two.SharedTag(ctx, cache.KeyOf(name)); ok != test.shared {
				t.Errorf("shared: %v, want %v", ok, test.shared)
			}
		})
	}
}

// TestTheSharedTierGivesNobodyPrivateFacts: who can write to it could name them.
func TestTheSharedTierGivesNobodyPrivateFacts(t *testing.T) {
	address, _ := startRedis(t)
	var log bytes.Buffer
	private := cache.KeyOf("facts")
	forger := openShared(t, address, &log)
	cache.New(cache.Options{Shared: forger}).PutTag(cache.KeyOf("public"), cache.Tag{Facts: private, Checked: time.Now(), Credential: -1, Public: true})
	if err := forger.Close(); err != nil { // writes what waits
		t.Fatal(err)
	}
	c := cache.New(cache.Options{Shared: openShared(t, address, &log)})
	c.PutFacts(private, &cache.Facts{Digest: digestOf("1"), Kind: provider.KindIndex, Platforms: []string{"linux/s390x"}, Architectures: []string{"s390x"}})
	if _, facts, ok := c.SharedTag(t.Context(), cache.KeyOf("public")); ok {
		t.Errorf("got %+v", facts)
	}
}

func TestOnlyWhatAKnownKeySignedIsBelieved(t *testing.T) {
	address, _ := startRedis(t)
	ctx, now := t.Context(), time.Now().Truncate(time.Millisecond)
	const old, young = "an-old-key-of-more-than-32-characters", "a-young-key-of-more-than-32-characters"
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	open := func(t *testing.T, metrics prometheus.Registerer, keys ...string) *cache.Shared {
		t.Helper()
		o := cache.SharedOptions{URL: "redis://" + address, Timeout: time.Second, Metrics: metrics}
		if len(keys) > 0 {
			o.KeyFile = filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(o.KeyFile, []byte(strings.Join(keys, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := cache.OpenShared(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	stocked := func(t *testing.T, keys ...string) {
		t.Helper()
		if err := client.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		s := open(t, nil, keys...)
		c := cache.New(cache.Options{Shared: s})
		for _, name := range []string{"one", "two"} {
			c.PutFacts(cache.KeyOf("facts", name), &cache.Facts{Digest: digestOf(name), Kind: provider.KindIndex, Platforms: []string{"linux/amd64"}, Architectures: []string{"amd64"}, Public: true})
			c.PutTag(cache.KeyOf(name), cache.Tag{Facts: cache.KeyOf("facts", name), Checked: now, Credential: -1, Public: true})
		}
		if err := s.Close(); err != nil { // writes what waits
			t.Fatal(err)
		}
	}
	name := func(kind, of string) string {
		k := cache.KeyOf(of)
		if kind == "f" {
			k = cache.KeyOf("facts", of)
		}
		return fmt.Sprintf("archkeeper:1:%s:%x", kind, k[:])
	}
	edit := func(t *testing.T, key string, change func([]byte) []byte) {
		t.Helper()
		record, err := client.Get(ctx, key).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Set(ctx, key, change(record), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		written, read []string
		meddle        func(t *testing.T)
		believed      bool
		reason        string
	}{
		"its own key":                  {[]string{old}, []string{old}, nil, true, ""},
		"a key that is being retired":  {[]string{old}, []string{young, old}, nil, true, ""},
		"a key that is not yet in use": {[]string{young, old}, []string{old, young}, nil, true, ""},
		"another key":                  {[]string{old}, []string{young}, nil, false, "unsigned"},
		"no key, where one is needed":  {nil, []string{old}, nil, false, "unsigned"},
		"a key, where none is known":   {[]string{old}, nil, nil, false, "damaged"},
		"an entry cut short":           {[]string{old}, []string{old}, func(t *testing.T) { edit(t, name("t", "one"), func(b []byte) []byte { return b[:20] }) }, false, "unsigned"},
		"a changed tag":                {[]string{old}, []string{old}, func(t *testing.T) { edit(t, name("t", "one"), func(b []byte) []byte { b[len(b)-5] ^= 1; return b }) }, false, "forged"},
		"changed facts":                {[]string{old}, []string{old}, func(t *testing.T) { edit(t, name("f", "one"), func(b []byte) []byte { b[len(b)-1] ^= 1; return b }) }, false, "forged"},
		"the entry of another reference": {[]string{old}, []string{old}, func(t *testing.T) {
			edit(t, name("t", "one"), func([]byte) []byte {
				b, err := client.Get(ctx, name("t", "two")).Bytes()
				if err != nil {
					t.Fatal(err)
				}
				return b
			})
		}, false, "forged"},
	} {
		t.Run(name, func(t *testing.T) {
			stocked(t, test.written...)
			if test.meddle != nil {
				test.meddle(t)
			}
			metrics := prometheus.NewRegistry()
			c := cache.New(cache.Options{Shared: open(t, metrics, test.read...)})
			_, facts, ok := c.SharedTag(ctx, cache.KeyOf("one"))
			if ok != test.believed || ok && facts.Digest != digestOf("one") {
				t.Errorf("believed: %v, %+v", ok, facts)
			}
			refused := ""
			families, err := metrics.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					refused += fmt.Sprintf("%s=%v", m.GetLabel()[0].GetValue(), m.GetCounter().GetValue())
				}
			}
			want := ""
			if test.reason != "" {
				want = test.reason + "=1"
			}
			if refused != want {
				t.Errorf("refused %q, want %q", refused, want)
			}
		})
	}
}

func TestTheSharedTiersKeys(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "too short": "a-long-enough-key-of-32-characters\nsecret\n", "too long": strings.Repeat("secret ", 4000)} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := cache.OpenShared(cache.SharedOptions{URL: "redis://localhost", KeyFile: path})
			if err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := cache.OpenShared(cache.SharedOptions{URL: "redis://localhost", KeyFile: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a file that is not there is none")
	}
}

func TestAnOutageOfTheSharedTierCostsOnlyHits(t *testing.T) {
	address, stop := startRedis(t)
	var log bytes.Buffer
	s := openShared(t, address, &log)
	c := cache.New(cache.Options{Shared: s})
	if _, _, ok := c.SharedTag(t.Context(), cache.KeyOf("k")); ok {
		t.Fatal("found")
	}
	stop()
	for range 100 {
		if _, _, ok := c.SharedTag(t.Context(), cache.KeyOf("k")); ok {
			t.Fatal("found")
		}
	}
	now := time.Now()
	fill(c, 10_000, now) // more than the queue holds; must not wait
	if _, ok := c.Tag(tagKey(0), now); !ok {
		t.Error("the local cache forgot")
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 {
		t.Errorf("%d lines in the log, want one:\n%s", lines, &log)
	}
}

func TestASharedTierThatStallsIsNotWaitedFor(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s, err := cache.OpenShared(cache.SharedOptions{URL: "redis://" + silent.Addr().String(), Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := cache.New(cache.Options{Shared: s})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for range 1000 {
		c.SharedTag(ctx, cache.KeyOf("k"))
	}
	if ctx.Err() != nil {
		t.Error("a thousand questions took five seconds")
	}
}

func TestTheSharedTiersAddress(t *testing.T) {
	for _, address := range []string{"", "localhost:6379", "http://localhost", "redis://user:secret@host:port/0"} {
		if _, err := cache.OpenShared(cache.SharedOptions{URL: address}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
}
