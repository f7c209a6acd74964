package registry

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/cache"
)

const (
	// How long a failure is remembered, by class. A rate limit is remembered
	// until the registry's own time, or for rateLimitedLife without one.
	notFoundLife     = 30 * time.Second
	unauthorizedLife = time.Minute
	unreachableLife  = 5 * time.Second
	rateLimitedLife  = 5 * time.Second
	durableLife      = time.Minute

	// maxFlights bounds the look-ups under way, waited for or not: with the
	// resolving of a name, one may take 30 KiB and two file descriptors.
	maxFlights = 1 << 13

	// leaderWait bounds the time for which a caller lets another with other
	// credentials go first for the same reference.
	leaderWait = 5 * time.Second

	// A place that is silent is given a share of the time that callers have left
	// before the next one is asked as well: between these.
	minShare = 50 * time.Millisecond
	maxShare = 5 * time.Second
)

// flight is one look-up that any number of callers wait for.
type flight struct {
	done    chan struct{}
	result  kept // valid once done is closed
	confirm bool // a registry must be asked, whatever is known elsewhere
	// wanted is set by the first caller who waits. Without it the look-up is a
	// refresh that may be put off.
	wanted atomic.Bool
	// waiting is what the look-up waits for, for callers whose deadline comes.
	waiting atomic.Pointer[provider.Error]
	// due is the earliest deadline of those who wait, in Unix nanoseconds; once it
	// is over, that of who came next. hurry tells the look-up that it changed.
	due   atomic.Int64
	hurry chan struct{}
}

func newFlight(wanted, confirm bool) *flight {
	f := &flight{done: make(chan struct{}), confirm: confirm, hurry: make(chan struct{}, 1)}
	f.wanted.Store(wanted)
	return f
}

// expect notes until when a caller waits.
func (f *flight) expect(ctx context.Context) {
	deadline, ok := ctx.Deadline()
	if !ok || ctx.Err() != nil {
		return
	}
	for at := deadline.UnixNano(); ; {
		due := f.due.Load()
		if due <= at && due > time.Now().UnixNano() {
			return
		}
		if f.due.CompareAndSwap(due, at) {
			break
		}
	}
	select {
	case f.hurry <- struct{}{}:
	default: // told already
	}
}

// share gives how long a silent place may keep callers waiting before the next
// one is asked as well: an equal part of the time that is left, for it and each
// of the others that have not been asked. Who is gone is in no hurry; awaited tells
// whether somebody is.
func (f *flight) share(ctx context.Context, others int) (wait time.Duration, awaited bool) {
	left := maxShare * 2
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	due := f.left()
	if awaited = due > 0; awaited {
		left = min(left, due)
	}
	return min(max(left/time.Duration(others+1), minShare), maxShare), awaited
}

// left gives how long callers wait still.
func (f *flight) left() time.Duration { return time.Until(time.Unix(0, f.due.Load())) }

func (f *flight) optional() bool { return !f.wanted.Load() }

// kept is an answer as the cache keeps it.
type kept struct {
	tag   cache.Tag
	facts *cache.Facts // nil when tag.Err is the answer
}

type flightKey struct{}

// noteWaiting tells the flight of a context what it waits for; nil for nothing.
func noteWaiting(ctx context.Context, err *provider.Error) {
	if f, ok := ctx.Value(flightKey{}).(*flight); ok {
		f.waiting.Store(err)
	}
}

// Inspect implements provider.Inspector. What is known is answered on the spot;
// the rest is looked up concurrently.
func (i *Inspector) Inspect(ctx context.Context, queries []provider.Query) []provider.Answer {
	answers := make([]provider.Answer, len(queries))
	var wg sync.WaitGroup
	for n := range queries {
		var known bool
		answers[n], known = i.inspect(i.ended, queries[n], false) //nolint:contextcheck // it does not wait
		switch {
		case known:
		case len(queries) == 1:
			answers[n], _ = i.inspect(ctx, queries[n], true)
		default:
			wg.Go(func() { answers[n], _ = i.inspect(ctx, queries[n], true) })
		}
	}
	wg.Wait()
	return answers
}

// inspect answers one query. Without wait it answers only what needs no
// waiting, and known is false for the rest.
func (i *Inspector) inspect(ctx context.Context, q provider.Query, wait bool) (answer provider.Answer, known bool) {
	defer func() {
		if fault := recover(); fault != nil {
			answer, known = provider.Answer{Image: q.Image, Err: i.panicked(ctx, fault)}, true
		}
	}()
	if wait && i.options.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, i.options.Timeout)
		defer cancel()
	}
	tg, err := i.target(ctx, q)
	if err != nil {
		answer := provider.Answer{Image: q.Image, Err: err}
		if tg != nil {
			answer.Reference, answer.Digest = tg.canonical, tg.ref.Digest()
		}
		i.metrics.lookups.WithLabelValues(string(err.Class)).Inc()
		return answer, true
	}
	if !wait && errors.Is(tg.keychainErr, context.Canceled) {
		return provider.Answer{}, false // the keychain has to ask
	}
	asked := i.clock.Now()
	result, hit := i.recall(q, tg) //nolint:contextcheck // look-ups have contexts of their own
	switch {
	case hit:
		return i.answer(q, tg, result), true
	case !wait:
		return provider.Answer{}, false
	}
	i.metrics.lookups.WithLabelValues("miss").Inc()
	result = i.wait(ctx, tg, i.join(tg, true, q.Revalidate)) //nolint:contextcheck // as above
	if q.Revalidate && result.facts != nil && tg.ref.Digest() == "" && result.tag.Checked.Before(asked) {
		// It joined a look-up that was content with what is known.
		result = i.wait(ctx, tg, i.join(tg, true, true)) //nolint:contextcheck // as above
	}
	return i.answer(q, tg, result), true
}

// wait gives a flight's result, or at the end of ctx what it waits for itself.
func (i *Inspector) wait(ctx context.Context, tg *target, f *flight) kept {
	f.expect(ctx)
	select {
	case <-f.done:
		return f.result
	case <-ctx.Done():
	}
	if f.over() {
		return f.result
	}
	late := f.waiting.Load()
	if late == nil {
		c := &tg.candidates[0]
		late = timeoutError(ctx, c.registry, "asking about "+c.describe())
	}
	return kept{tag: cache.Tag{Err: late, Candidate: -1}}
}

func (f *flight) over() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// recall gives what is known well enough, and has what is a little old
// confirmed behind.
func (i *Inspector) recall(q provider.Query, tg *target) (kept, bool) {
	now := i.clock.Now()
	tag, ok := i.cache.Tag(tg.key, now)
	if !ok {
		return kept{}, false
	}
	byDigest := tg.ref.Digest() != ""
	confirm := q.Revalidate && !byDigest
	if facts, known := i.cache.Facts(tag.Facts); known && !confirm {
		age := now.Sub(tag.Checked)
		switch {
		case i.fresh(tg, age):
			i.metrics.hits.Inc()
			return kept{tag, facts}, true
		case !byDigest && age < i.options.TagTTL+i.options.MaxStale:
			if tag.Err == nil {
				i.join(tg, false, false)
			}
			i.metrics.lookups.WithLabelValues("stale").Inc()
			return kept{tag, facts}, true
		}
	}
	if tag.Err != nil && (!confirm || !refused(tag.Err)) {
		i.metrics.lookups.WithLabelValues("failure").Inc()
		remembered := *tag.Err
		if remembered.RetryAfter > 0 {
			remembered.RetryAfter = tag.Until.Sub(now)
		}
		tag.Err = &remembered
		return kept{tag: tag}, true
	}
	return kept{}, false
}

// fresh tells whether an answer of that age is given without asking again.
func (i *Inspector) fresh(tg *target, age time.Duration) bool {
	switch {
	case tg.ref.Digest() == "":
		return age < i.options.TagTTL
	case tg.public:
		return age < i.options.DigestTTL
	}
	return age < i.options.AccessTTL
}

// join gives the flight for a target, begun now or before. One that was begun
// before may not confirm: its result's Checked tells.
func (i *Inspector) join(tg *target, wanted, confirm bool) *flight {
	i.mu.Lock()
	if f, ok := i.flights[tg.key]; ok {
		i.mu.Unlock()
		if wanted {
			f.wanted.Store(true)
		}
		return f
	}
	f := newFlight(wanted, confirm)
	full := len(i.flights) >= maxFlights
	if !full {
		i.flights[tg.key] = f
	}
	i.mu.Unlock()
	if full {
		f.result = kept{tag: cache.Tag{Err: provider.Errorf(provider.ClassInternal, "too many images are being looked up"), Candidate: -1}}
		close(f.done)
		return f
	}
	if !i.background(func(ctx context.Context) { i.fly(ctx, f, tg) }) {
		i.land(f, tg, kept{tag: cache.Tag{Err: wrap(provider.ClassTimeout, errClosed.Error(), errClosed), Candidate: -1}})
	}
	return f
}

func (i *Inspector) land(f *flight, tg *target, result kept) {
	i.mu.Lock()
	delete(i.flights, tg.key)
	i.mu.Unlock()
	f.result = result
	close(f.done)
}

// fly looks a target up and keeps the outcome.
func (i *Inspector) fly(ctx context.Context, f *flight, tg *target) {
	i.metrics.fetches.Inc()
	defer i.metrics.fetches.Dec()
	ctx = context.WithValue(ctx, flightKey{}, f)
	result := kept{tag: cache.Tag{Candidate: -1}}
	defer func() {
		if fault := recover(); fault != nil {
			result = kept{tag: cache.Tag{Err: i.panicked(ctx, fault), Candidate: -1}}
		}
		i.land(f, tg, result)
	}()
	result = i.resolve(ctx, f, tg)
}

func (i *Inspector) panicked(ctx context.Context, fault any) *provider.Error {
	i.log.ErrorContext(ctx, "inspection panicked", "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
	return provider.Errorf(provider.ClassInternal, "the look-up failed in a way that it should not")
}

// resolve asks the candidates and keeps what the first good one said.
func (i *Inspector) resolve(ctx context.Context, f *flight, tg *target) kept {
	old, hadOld := i.cache.Tag(tg.key, i.clock.Now())
	hadOld = hadOld && old.Facts != (cache.Key{})
	if !hadOld && tg.public {
		if tag, facts, ok := i.cache.SharedTag(ctx, tg.key); ok && int(tag.Candidate) < len(tg.candidates) {
			if !f.confirm && i.fresh(tg, i.clock.Now().Sub(tag.Checked)) {
				return kept{tag, facts}
			}
			old, hadOld = tag, true
		}
	}
	lead, release := i.lead(ctx, tg, hadOld)
	defer release()

	last, failures := i.firstGood(ctx, f, tg.candidates, func(ctx context.Context, n int) (found, *provider.Error) {
		c := &tg.candidates[n]
		headFirst := !lead && (hadOld || i.cache.Seen(c.seenKey()))
		first := -1
		if hadOld && int(old.Candidate) == n {
			first = int(old.Credential)
		}
		got, err := i.lookup(ctx, f, c, first, headFirst)
		if err != nil && err != errKept {
			i.log.DebugContext(ctx, "look-up failed", "registry", c.registry, "class", err.Class, "error", err.Unwrap())
		}
		return got, err
	})
	if last.err == nil {
		return i.keep(tg, last.n, last.got)
	}
	if last.err == errKept {
		if facts, ok := i.cache.Facts(old.Facts); ok {
			return kept{old, facts}
		}
	}
	if n := int(old.Candidate); hadOld && n >= 0 && n < len(failures) {
		hadOld = !takesBack(failures[n])
	}
	return i.keepFailure(tg, old, hadOld, last.n, last.err)
}

// takesBack tells whether a place that gave an answer has it no more. Another
// place may never have had it.
func takesBack(err *provider.Error) bool {
	return err != nil && (refused(err) || !err.Class.Retryable())
}

// attempt is what came of asking candidate n.
type attempt struct {
	n   int
	got found
	err *provider.Error
}

// outweighs tells whether a failure is the one to report, not other. One that may
// pass leaves open what that place has. Among equals it is the last place's,
// which is the source's own.
func (a attempt) outweighs(other attempt) bool {
	if other.err == nil {
		return true
	}
	if passes := a.err.Class.Retryable(); passes != other.err.Class.Retryable() {
		return passes
	}
	return a.n > other.n
}

// firstGood asks the candidates in order, as container runtimes do: the next one
// when the one before has failed. It is asked as well when the one before has been
// silent for its share of the time, so that one stalled mirror does not cost the
// answer; then the first that answers well counts. A silent one is not cut off: its
// host's gate has to learn that it is silent. The places of another source, where a
// short name is searched next, have another image: they are asked only when all
// before have failed.
//
// failures has that of each candidate, nil where none was seen.
func (i *Inspector) firstGood(ctx context.Context, f *flight, places []candidate, ask func(context.Context, int) (found, *provider.Error)) (last attempt, failures []*provider.Error) {
	candidates := len(places)
	failures = make([]*provider.Error, candidates)
	if candidates == 1 {
		got, err := ask(ctx, 0)
		failures[0] = err
		return attempt{0, got, err}, failures
	}
	attempts := make(chan attempt, candidates)
	next, pending := 0, 0
	begin := func() {
		n := next
		next, pending = next+1, pending+1
		deadline, _ := ctx.Deadline()
		if next < candidates {
			deadline = time.Now().Add(time.Until(deadline) / 2)
		}
		begun := i.background(func(own context.Context) { //nolint:contextcheck // it may outlive the look-up
			own, cancel := context.WithDeadline(context.WithValue(own, flightKey{}, f), deadline)
			defer cancel()
			outcome := attempt{n: n}
			defer func() {
				if fault := recover(); fault != nil {
					outcome.err = i.panicked(own, fault)
				}
				attempts <- outcome
			}()
			outcome.got, outcome.err = ask(own, n)
		})
		if !begun {
			attempts <- attempt{n: n, err: wrap(provider.ClassTimeout, errClosed.Error(), errClosed)}
		}
	}
	begin()
	var failure attempt
	for pending > 0 {
		wait, awaited := f.share(ctx, candidates-next)
		timer := time.NewTimer(wait)
		silent := timer.C
		alike := next < candidates && places[next].source == places[next-1].source
		if !alike {
			silent = nil // there is nobody else to ask
		}
		select {
		case a := <-attempts:
			pending--
			if a.err == nil || a.err == errKept {
				timer.Stop()
				return a, failures
			}
			failures[a.n] = a.err
			if a.outweighs(failure) {
				failure = a
			}
			if alike && a.n == next-1 || pending == 0 && next < candidates {
				begin()
			}
		case <-silent:
			if !awaited || f.left() > 0 {
				begin()
			}
		case <-f.hurry:
		}
		timer.Stop()
	}
	return failure, failures
}

// lead lets one caller go first for a reference that nobody has seen; the others
// then need only its digest. It waits for one leader at most.
func (i *Inspector) lead(ctx context.Context, tg *target, known bool) (lead bool, release func()) {
	c := &tg.candidates[0]
	key := c.seenKey()
	if known || i.cache.Seen(key) {
		return false, func() {}
	}
	i.mu.Lock()
	before, taken := i.leaders[key]
	if !taken {
		mine := make(chan struct{})
		i.leaders[key] = mine
		i.mu.Unlock()
		return true, func() {
			i.mu.Lock()
			delete(i.leaders, key)
			i.mu.Unlock()
			close(mine)
		}
	}
	i.mu.Unlock()
	timer := time.NewTimer(leaderWait)
	defer timer.Stop()
	select {
	case <-before:
	case <-timer.C:
	case <-ctx.Done():
	}
	return false, func() {}
}

// keep keeps a good answer under the caller's key, for the tag and for the
// digest.
func (i *Inspector) keep(tg *target, n int, got found) kept {
	now := i.clock.Now()
	tag := cache.Tag{
		Facts: got.key, Checked: now, Candidate: int8(n), Credential: int8(got.position), Public: tg.public, //nolint:gosec // G115: bounded by maxCandidates and maxCredentials
	}
	i.cache.PutTag(tg.key, tag)
	c := &tg.candidates[n]
	i.cache.MarkSeen(tg.candidates[0].seenKey())
	if n > 0 {
		i.cache.MarkSeen(c.seenKey())
	}
	if tg.ref.Digest() == "" {
		if key, ok := tg.pinned(i.options.Mirrors(), got.facts.Digest); ok {
			i.cache.PutTag(key, tag)
		}
	}
	return kept{tag, got.facts}
}

// keepFailure keeps a failure for a while. What was known before and was not taken
// back is kept beside it, unless the failure is a verdict.
func (i *Inspector) keepFailure(tg *target, old cache.Tag, hadOld bool, n int, err *provider.Error) kept {
	if err == nil {
		err = provider.Errorf(provider.ClassInternal, "no registry was asked")
	}
	failed := cache.Tag{Candidate: int8(n), Credential: -1, Public: tg.public, Err: err} //nolint:gosec // G115: bounded by maxCandidates
	life := time.Duration(0)
	switch err.Class {
	case provider.ClassNotFound:
		life = notFoundLife
	case provider.ClassUnauthorized:
		life = unauthorizedLife
	case provider.ClassRateLimited:
		if life = err.RetryAfter; life <= 0 {
			life = rateLimitedLife
		}
	case provider.ClassUnreachable, provider.ClassTimeout:
		life = unreachableLife
	case provider.ClassBlocked, provider.ClassInvalidContent, provider.ClassNotRunnable, provider.ClassMalformed:
		life = durableLife
	case provider.ClassInternal:
	}
	if life == 0 || i.base.Err() != nil {
		return kept{tag: failed}
	}
	stored := failed
	stored.Until = i.clock.Now().Add(life)
	if hadOld && err.Class.Retryable() {
		stored.Facts, stored.Checked, stored.Candidate, stored.Credential = old.Facts, old.Checked, old.Candidate, old.Credential
	}
	i.cache.PutTag(tg.key, stored)
	return kept{tag: failed}
}

// answer writes an answer for one caller: what is shared is told, the sources
// of credentials are the caller's own.
func (i *Inspector) answer(q provider.Query, tg *target, k kept) provider.Answer {
	a := provider.Answer{Image: q.Image, Reference: tg.canonical, Digest: tg.ref.Digest(), Checked: k.tag.Checked}
	if n := int(k.tag.Candidate); n >= 0 && n < len(tg.candidates) {
		c := &tg.candidates[n]
		a.Reference = c.canonical
		if c.mirror && k.facts != nil {
			a.Mirror = c.place
		}
		if k.facts != nil {
			used := c.credential(int(k.tag.Credential))
			a.CredentialSource = used.Source()
			a.AnonymousFallback = used.Anonymous() && len(c.creds) > 0
		}
	}
	if k.facts == nil {
		a.Err = i.explain(tg, k.tag.Err, int(k.tag.Candidate))
		return a
	}
	a.Kind = k.facts.Kind
	if a.Digest == "" {
		a.Digest = k.facts.Digest
	}
	a.Warnings = k.facts.Warnings
	if k.facts.Err != nil {
		a.Err = k.facts.Err
		if n := int(k.tag.Candidate); n >= 0 && n < len(tg.candidates) {
			a.Err = describeErr(&tg.candidates[n], 0, k.facts.Err)
		}
		return a
	}
	a.Platforms, a.Architectures, a.ContentOnly = k.facts.Platforms, k.facts.Architectures, k.facts.ContentOnly
	return a
}

// explain adds to a refusal what was tried, and why something may be missing.
func (i *Inspector) explain(tg *target, err *provider.Error, n int) *provider.Error {
	if !refused(err) || n < 0 || n >= len(tg.candidates) {
		return err
	}
	tried := make([]string, 0, 4)
	for _, credential := range tg.candidates[n].creds {
		tried = append(tried, credential.Source())
	}
	tried = append(tried, "anonymous")
	explained := *err
	explained.Message += "; tried: " + strings.Join(tried, ", ")
	if tg.keychainErr != nil {
		explained.Message += "; not tried: " + tg.keychainErr.Error()
	}
	return &explained
}
