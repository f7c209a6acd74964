package registry_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

func mirrorConfig(t *testing.T, toml string, hosts ...string) func() *mirrors.Config {
	t.Helper()
	config, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "registries.conf", Data: []byte(strings.NewReplacer(hosts...).Replace(toml))})
	if err != nil {
		t.Fatal(err)
	}
	return func() *mirrors.Config { return config }
}

func TestMirrorsAreTriedAsRuntimesDo(t *testing.T) {
	const twoMirrors = `
[[registry]]
location = "SOURCE/team"
[[registry.mirror]]
location = "FIRST/copies"
[[registry.mirror]]
location = "SECOND/copies"
`
	const blocked = `
[[registry]]
location = "SOURCE/team"
blocked = true
[[registry.mirror]]
location = "FIRST/copies"
`
	type world struct{ source, first, second *registrytest.Registry }
	for name, test := range map[string]struct {
		config    string
		set       func(w world)
		platforms []string
		class     provider.Class
		mirror    func(w world) string
	}{
		"the first mirror answers": {twoMirrors, func(w world) {
			w.first.PutIndex("copies/app", "v1", "linux/arm64")
			w.source.PutIndex("team/app", "v1", "linux/amd64")
		}, []string{"linux/arm64"}, "", func(w world) string { return w.first.Host() + "/copies/app" }},
		"the second, when the first does not have it": {twoMirrors, func(w world) {
			w.second.PutIndex("copies/app", "v1", "linux/arm64")
		}, []string{"linux/arm64"}, "", func(w world) string { return w.second.Host() + "/copies/app" }},
		"the source, when the mirrors fail": {twoMirrors, func(w world) {
			w.first.Behave("", "/", registrytest.Status(500))
			w.second.Behave("", "/", registrytest.Status(403))
			w.source.PutIndex("team/app", "v1", "linux/amd64")
		}, []string{"linux/amd64"}, "", nil},
		"invalid content on a mirror is the answer": {twoMirrors, func(w world) {
			w.first.Behave("", "/", registrytest.Body(registrytest.Index, "[]"))
			w.source.PutIndex("team/app", "v1", "linux/amd64")
		}, nil, provider.ClassInvalidContent, nil},
		"the source, when a mirror sends too much": {twoMirrors, func(w world) {
			w.first.Behave("", "/", w.first.Endless(registrytest.Index, " "))
			w.source.PutIndex("team/app", "v1", "linux/amd64")
		}, []string{"linux/amd64"}, "", nil},
		"what is not runnable on a mirror is the answer": {twoMirrors, func(w world) {
			w.first.PutConfigured("copies/app", "v1", registrytest.Empty, []byte("{}"))
			w.source.PutIndex("team/app", "v1", "linux/amd64")
		}, nil, provider.ClassNotRunnable, nil},
		"nobody has it": {twoMirrors, func(world) {}, nil, provider.ClassNotFound, nil},
		"a blocked source is not asked": {blocked, func(w world) {
			w.source.PutIndex("team/app", "v1", "linux/amd64")
		}, nil, provider.ClassNotFound, nil},
		"a mirror of a blocked source answers": {blocked, func(w world) {
			w.first.PutIndex("copies/app", "v1", "linux/arm64")
		}, []string{"linux/arm64"}, "", func(w world) string { return w.first.Host() + "/copies/app" }},
		"a blocked source without mirrors": {"[[registry]]\nlocation = \"SOURCE/team\"\nblocked = true\n", func(w world) {
			w.source.PutIndex("team/app", "v1", "linux/amd64")
		}, nil, provider.ClassBlocked, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := world{newRegistry(t), newRegistry(t), newRegistry(t)}
			test.set(w)
			i := newInspector(t, registry.Options{
				Mirrors: mirrorConfig(t, test.config, "SOURCE", w.source.Host(), "FIRST", w.first.Host(), "SECOND", w.second.Host()),
			}, w.source, w.first, w.second)
			image := w.source.Host() + "/team/app:v1"
			for _, again := range []bool{false, true} {
				a := inspect(t, i, image)
				if a.Reference != image {
					t.Errorf("reference %q, want %q", a.Reference, image)
				}
				if test.class != "" {
					wantClass(t, a, test.class)
				} else {
					wantPlatforms(t, a, test.platforms...)
				}
				want := ""
				if test.mirror != nil {
					want = test.mirror(w)
				}
				if a.Err == nil && a.Mirror != want {
					t.Errorf("mirror %q, want %q (asked again: %v)", a.Mirror, want, again)
				}
			}
			if strings.HasPrefix(name, "a blocked source") && len(w.source.Requests()) > 0 {
				t.Errorf("a blocked source was asked: %v", w.source.Lines())
			}
		})
	}
}

// TestAStalledMirrorLeavesTimeForTheNextPlace: the caller waits for some seconds,
// a look-up may take half a minute.
func TestAStalledMirrorLeavesTimeForTheNextPlace(t *testing.T) {
	const twoMirrors = `
[[registry]]
location = "SOURCE/team"
[[registry.mirror]]
location = "FIRST/copies"
[[registry.mirror]]
location = "SECOND/copies"
`
	for name, test := range map[string]struct {
		set    func(w *registrytest.World, second *registrytest.Registry) (first string)
		source bool // has the image; else the second mirror has it
		mirror bool // the first one answers all the same
	}{
		"it accepts connections and says nothing": {func(w *registrytest.World, _ *registrytest.Registry) string { return w.Silent }, true, false},
		"it sends no headers": {func(w *registrytest.World, _ *registrytest.Registry) string {
			w.Other.Behave("", "/", w.Other.Stall())
			return w.Other.Host()
		}, true, false},
		"it stops in the middle of the body": {func(w *registrytest.World, _ *registrytest.Registry) string {
			w.Other.PutIndex("copies/app", "v1", "linux/s390x")
			w.Other.Behave("", "/", w.Other.StallMidBody())
			return w.Other.Host()
		}, true, false},
		"the second mirror has the image": {func(w *registrytest.World, second *registrytest.Registry) string {
			second.PutIndex("copies/app", "v1", "linux/amd64")
			return w.Silent
		}, false, true},
		"both mirrors are silent": {func(w *registrytest.World, second *registrytest.Registry) string {
			second.Behave("", "/", second.Stall())
			return w.Silent
		}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			w, err := registrytest.NewWorld()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Close)
			second := newRegistry(t)
			first := test.set(w, second)
			if test.source {
				w.Registry.PutIndex("team/app", "v1", "linux/amd64")
			}
			connections, err := reach.New(reach.Config{PlainHTTPHosts: append(w.PlainHosts(), second.Host())})
			if err != nil {
				t.Fatal(err)
			}
			i := newInspector(t, registry.Options{
				Reach: connections, Timeout: 4 * time.Second,
				Mirrors: mirrorConfig(t, twoMirrors, "SOURCE", w.Registry.Host(), "FIRST", first, "SECOND", second.Host()),
			})
			a := inspect(t, i, w.Registry.Host()+"/team/app:v1")
			wantPlatforms(t, a, "linux/amd64")
			want := ""
			if test.mirror {
				want = second.Host() + "/copies/app"
			}
			if a.Mirror != want {
				t.Errorf("mirror %q, want %q", a.Mirror, want)
			}
		})
	}
}

func TestASilentMirrorThatAnswersFirstAfterAllIsTheAnswer(t *testing.T) {
	source, mirror := newRegistry(t), newRegistry(t)
	source.PutIndex("team/app", "v1", "linux/amd64")
	mirror.PutIndex("copies/app", "v1", "linux/arm64")
	asked := make(chan struct{}) // the source is
	seen := sync.OnceFunc(func() { close(asked) })
	source.Behave("", "/", func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		seen()
		source.Stall()(w, q, next)
	})
	mirror.Behave("", "/", func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		<-asked
		next.ServeHTTP(w, q)
	})
	i := newInspector(t, registry.Options{
		Mirrors: mirrorConfig(t, "[[registry]]\nlocation = \"SOURCE/team\"\n[[registry.mirror]]\nlocation = \"MIRROR/copies\"\n", "SOURCE", source.Host(), "MIRROR", mirror.Host()),
		Timeout: 5 * time.Second,
	}, source, mirror)
	a := inspect(t, i, source.Host()+"/team/app:v1")
	wantPlatforms(t, a, "linux/arm64")
	if want := mirror.Host() + "/copies/app"; a.Mirror != want {
		t.Errorf("mirror %q, want %q", a.Mirror, want)
	}
}

// TestACallerInAHurryJoinsALookUp: the first caller waits for as long as it
// takes, the second for some seconds.
func TestACallerInAHurryJoinsALookUp(t *testing.T) {
	source, mirror := newRegistry(t), newRegistry(t)
	source.PutIndex("team/app", "v1", "linux/amd64")
	asked := make(chan struct{}) // the mirror is
	seen := sync.OnceFunc(func() { close(asked) })
	mirror.Behave("", "/", func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		seen()
		mirror.Stall()(w, q, next)
	})
	i := newInspector(t, registry.Options{
		Mirrors: mirrorConfig(t, "[[registry]]\nlocation = \"SOURCE/team\"\n[[registry.mirror]]\nlocation = \"MIRROR/copies\"\n", "SOURCE", source.Host(), "MIRROR", mirror.Host()),
	}, source, mirror)
	image := source.Host() + "/team/app:v1"
	patient := make(chan provider.Answer, 1)
	go func() { patient <- i.Inspect(t.Context(), []provider.Query{{Image: image}})[0] }()
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	wantPlatforms(t, i.Inspect(ctx, []provider.Query{{Image: image}})[0], "linux/amd64")
	wantPlatforms(t, <-patient, "linux/amd64")
}

func TestAnInsecureMirrorMayHaveABadCertificateOrNone(t *testing.T) {
	secure := registrytest.NewTLS()
	t.Cleanup(secure.Close)
	plain := newRegistry(t)
	for name, mirror := range map[string]*registrytest.Registry{"bad": secure, "none": plain} {
		t.Run(name, func(t *testing.T) {
			source := newRegistry(t)
			mirror.PutIndex("copies/app", "v1", "linux/arm64")
			config := mirrorConfig(t, "[[registry]]\nlocation = \"SOURCE/team\"\n[[registry.mirror]]\nlocation = \"MIRROR/copies\"\ninsecure = true\n", "SOURCE", source.Host(), "MIRROR", mirror.Host())
			i := newInspector(t, registry.Options{Mirrors: config}, source)
			a := inspect(t, i, source.Host()+"/team/app:v1")
			wantPlatforms(t, a, "linux/arm64")
			if a.Mirror != mirror.Host()+"/copies/app" {
				t.Errorf("mirror %q", a.Mirror)
			}
		})
	}
}

func TestShortNamesAreSearchedWhereTheFileSays(t *testing.T) {
	first, second := newRegistry(t), newRegistry(t)
	second.PutIndex("team/app", "v1", "linux/arm64")
	i := newInspector(t, registry.Options{
		Mirrors: mirrorConfig(t, "unqualified-search-registries = [\"FIRST\", \"SECOND\"]\n", "FIRST", first.Host(), "SECOND", second.Host()),
	}, first, second)
	a := inspect(t, i, "team/app:v1")
	wantPlatforms(t, a, "linux/arm64")
	if want := second.Host() + "/team/app:v1"; a.Reference != want || a.Mirror != "" {
		t.Errorf("reference %q and mirror %q, want %q and none", a.Reference, a.Mirror, want)
	}
}

// TestACallerWhoIsGoneHurriesNobody: a mirror in good health is then the answer,
// as it is for a runtime.
func TestACallerWhoIsGoneHurriesNobody(t *testing.T) {
	for name, next := range map[string]func(i *registry.Inspector, image string) []provider.Answer{
		"nobody waits": func(*registry.Inspector, string) []provider.Answer { return nil },
		"a patient one comes later": func(i *registry.Inspector, image string) []provider.Answer {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			return i.Inspect(ctx, []provider.Query{{Image: image}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			source, mirror := newRegistry(t), newRegistry(t)
			source.PutIndex("team/app", "v1", "linux/amd64")
			mirror.PutIndex("copies/app", "v1", "linux/arm64")
			mirror.Delay(500 * time.Millisecond)
			i := newInspector(t, registry.Options{
				Mirrors: mirrorConfig(t, "[[registry]]\nlocation = \"SOURCE/team\"\n[[registry.mirror]]\nlocation = \"MIRROR/copies\"\n", "SOURCE", source.Host(), "MIRROR", mirror.Host()),
			}, source, mirror)
			image := source.Host() + "/team/app:v1"
			gone, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			wantClass(t, i.Inspect(gone, []provider.Query{{Image: image}})[0], provider.ClassTimeout)
			for _, a := range next(i, image) {
				wantPlatforms(t, a, "linux/arm64")
			}
			eventually(t, "the look-up is over", func() bool {
				now, cancel := context.WithCancel(t.Context())
				cancel()
				return i.Inspect(now, []provider.Query{{Image: image}})[0].Err == nil
			})
			wantPlatforms(t, inspect(t, i, image), "linux/arm64")
			wantRequests(t, source)
		})
	}
}

// TestSearchedRegistriesAreAskedOneAfterTheOther: one short name means another
// image at each of them.
func TestSearchedRegistriesAreAskedOneAfterTheOther(t *testing.T) {
	const search = "unqualified-search-registries = [\"FIRST\", \"SECOND\"]\n"
	const mirrored = search + "[[registry]]\nlocation = \"FIRST/team\"\n[[registry.mirror]]\nlocation = \"MIRROR/copies\"\n"
	late := func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		select {
		case <-time.After(2500 * time.Millisecond): // longer than its share
			next.ServeHTTP(w, q)
		case <-q.Context().Done():
		}
	}
	for name, test := range map[string]struct {
		config    string
		set       func(first, mirror *registrytest.Registry)
		platforms []string
		class     provider.Class
		second    bool // is asked
	}{
		"the first is slow": {search, func(first, _ *registrytest.Registry) {
			first.Behave("", "/", late)
		}, []string{"linux/amd64"}, "", false},
		"the first is silent": {search, func(first, _ *registrytest.Registry) {
			first.Behave("", "/", first.Stall())
		}, nil, provider.ClassTimeout, false},
		"the first fails": {search, func(first, _ *registrytest.Registry) {
			first.Behave("", "/", registrytest.Status(500))
		}, []string{"linux/arm64"}, "", true},
		"a mirror of the first is silent": {mirrored, func(_, mirror *registrytest.Registry) {
			mirror.Behave("", "/", mirror.Stall())
		}, []string{"linux/amd64"}, "", false},
		"a mirror of the first is slow, and it fails itself": {mirrored, func(first, mirror *registrytest.Registry) {
			first.Behave("", "/", registrytest.Status(500))
			mirror.PutIndex("copies/app", "v1", "linux/s390x")
			mirror.Behave("", "/", late)
		}, []string{"linux/s390x"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			first, second, mirror := newRegistry(t), newRegistry(t), newRegistry(t)
			first.PutIndex("team/app", "v1", "linux/amd64")
			second.PutIndex("team/app", "v1", "linux/arm64")
			test.set(first, mirror)
			i := newInspector(t, registry.Options{
				Mirrors: mirrorConfig(t, test.config, "FIRST", first.Host(), "SECOND", second.Host(), "MIRROR", mirror.Host()),
				Timeout: 4 * time.Second,
			}, first, second, mirror)
			a := inspect(t, i, "team/app:v1")
			if test.class != "" {
				wantClass(t, a, test.class)
			} else {
				wantPlatforms(t, a, test.platforms...)
			}
			if asked := len(second.Requests()) > 0; asked != test.second {
				t.Errorf("the second registry was asked: %v, want %v: %v", asked, test.second, second.Lines())
			}
		})
	}
}

func TestASilentMirrorOpensNoBlockedSource(t *testing.T) {
	source, mirror := newRegistry(t), newRegistry(t)
	source.PutIndex("team/app", "v1", "linux/amd64")
	mirror.Behave("", "/", mirror.Stall())
	i := newInspector(t, registry.Options{
		Mirrors: mirrorConfig(t, "[[registry]]\nlocation = \"SOURCE/team\"\nblocked = true\n[[registry.mirror]]\nlocation = \"MIRROR/copies\"\n", "SOURCE", source.Host(), "MIRROR", mirror.Host()),
		Timeout: time.Second,
	}, source, mirror)
	wantClass(t, inspect(t, i, source.Host()+"/team/app:v1"), provider.ClassTimeout)
	wantRequests(t, source)
}

// TestOnlyThePlaceThatGaveAnAnswerTakesItBack: what another place lacks it may
// never have had.
func TestOnlyThePlaceThatGaveAnAnswerTakesItBack(t *testing.T) {
	const config = "[[registry]]\nlocation = \"SOURCE/team\"\n[[registry.mirror]]\nlocation = \"MIRROR/copies\"\n"
	status := func(code int) func(r *registrytest.Registry) {
		return func(r *registrytest.Registry) { r.Behave("", "/", registrytest.Status(code)) }
	}
	for name, test := range map[string]struct {
		mirror, source func(r *registrytest.Registry)
		kept           bool
	}{
		"it is away, and the source never had it":         {status(500), status(404), true},
		"it is away, and the source is for others":        {status(502), status(401), true},
		"it limits the rate, and the source never had it": {status(429), status(404), true},
		"both are away": {status(500), status(503), true},
		"it has it no more, and the source never had it": {status(404), status(404), false},
		"it has it no more, and the source is away":      {status(404), status(500), false},
		"it hides it, and the source limits the rate":    {status(403), status(429), false},
	} {
		t.Run(name, func(t *testing.T) {
			source, mirror := newRegistry(t), newRegistry(t)
			mirror.PutIndex("copies/app", "v1", "linux/arm64")
			clock := clocktesting.NewFakeClock(time.Now())
			i := newInspector(t, registry.Options{
				Mirrors: mirrorConfig(t, config, "SOURCE", source.Host(), "MIRROR", mirror.Host()), Clock: clock,
			}, source, mirror)
			query := provider.Query{Image: source.Host() + "/team/app:v1"}
			wantPlatforms(t, inspect(t, i, query.Image), "linux/arm64")
			test.mirror(mirror)
			test.source(source)
			clock.Step(registry.DefaultTagTTL + time.Minute)
			query.Revalidate = true // waits for what the registries say now
			if a := i.Inspect(t.Context(), []provider.Query{query})[0]; a.Err == nil {
				t.Fatalf("confirmed: %+v", a)
			}
			if a := inspect(t, i, query.Image); test.kept {
				wantPlatforms(t, a, "linux/arm64")
			} else if a.Err == nil {
				t.Errorf("it came back: %v", a.Platforms)
			}
		})
	}
}
