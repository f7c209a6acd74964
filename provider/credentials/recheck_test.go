package credentials

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	testclock "k8s.io/utils/clock/testing"
)

func TestOnDemandAChangeIsToldByTheNextLook(t *testing.T) {
	api := startAPIServer(t)
	api.account("ns", "default", "own")
	clock := testclock.NewFakePassiveClock(time.Now())
	changes := 0
	s := newSecrets(t, SecretsOptions{Client: api.client(), OnDemand: true, Clock: clock, OnChange: func() { changes++ }})
	look := func() int {
		clock.SetTime(clock.Now().Add(recheckInterval))
		before := changes
		s.Recheck(t.Context())
		return changes - before
	}
	if look() != 0 || api.asked("get") != 0 {
		t.Errorf("before any look-up: %d changes, %d GETs", changes, api.asked("get"))
	}
	if _, err := s.Lookup(t.Context(), scope("ns", ""), app); err == nil {
		t.Fatal("the secret is not there")
	}
	steps := []struct {
		sentence string
		act      func()
		want     int
	}{
		{"nothing happens", func() {}, 0},
		{"the secret comes", func() { api.pullSecret("ns", "own", "u") }, 1},
		{"nothing more happens", func() {}, 0},
		{"another secret comes, which nobody asked for", func() { api.pullSecret("ns", "other", "u") }, 0},
		{"the secret changes", func() { api.pullSecret("ns", "own", "v") }, 1},
		{"the service account changes", func() { api.account("ns", "default", "own", "other") }, 1},
		{"the secret may not be read", func() { api.deny("get secrets") }, 1},
		{"it may be read again", func() { api.deny() }, 1},
		{"the secret goes", func() { api.remove("secrets", "ns", "own") }, 1},
	}
	for _, step := range steps {
		step.act()
		if got := look(); got != step.want {
			t.Errorf("%s: %d changes, want %d", step.sentence, got, step.want)
		}
	}
	gets := api.asked("get")
	s.Recheck(t.Context())
	if n := api.asked("get"); n != gets {
		t.Errorf("a second look in the same second sent %d GETs", n-gets)
	}
	clock.SetTime(clock.Now().Add(wantedFor))
	if look() != 0 || api.asked("get") != gets {
		t.Errorf("what nobody wanted for long is still looked at: %d GETs", api.asked("get")-gets)
	}
}

func TestALookIsBounded(t *testing.T) {
	api := startAPIServer(t)
	clock := testclock.NewFakePassiveClock(time.Now())
	s := newSecrets(t, SecretsOptions{Client: api.client(), OnDemand: true, Clock: clock})
	for i := range maxWanted + 10 {
		s.want(wanted{kind: kindSecret, namespace: "ns", name: fmt.Sprint(i)})
	}
	if n := len(s.recheck.asked); n != maxWanted {
		t.Errorf("%d objects are remembered, want %d", n, maxWanted)
	}
	for look := range 2 {
		clock.SetTime(clock.Now().Add(recheckInterval))
		s.Recheck(t.Context())
		if n := api.asked("get"); n != (look+1)*maxRecheck {
			t.Errorf("%d GETs after %d looks", n, look+1)
		}
	}
	looked := 0
	for _, seen := range s.recheck.asked {
		if !seen.looked.IsZero() {
			looked++
		}
	}
	if looked != 2*maxRecheck {
		t.Errorf("%d objects were looked at in two looks, want %d: they take turns", looked, 2*maxRecheck)
	}
}

func TestAWatchTellsOfWhatMatters(t *testing.T) {
	api := startAPIServer(t)
	api.pullSecret("ns", "there", "u")
	api.account("ns", "default", "there")
	var changes atomic.Int64
	s := newSecrets(t, SecretsOptions{Client: api.client(), OnChange: func() { changes.Add(1) }})
	start(t, s)
	eventually(t, "in step", s.Synced)
	for i, step := range []struct {
		sentence string
		act      func()
		seen     func() bool
		want     int64
	}{
		{"what was there at the start is no change", func() {}, func() bool { return true }, 0},
		{"a service account without pull secrets", func() { api.account("new", "default") }, func() bool { _, ok := s.watched(kindServiceAccount, "new", "default"); return ok }, 0},
		{"a pull secret comes", func() { api.pullSecret("ns", "own", "u") }, nil, 1},
		{"a pull secret changes", func() { api.pullSecret("ns", "own", "v") }, nil, 2},
		{"a service account gets a pull secret", func() { api.account("new", "default", "own") }, nil, 3},
		{"a pull secret goes", func() { api.remove("secrets", "ns", "own") }, nil, 4},
		{"a secret of another type", func() { api.secret("ns", "opaque", corev1.SecretTypeOpaque, "k", "v") }, func() bool { return true }, 4},
	} {
		step.act()
		if step.seen == nil {
			step.seen = func() bool { return changes.Load() >= step.want }
		}
		eventually(t, step.sentence, step.seen)
		if got := changes.Load(); got != step.want {
			t.Errorf("%d: %s: %d changes, want %d", i, step.sentence, got, step.want)
		}
	}
	before := api.asked("get")
	s.Recheck(t.Context())
	if n := api.asked("get"); n != before {
		t.Errorf("where watches tell, a look sent %d GETs", n-before)
	}
}

func TestWithoutTheRightToWatchItIsSaidOnceAndWhy(t *testing.T) {
	api := startAPIServer(t)
	api.deny("list", "watch")
	var log lockedLog
	s := newSecrets(t, SecretsOptions{Client: api.client(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := s.Ready(); err == nil || err.Error() != "not yet read" {
		t.Errorf("before the first try: %v", err)
	}
	start(t, s)
	const want = "secrets: not allowed to list and watch; service accounts: not allowed to list and watch"
	eventually(t, "both kinds are named", func() bool { err := s.Ready(); return err != nil && err.Error() == want })
	eventually(t, "more tries", func() bool { return api.asked("list")+api.asked("watch") >= 6 })
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "grant it get, list and watch") {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
	api.deny()
	eventually(t, "ready once it is allowed", func() bool { return s.Ready() == nil })
}

// lockedLog is a buffer that a log and a test share.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
