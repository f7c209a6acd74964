package registry

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/reach"
)

const (
	maxRedirects = 5

	// hubRegistry is where docker.io's registry listens.
	hub         = "docker.io"
	hubRegistry = "registry-1.docker.io"

	// drainLimit is how much of an unneeded body is read so that its
	// connection can be used again, and drainTime for how long.
	drainLimit = 16 << 10
	drainTime  = 500 * time.Millisecond

	// firstWait is how long requests to a new host wait for its first answer
	// before one of them goes as well, and firstWaits how many such waits the
	// others stand.
	firstWait  = 100 * time.Millisecond
	firstWaits = 5

	// maxHosts bounds the hosts whose state is remembered.
	maxHosts = 4096
)

// transport speaks to registries: one request at a time is authorized,
// admitted by its host's gate, sent, followed through redirects, and read
// within limits.
type transport struct {
	reach   *reach.Reach
	clock   clock.Clock
	log     *slog.Logger
	metrics *metrics
	agent   string
	tokens  *tokens
	bodies  allPlaces

	mu    sync.Mutex
	hosts map[hostKey]*hostState
}

// hostState is what is remembered of one host. It lives as long as the process
// or until too many hosts are known.
type hostState struct {
	host   string
	gate   *gate
	bodies hostPlaces
	slow   slowness
	used   time.Time // guarded by transport.mu

	mu        sync.Mutex
	challenge *challenge    // of the last 401; nil when none was seen
	open      bool          // it served without a challenge
	first     chan struct{} // closed when the latest of the first requests is over; nil before it is sent
	known     chan struct{} // closed when challenge or open is set
	plain     bool          // an insecure location that speaks no TLS
	head      headState
	headUntil time.Time // headBad is forgotten then
	quotas    map[who]quota
}

// headState is what is known of a host's HEAD.
type headState int

const (
	headUnknown headState = iota
	headGood              // it answered with the digest that GET has
	headBad               // it refuses HEAD, sends no digest, or a wrong one
)

// location is where content is looked for.
type location struct {
	registry   string // as references name it
	host       string // as it is dialled
	repository string
	insecure   bool
}

// request for content of a location.
type request struct {
	location
	method string
	path   string // below /v2/<repository>/
	accept string
	what   string // for messages
	limit  int64  // of the body, in bytes
	unit   string // "manifest" or "config", for messages
	cred   credentials.Credential
	pull   bool // a GET of a manifest, which counts against quotas
}

// response to a request, read whole.
type response struct {
	status int
	header http.Header
	body   []byte
}

func (r *request) who() who { return who(r.cred.Fingerprint()) }

// hostKey keeps what an unverified connection taught apart: its challenge
// would tell a verified one where to send credentials.
type hostKey struct {
	host     string
	insecure bool
}

func (t *transport) state(host string, insecure bool) *hostState {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := hostKey{host, insecure}
	s, ok := t.hosts[key]
	if !ok {
		if len(t.hosts) >= maxHosts {
			t.forget()
		}
		s = &hostState{
			host: host, gate: newGate(host, t.clock, t.metrics.circuit),
			bodies: placesOfHost(), slow: slowness{only: semaphore.NewWeighted(1)}, quotas: map[who]quota{}, known: make(chan struct{}),
		}
		t.hosts[key] = s
	}
	s.used = t.clock.Now()
	return s
}

// forget drops the half of the hosts that was used least of late. Requests
// that are under way keep their state.
func (t *transport) forget() {
	var newest, oldest time.Time
	for _, s := range t.hosts {
		if oldest.IsZero() || s.used.Before(oldest) {
			oldest = s.used
		}
		if s.used.After(newest) {
			newest = s.used
		}
	}
	middle := oldest.Add(newest.Sub(oldest) / 2)
	for key, s := range t.hosts {
		if !s.used.After(middle) {
			delete(t.hosts, key)
		}
	}
}

// do sends a request as its credential demands and gives the answer, whose
// status is 200, or an error. A 401 is answered once for each way to authorize.
func (t *transport) do(ctx context.Context, r *request) (*response, *provider.Error) {
	state := t.state(r.host, r.insecure)
	release := state.claimFirst(ctx, t.clock)
	defer release()

	scope := ""
	authorization, fromCache, err := t.authorize(ctx, state, r, scope)
	if err != nil {
		return nil, err
	}
	renewed := false
	for {
		answer, err := t.send(ctx, state, r, authorization)
		if err != nil {
			return nil, err
		}
		if answer.status != http.StatusUnauthorized {
			state.answered(authorization == "")
			release()
			return t.judge(r, answer)
		}
		next, ok := pick(challenges(answer.header))
		if !ok {
			return t.judge(r, answer)
		}
		state.challenged(next)
		release()
		if strings.HasPrefix(authorization, "Bearer ") {
			// The word of a token made just now is final. One that was kept may
			// have ended or been revoked, and one for another scope says nothing.
			if renewed || !fromCache && r.scope(scope) == r.scope(next.parameters["scope"]) {
				return t.judge(r, answer)
			}
			t.tokens.reject(authorization)
			renewed = true
		}
		previous := authorization
		scope = next.parameters["scope"]
		authorization, fromCache, err = t.authorize(ctx, state, r, scope)
		if err != nil {
			return nil, err
		}
		if authorization == "" || authorization == previous {
			return t.judge(r, answer)
		}
	}
}

// judge turns any status but 200 into an error.
func (t *transport) judge(r *request, answer *response) (*response, *provider.Error) {
	if answer.status == http.StatusOK {
		return answer, nil
	}
	return nil, statusError(r.registry, r.what, answer.status, answer.header, exceeded(answer))
}

// exceeded tells whether an error answer names the registry's own quota.
func exceeded(answer *response) bool {
	if answer.status != http.StatusForbidden || len(answer.body) == 0 {
		return false
	}
	var list struct {
		Errors []struct {
			Code string `json:"code"`
		} `json:"errors"`
	}
	if json.Unmarshal(answer.body, &list) != nil {
		return false
	}
	for _, e := range list.Errors {
		if e.Code == "TOOMANYREQUESTS" {
			return true
		}
	}
	return false
}

// claimFirst lets one request be the first to a host that is not known yet: its
// answer tells the others how to authorize, so that a burst costs one challenge.
// The first may hang alone: after each firstWait one more goes, and the first of
// their answers serves all.
func (s *hostState) claimFirst(ctx context.Context, c clock.Clock) (release func()) {
	var behind chan struct{} // whom this request has waited for in vain
	for waits := 0; ; waits++ {
		s.mu.Lock()
		if s.challenge != nil || s.open {
			s.mu.Unlock()
			return func() {}
		}
		first := s.first
		if first == nil || first == behind {
			mine := make(chan struct{})
			s.first = mine
			s.mu.Unlock()
			return sync.OnceFunc(func() {
				s.mu.Lock()
				if s.first == mine && s.challenge == nil && !s.open {
					s.first = nil // it failed: another may be the first
				}
				s.mu.Unlock()
				close(mine)
			})
		}
		s.mu.Unlock()
		if waits == firstWaits {
			return func() {}
		}
		timer := c.NewTimer(firstWait)
		select {
		case <-timer.C():
			behind = first
			continue
		case <-s.known:
		case <-first:
		case <-ctx.Done():
		}
		timer.Stop()
		return func() {}
	}
}

func (s *hostState) answered(anonymous bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if anonymous && s.challenge == nil && !s.open {
		s.open = true
		close(s.known)
	}
}

func (s *hostState) challenged(c challenge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.challenge == nil && !s.open {
		close(s.known)
	}
	s.challenge = &c
}

func (s *hostState) lastChallenge() *challenge {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.challenge
}

// pick gives the challenge to answer: bearer before basic.
func pick(all []challenge) (challenge, bool) {
	var basic *challenge
	for i, c := range all {
		switch c.scheme {
		case "bearer":
			if c.parameters["realm"] != "" {
				return c, true
			}
		case "basic":
			if basic == nil {
				basic = &all[i]
			}
		}
	}
	if basic != nil {
		return *basic, true
	}
	return challenge{}, false
}

// send sends one request and follows its redirects.
func (t *transport) send(ctx context.Context, state *hostState, r *request, authorization string) (*response, *provider.Error) {
	scheme := "https"
	if t.reach.PlainHTTP(r.registry) || r.insecure && state.speaksPlain() {
		scheme = "http"
	}
	tripper := t.reach.RoundTripper(r.registry, r.insecure)
	target := &url.URL{Scheme: scheme, Host: r.host, Path: "/v2/" + r.repository + "/" + r.path}
	answer, err := t.follow(ctx, tripper, state, r, target, authorization)
	if err != nil && r.insecure && scheme == "https" && err.Class == provider.ClassUnreachable && err.HTTPStatus == 0 && ctx.Err() == nil {
		// "insecure" means both: a certificate that is not verified, and none.
		target.Scheme = "http"
		plain, plainErr := t.follow(ctx, tripper, state, r, target, authorization)
		if plainErr == nil {
			state.setPlain()
			return plain, nil
		}
	}
	return answer, err
}

func (s *hostState) speaksPlain() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plain
}

func (s *hostState) setPlain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain = true
}

// follow sends one request and those that its redirects lead to. Authorization
// goes to the first host alone.
func (t *transport) follow(ctx context.Context, tripper http.RoundTripper, state *hostState, r *request, target *url.URL, authorization string) (*response, *provider.Error) {
	origin := target
	for range maxRedirects + 1 {
		headers := http.Header{"Accept-Encoding": {"identity"}, "User-Agent": {t.agent}}
		if r.accept != "" {
			headers.Set("Accept", r.accept)
		}
		if authorization != "" && target.Host == origin.Host && target.Scheme == origin.Scheme {
			headers.Set("Authorization", authorization)
		}
		if target.Host != origin.Host {
			state = t.state(target.Host, r.insecure)
		}
		answer, err := t.once(ctx, tripper, state, call{
			method: r.method, url: target, header: headers, who: r.who(), repository: r.repository,
			limit: r.limit, unit: r.unit, what: r.what,
		})
		if err != nil {
			return nil, err
		}
		if !redirect(answer.status) {
			if r.pull && target.Host == origin.Host {
				state.readQuota(r.who(), answer.header, t.clock.Now())
			}
			return answer, nil
		}
		next, parseErr := target.Parse(answer.header.Get("Location"))
		switch {
		case answer.header.Get("Location") == "" || parseErr != nil || next.Host == "":
			return nil, transportError(ctx, r.registry, errBadRedirect)
		case target.Scheme == "https" && next.Scheme != "https":
			return nil, transportError(ctx, r.registry, errDowngrade)
		}
		next.User = nil
		target = next
	}
	return nil, transportError(ctx, r.registry, errTooManyRedirects)
}

func redirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// call is one HTTP exchange.
type call struct {
	method     string
	url        *url.URL
	header     http.Header
	form       url.Values // body of a POST
	who        who
	repository string
	limit      int64
	unit       string
	what       string
}

// once makes one HTTP exchange through the gate of its host and reads the body
// of a 200 within the limit.
func (t *transport) once(ctx context.Context, tripper http.RoundTripper, state *hostState, c call) (*response, *provider.Error) {
	if err := state.gate.enter(ctx, c.who, func(err *provider.Error) { noteWaiting(ctx, err) }); err != nil {
		return nil, err
	}
	started := t.clock.Now()
	done := t.metrics.started()
	result, wait := verdictAbandoned, time.Duration(0)
	status := 0
	defer func() {
		done(state.host, status, result)
		state.gate.leave(c.who, c.repository, started, result, wait)
	}()

	// Nothing may outlive the exchange: a body that is not read to its end is
	// cut off here.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var body io.Reader
	if c.form != nil {
		body = strings.NewReader(c.form.Encode())
		c.header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	request, err := http.NewRequestWithContext(ctx, c.method, c.url.String(), body)
	if err != nil {
		return nil, transportError(ctx, c.url.Host, errBadRedirect)
	}
	request.Header = c.header
	httpResponse, err := tripper.RoundTrip(request)
	if err != nil {
		failed := transportError(ctx, displayHost(c.url.Host), err)
		switch {
		case failed.Class == provider.ClassBlocked, errors.Is(ctx.Err(), context.Canceled):
		default:
			result = verdictNoAnswer
		}
		t.log.DebugContext(ctx, "registry request failed", "host", c.url.Host, "class", failed.Class, "error", err)
		return nil, failed
	}
	defer httpResponse.Body.Close()
	status = httpResponse.StatusCode
	answer := &response{status: status, header: httpResponse.Header}
	switch {
	case status == http.StatusTooManyRequests:
		result, wait = verdictThrottled, retryAfter(httpResponse.Header)
	case status == http.StatusServiceUnavailable && httpResponse.Header.Get("Retry-After") != "":
		result, wait = verdictThrottled, retryAfter(httpResponse.Header)
	case status >= 500:
		result = verdictServer
	default:
		result = verdictOK
	}
	if status != http.StatusOK || c.method == http.MethodHead {
		answer.body = drain(httpResponse)
		return answer, nil
	}
	content, bodyErr := t.read(ctx, cancel, state, httpResponse, c)
	if bodyErr != nil {
		if errors.Is(bodyErr, errSlowBody) {
			result = verdictNoAnswer
		}
		return nil, bodyErr
	}
	answer.body = content
	return answer, nil
}

// drain reads a short body to its end so that the connection can be used again.
func drain(r *http.Response) []byte {
	if r.ContentLength > drainLimit || r.Body == nil || r.ContentLength == 0 {
		return nil
	}
	timer := time.AfterFunc(drainTime, func() { r.Body.Close() })
	defer timer.Stop()
	body, err := io.ReadAll(io.LimitReader(r.Body, drainLimit))
	if err != nil {
		return nil
	}
	return body
}

// read gives the body of a response, whole and within the limit, or says why
// not. A body cut short is unreachable: the next try may have all of it. giveUp ends
// ctx, which is the exchange's: unlike closing its body, that never waits.
func (t *transport) read(ctx context.Context, giveUp context.CancelFunc, state *hostState, r *http.Response, c call) ([]byte, *provider.Error) {
	host := displayHost(c.url.Host)
	tooLarge := func() *provider.Error {
		err := provider.Errorf(provider.ClassInvalidContent, "registry %s: the %s of %s is larger than %d bytes", host, c.unit, c.what, c.limit)
		err.HTTPStatus = r.StatusCode
		return err
	}
	if r.ContentLength > c.limit {
		return nil, tooLarge()
	}
	source := io.Reader(r.Body)
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		// Not asked for, but some proxies know better.
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, t.bodyError(ctx, host, c, err)
		}
		source = unzipped
	default:
		return nil, provider.Errorf(provider.ClassInvalidContent, "registry %s: the %s of %s has the content encoding %s, which was not asked for", host, c.unit, c.what, provider.Quote(encoding))
	}
	var buffer bytes.Buffer
	var held []*holder
	var cut atomic.Bool
	cutOff := func(fault bool) {
		if fault {
			cut.Store(true)
			state.slow.set(t.clock.Now())
		}
		giveUp()
	}
	// fill reads up to so many bytes in all and tells whether there may be more.
	fill := func(bound int64) (bool, *provider.Error) {
		bound = min(bound, c.limit+1)
		buffer.Grow(int(max(min(r.ContentLength, bound)-int64(buffer.Len()), 0)) + bytes.MinRead)
		_, err := io.Copy(&buffer, &counted{io.LimitReader(source, bound-int64(buffer.Len())), held})
		switch {
		case err == nil:
		case cut.Load():
			return false, wrap(provider.ClassTimeout, "registry "+host+": the "+c.unit+" of "+c.what+" comes too slowly while others wait", errSlowBody)
		case len(held) == 0 && errors.Is(ctx.Err(), context.DeadlineExceeded): // nothing of ours took the time
			return false, wrap(provider.ClassTimeout, "registry "+host+": the deadline came while reading the "+c.unit+" of "+c.what, errSlowBody)
		default:
			return false, t.bodyError(ctx, host, c, err)
		}
		if int64(buffer.Len()) > c.limit {
			return false, tooLarge()
		}
		return int64(buffer.Len()) == bound, nil
	}
	for n, size := range bodySizes {
		if more, err := fill(size.above); !more {
			return buffer.Bytes(), err
		}
		for _, h := range held {
			h.pause()
		}
		if err := state.bodies[n].Acquire(ctx, 1); err != nil {
			return nil, timeoutError(ctx, host, "waiting to read a large body")
		}
		defer state.bodies[n].Release(1)
		if n == 0 {
			release, err := state.slow.acquire(ctx, t.clock.Now())
			if err != nil {
				return nil, timeoutError(ctx, host, "waiting to read a large body")
			}
			defer release()
		}
		place, err := t.bodies[n].acquire(ctx, cutOff)
		if err != nil {
			return nil, timeoutError(ctx, host, "waiting to read a large body")
		}
		defer t.bodies[n].release(place)
		for _, h := range held {
			h.resume(time.Now())
		}
		held = append(held, place)
	}
	_, err := fill(c.limit + 1)
	return buffer.Bytes(), err
}

// counted tells the places of a body what was read.
type counted struct {
	io.Reader
	held []*holder
}

// Read implements io.Reader.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	for _, h := range c.held {
		h.got(n, time.Now())
	}
	return n, err
}

func (t *transport) bodyError(ctx context.Context, host string, c call, err error) *provider.Error {
	switch {
	case ctx.Err() != nil:
		return timeoutError(ctx, host, "reading the "+c.unit+" of "+c.what)
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum):
		return wrap(provider.ClassInvalidContent, fmt.Sprintf("registry %s: the %s of %s is not the gzip that it says it is", host, c.unit, c.what), err)
	}
	return wrap(provider.ClassUnreachable, fmt.Sprintf("registry %s: the %s of %s was cut short", host, c.unit, c.what), err)
}

// retryAfter reads Retry-After in both of its forms, RFC 9110 section 10.2.3; 0
// when there is none.
func retryAfter(h http.Header) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0
	}
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return min(max(time.Duration(seconds)*time.Second, 0), maxPause)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now := time.Now()
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date // its clock, not ours
	}
	return min(max(at.Sub(now), 0), maxPause)
}

// dialHost gives where a registry listens.
func dialHost(registry string) string {
	if registry == hub {
		return hubRegistry
	}
	return registry
}

func displayHost(host string) string {
	if host == hubRegistry {
		return hub
	}
	return host
}
