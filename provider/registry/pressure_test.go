package registry_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestAWaiterKeepsItsDeadlineAndTheNextAskIsWarm(t *testing.T) {
	r := newRegistry(t)
	r.PutIndex("team/app", "v1", "linux/amd64")
	let := make(chan struct{})
	r.Behave("GET", "/v2/team/app/", func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		<-let
		next.ServeHTTP(w, q)
	})
	i := newInspector(t, registry.Options{}, r)
	image := r.Host() + "/team/app:v1"
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	a := i.Inspect(ctx, []provider.Query{{Image: image}})[0]
	wantClass(t, a, provider.ClassTimeout)
	if !a.Err.Class.Retryable() {
		t.Error("a timeout is worth another try")
	}
	close(let)
	eventually(t, "the look-up ends", func() bool { requests := r.Requests(); return len(requests) == 1 && requests[0].Status == 200 })
	wantPlatforms(t, inspect(t, i, image), "linux/amd64")
	wantRequests(t, r, "GET /v2/team/app/manifests/v1 200")
}

func TestOneSlowImageCostsNoOtherItsAnswer(t *testing.T) {
	r := newRegistry(t)
	r.PutIndex("slow", "v1", "linux/amd64")
	r.PutIndex("fast", "v1", "linux/amd64")
	r.Behave("", "/v2/slow/", r.Stall())
	i := newInspector(t, registry.Options{Timeout: 1500 * time.Millisecond}, r)
	answers := i.Inspect(t.Context(), []provider.Query{{Image: r.Host() + "/slow:v1"}, {Image: r.Host() + "/fast:v1"}, {Image: "Not An Image"}})
	wantClass(t, answers[0], provider.ClassTimeout)
	wantPlatforms(t, answers[1], "linux/amd64")
	wantClass(t, answers[2], provider.ClassMalformed)
}

func TestFailuresAreRememberedByTheirClass(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		header string
		class  provider.Class
		life   time.Duration
	}{
		"not found for half a minute":               {404, "", provider.ClassNotFound, 30 * time.Second},
		"forbidden for a minute":                    {403, "", provider.ClassUnauthorized, time.Minute},
		"rate-limited until the registry's time":    {429, "Retry-After: 120", provider.ClassRateLimited, 2 * time.Minute},
		"a failing registry for some seconds":       {500, "", provider.ClassUnreachable, 5 * time.Second},
		"rate-limited without a time, some seconds": {429, "", provider.ClassRateLimited, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Now())
			r := newRegistry(t)
			r.PutIndex("team/app", "v1", "linux/amd64")
			if test.header == "" {
				r.Behave("", "/v2/", registrytest.Status(test.status))
			} else {
				r.Behave("", "/v2/", registrytest.Status(test.status, test.header))
			}
			i := newInspector(t, registry.Options{Clock: clock}, r)
			image := r.Host() + "/team/app:v1"
			wantClass(t, inspect(t, i, image), test.class)
			r.Forget()
			clock.Step(test.life - time.Second)
			a := inspect(t, i, image)
			wantClass(t, a, test.class)
			if test.class == provider.ClassRateLimited && a.Err.RetryAfter > test.life && test.header != "" {
				t.Errorf("retry after %s of %s", a.Err.RetryAfter, test.life)
			}
			wantRequests(t, r)
			r.Misbehave()
			clock.Step(2 * time.Second)
			wantPlatforms(t, inspect(t, i, image), "linux/amd64")
		})
	}
}

func TestAStaleAnswerIsGivenWhileOneHeadConfirmsIt(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	r := newRegistry(t)
	r.PutIndex("team/app", "v1", "linux/amd64")
	i := newInspector(t, registry.Options{Clock: clock, TagTTL: time.Minute, MaxStale: time.Hour}, r)
	image := r.Host() + "/team/app:v1"
	wantPlatforms(t, inspect(t, i, image), "linux/amd64")
	r.Forget()

	clock.Step(59 * time.Second)
	wantPlatforms(t, inspect(t, i, image), "linux/amd64")
	wantRequests(t, r)

	clock.Step(2 * time.Second)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { inspect(t, i, image) })
	}
	wg.Wait()
	eventually(t, "the answer is confirmed", func() bool { return inspect(t, i, image).Checked.Equal(clock.Now().Truncate(time.Millisecond)) })
	wantRequests(t, r, "HEAD /v2/team/app/manifests/v1 200")

	t.Run("a moved tag is read again behind the stale answer", func(t *testing.T) {
		r.PutIndex("team/app", "v1", "linux/arm64")
		clock.Step(2 * time.Minute)
		wantPlatforms(t, inspect(t, i, image), "linux/amd64")
		eventually(t, "the new image is known", func() bool { return slices.Equal(inspect(t, i, image).Platforms, []string{"linux/arm64"}) })
		r.Forget()
	})
	t.Run("an outage leaves it, and is not asked about at each query", func(t *testing.T) {
		r.Behave("", "/", registrytest.Status(500))
		clock.Step(2 * time.Minute)
		wantPlatforms(t, inspect(t, i, image), "linux/arm64")
		eventually(t, "the outage is seen", func() bool { return len(r.Requests()) == 1 && r.Requests()[0].Status == 500 })
		for range 20 {
			wantPlatforms(t, inspect(t, i, image), "linux/arm64")
		}
		if n := len(r.Requests()); n > 2 { // the second may have been begun before the first was kept
			t.Errorf("%d requests: %v", n, r.Lines())
		}
		r.Misbehave()
	})
	t.Run("too old an answer is not given", func(t *testing.T) {
		r.Behave("", "/", registrytest.Status(500))
		clock.Step(2 * time.Hour)
		wantClass(t, inspect(t, i, image), provider.ClassUnreachable)
	})
}

func TestRefreshesSpendNoPullsWhenFewAreLeft(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	r := newRegistry(t)
	r.PutIndex("team/app", "v1", "linux/amd64")
	var remaining atomic.Int64
	remaining.Store(20)
	r.Behave("GET", "/v2/", func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		w.Header().Set("RateLimit-Limit", "100;w=21600")
		w.Header().Set("RateLimit-Remaining", fmt.Sprintf("%d;w=21600", remaining.Add(-1)))
		next.ServeHTTP(w, q)
	})
	i := newInspector(t, registry.Options{Clock: clock, TagTTL: time.Minute}, r)
	image := r.Host() + "/team/app:v1"
	wantPlatforms(t, inspect(t, i, image), "linux/amd64") // 19 of 100 are left now
	r.PutIndex("team/app", "v1", "linux/arm64")
	r.Forget()
	clock.Step(2 * time.Minute)
	wantPlatforms(t, inspect(t, i, image), "linux/amd64")
	eventually(t, "the HEAD is made", func() bool { return len(r.Requests()) == 1 && r.Requests()[0].Status == 200 })
	time.Sleep(20 * time.Millisecond) // for a GET that must not come
	if lines := r.Lines(); lines[0] != "HEAD /v2/team/app/manifests/v1 200" || slices.Contains(lines, "GET /v2/team/app/manifests/v1 200") {
		t.Fatalf("requests %v", lines)
	}
	t.Run("who wants it confirmed has it read", func(t *testing.T) {
		a := i.Inspect(t.Context(), []provider.Query{{Image: image, Revalidate: true}})[0]
		wantPlatforms(t, a, "linux/arm64")
	})
}

func TestAShortRetryAfterIsWaitedOutByOthers(t *testing.T) {
	r := newRegistry(t)
	for _, name := range []string{"one", "two", "three"} {
		r.PutIndex(name, "v1", "linux/amd64")
	}
	for _, name := range []string{"one", "two"} {
		r.Behave("", "/v2/"+name+"/", registrytest.Status(429, "Retry-After: 1"))
	}
	i := newInspector(t, registry.Options{}, r)
	wantClass(t, inspect(t, i, r.Host()+"/one:v1"), provider.ClassRateLimited)
	wantClass(t, inspect(t, i, r.Host()+"/two:v1"), provider.ClassRateLimited)
	r.Forget()
	started := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	wantClass(t, i.Inspect(ctx, []provider.Query{{Image: r.Host() + "/three:v1"}})[0], provider.ClassRateLimited)
	wantRequests(t, r)
	wantPlatforms(t, inspect(t, i, r.Host()+"/three:v1"), "linux/amd64")
	if waited := time.Since(started); waited < 500*time.Millisecond {
		t.Errorf("asked again after %s", waited)
	}
}

func TestAHostThatDoesNotAnswerIsLeftAlone(t *testing.T) {
	w, err := registrytest.NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	metrics := prometheus.NewRegistry()
	i := newInspector(t, registry.Options{Reach: worldReach(t, w, false), Metrics: metrics})
	for n := range 20 {
		wantClass(t, inspect(t, i, fmt.Sprintf("%s/app:v%d", w.Closed, n)), provider.ClassUnreachable)
	}
	if got := value(t, metrics, "archkeeper_registry_requests_total", "outcome", "error"); got != 8 {
		t.Errorf("%v requests were made before the circuit opened, want 8", got)
	}
	if got := value(t, metrics, "archkeeper_registry_circuit_open", "registry", w.Closed); got != 1 {
		t.Errorf("the circuit's gauge is %v", got)
	}
}

// value gives a metric's value, summed over all series with a label.
func value(t *testing.T, g prometheus.Gatherer, name, label, want string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label && l.GetValue() == want {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return sum
}

func TestAStalledRegistrySlowsNoOther(t *testing.T) {
	w, err := registrytest.NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	healthy := w.Registry
	healthy.Delay(20 * time.Millisecond)
	for n := range 80 {
		healthy.PutIndex("app", fmt.Sprintf("v%d", n), "linux/amd64")
	}
	i := newInspector(t, registry.Options{Reach: worldReach(t, w, false)})
	median := func(from int) time.Duration {
		var took []time.Duration
		for n := range 40 {
			started := time.Now()
			wantPlatforms(t, inspect(t, i, fmt.Sprintf("%s/app:v%d", healthy.Host(), from+n)), "linux/amd64")
			took = append(took, time.Since(started))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	unloaded := median(0)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	var wg sync.WaitGroup
	for n := range 1000 {
		wg.Go(func() { i.Inspect(ctx, []provider.Query{{Image: fmt.Sprintf("%s/app:v%d", w.Silent, n)}}) })
	}
	loaded := median(40)
	cancel()
	wg.Wait()
	t.Logf("median %s unloaded, %s beside a stalled registry with 1,000 waiting", unloaded, loaded)
	if loaded > 2*unloaded {
		t.Errorf("median %s became %s", unloaded, loaded)
	}
}

func TestTokensAreRenewedOnceAndBeforeTheyEnd(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	r := newRegistry(t)
	r.Bearer(registrytest.Tokens{Anonymous: true, Life: 100 * time.Second, Now: clock.Now})
	for n := range 60 {
		r.PutIndex("app", fmt.Sprintf("v%d", n), "linux/amd64")
	}
	i := newInspector(t, registry.Options{Clock: clock}, r)
	ask := func(from, to int) {
		var queries []provider.Query
		for n := from; n < to; n++ {
			queries = append(queries, provider.Query{Image: fmt.Sprintf("%s/app:v%d", r.Host(), n)})
		}
		for _, a := range i.Inspect(t.Context(), queries) {
			wantPlatforms(t, a, "linux/amd64")
		}
	}
	tokens := func() int { return r.Count(registrytest.Request.Token) }
	refused := func() int { return r.Count(func(q registrytest.Request) bool { return q.Status == 401 }) }
	ask(0, 20)
	if tokens() != 1 || refused() != 1 {
		t.Fatalf("%d tokens and %d challenges, want 1 and 1", tokens(), refused())
	}
	clock.Step(80 * time.Second)
	ask(20, 40)
	eventually(t, "the token is renewed", func() bool { return tokens() == 2 })
	clock.Step(15 * time.Second) // the first one has ended, or is about to
	ask(40, 60)
	if tokens() != 2 || refused() != 1 {
		t.Fatalf("%d tokens and %d challenges, want 2 and 1", tokens(), refused())
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	w, err := registrytest.NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.Registry.PutIndex("app", "v1", "linux/amd64")
	connections := worldReach(t, w, false)
	defer connections.CloseIdleConnections()
	i, err := registry.New(registry.Options{Reach: connections})
	if err != nil {
		t.Fatal(err)
	}
	wantPlatforms(t, inspect(t, i, w.Registry.Host()+"/app:v1"), "linux/amd64")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for n := range 20 {
		wantClass(t, i.Inspect(ctx, []provider.Query{{Image: fmt.Sprintf("%s/app:v%d", w.Silent, n)}})[0], provider.ClassTimeout)
	}
	i.Close()
	wantClass(t, inspect(t, i, w.Registry.Host()+"/app:v2"), provider.ClassTimeout)
	wantPlatforms(t, inspect(t, i, w.Registry.Host()+"/app:v1"), "linux/amd64")
}

// TestHostsThatTrickleLetOthersReadLargeBodies: more than there are places for
// bodies of that size, each of which would last for half a minute.
func TestHostsThatTrickleLetOthersReadLargeBodies(t *testing.T) {
	for name, test := range map[string]struct{ hosts, size, places int }{
		"bodies that are not small": {20, 40 << 10, 128},
		"bodies that are large":     {8, 600 << 10, 16},
	} {
		t.Run(name, func(t *testing.T) {
			const imagesOfHost = 8
			hosts := []*registrytest.Registry{newRegistry(t)}
			healthy := hosts[0]
			healthy.Behave("GET", "/v2/", registrytest.Body(registrytest.Index, strings.Repeat(" ", test.size)+
				`{"schemaVersion":2,"manifests":[{"digest":"`+registrytest.Digest([]byte("child"))+`","platform":{"os":"linux","architecture":"arm64"}}]}`))
			var queries []provider.Query
			for range test.hosts {
				r := newRegistry(t)
				r.Behave("", "/", r.Trickle(registrytest.Index, test.size))
				hosts = append(hosts, r)
				for n := range imagesOfHost {
					queries = append(queries, provider.Query{Image: fmt.Sprintf("%s/app:v%d", r.Host(), n)})
				}
			}
			i := newInspector(t, registry.Options{}, hosts...)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { i.Inspect(ctx, queries) })
			eventually(t, "the tricklers are asked", func() bool {
				asked := 0
				for _, r := range hosts[1:] {
					asked += len(r.Requests())
				}
				return asked >= test.places
			})
			for n := range 3 {
				started := time.Now()
				own, done := context.WithTimeout(t.Context(), 10*time.Second)
				wantPlatforms(t, i.Inspect(own, []provider.Query{{Image: fmt.Sprintf("%s/app:v%d", healthy.Host(), n)}})[0], "linux/arm64")
				done()
				t.Logf("answered after %s", time.Since(started))
			}
			cancel()
			wg.Wait()
		})
	}
}

// liveHeap gives the bytes that are in use. Most garbage is not counted, only
// what is made while it is collected: how much there is depends on the machine
// and on the race detector.
func liveHeap() uint64 {
	runtime.GC()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return now.HeapAlloc
}

// TestManyHostsTogetherTakeLittleMemory: bodies that stop just short of their
// end are held, and there is no end of hosts that somebody can name.
func TestManyHostsTogetherTakeLittleMemory(t *testing.T) {
	const hosts, imagesOfHost, bodySize = 96, 8, 500 << 10 // 375 MiB of bodies, of which 64 may be held
	body := bytes.Repeat([]byte(" "), bodySize)
	hold := make(chan struct{})
	var config reach.Config
	var queries []provider.Query
	var asked atomic.Int64
	for range hosts {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
			w.Header().Set("Content-Length", strconv.Itoa(bodySize+2))
			_, _ = w.Write(body)
			_ = http.NewResponseController(w).Flush()
			<-hold
			_, _ = w.Write([]byte("{}"))
		}))
		t.Cleanup(server.Close)
		host := server.Listener.Addr().String()
		config.PlainHTTPHosts = append(config.PlainHTTPHosts, host)
		for n := range imagesOfHost {
			queries = append(queries, provider.Query{Image: fmt.Sprintf("%s/app:v%d", host, n)})
		}
	}
	t.Cleanup(sync.OnceFunc(func() { close(hold) })) // before the servers close
	connections, err := reach.New(config)
	if err != nil {
		t.Fatal(err)
	}
	i := newInspector(t, registry.Options{Reach: connections})
	before := liveHeap()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { i.Inspect(ctx, queries) })
	// Not all may be: a host whose body was cut off is asked less at a time.
	eventually(t, "more images are asked about than there are places", func() bool { return asked.Load() > hosts*imagesOfHost/2 })
	// What may be read is read meanwhile, and its places change hands; there is
	// nothing to wait for when all is well.
	peak := uint64(0)
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		peak = max(peak, liveHeap())
	}
	cancel()
	wg.Wait()
	if grown := peak - min(peak, before); grown > 240<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	} else {
		t.Logf("the heap grew by %d MiB", grown>>20)
	}
}
