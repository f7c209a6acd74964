package containers

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/docker/reference"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/oracle/world"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// network is a proxy behind which registries have names of their own. They
// speak plain HTTP: an HTTPS request to one fails.
type network struct {
	proxy      *httptest.Server
	url        *url.URL
	mu         sync.Mutex
	registries map[string]*registrytest.Registry
	down       map[string]bool
	asked      []string // hosts that were asked for manifests, in order, each once in a row
}

func newNetwork(t *testing.T, hosts ...string) *network {
	t.Helper()
	n := &network{registries: map[string]*registrytest.Registry{}, down: map[string]bool{}}
	for _, h := range hosts {
		r := registrytest.New()
		t.Cleanup(r.Close)
		n.registries[h] = r
	}
	n.proxy = httptest.NewServer(n)
	t.Cleanup(n.proxy.Close)
	var err error
	if n.url, err = url.Parse(n.proxy.URL); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *network) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	n.mu.Lock()
	r, down := n.registries[q.URL.Host], n.down[q.URL.Host]
	manifest := strings.Contains(q.URL.Path, "/manifests/")
	if manifest && r != nil && !down && (len(n.asked) == 0 || n.asked[len(n.asked)-1] != q.URL.Host) {
		n.asked = append(n.asked, q.URL.Host)
	}
	n.mu.Unlock()
	if q.Method == http.MethodConnect || r == nil || down {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	r.ServeHTTP(w, q)
}

// take gives the hosts that were asked since the last call.
func (n *network) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := n.asked
	n.asked = nil
	return asked
}

// The containers library pulls through the rendered file, from registries that
// answer, and the provider goes the same way and gives the same answer.
func TestPullsThroughTheRenderedFile(t *testing.T) {
	insecure := []string{"s.example", "m.example", "n.example", "a.wild.example"}
	for name, tc := range map[string]struct {
		rules func(w *world.World)
		// holds says which repositories have the image, beside the source.
		holds []string
		// missing takes the image from the source.
		missing bool
		down    []string
		ref     string // "@" stands for the digest
		want    []string
		fails   bool
	}{
		"by digest, the mirror has it": {
			rules: func(w *world.World) { w.D("s.example -> m.example/x") }, holds: []string{"m.example/x/app"},
			ref: "s.example/app@", want: []string{"m.example"},
		},
		"by tag, a mirror for digests is not asked": {
			rules: func(w *world.World) { w.D("s.example -> m.example/x") }, holds: []string{"m.example/x/app"},
			ref: "s.example/app:v1", want: []string{"s.example"},
		},
		"by tag, a mirror for tags has it": {
			rules: func(w *world.World) { w.T("s.example -> m.example/x") }, holds: []string{"m.example/x/app"},
			ref: "s.example/app:v1", want: []string{"m.example"},
		},
		"by digest, a mirror for tags is not asked": {
			rules: func(w *world.World) { w.T("s.example -> m.example/x") }, holds: []string{"m.example/x/app"},
			ref: "s.example/app@", want: []string{"s.example"},
		},
		"the first mirror lacks it, the second has it": {
			rules: func(w *world.World) { w.D("s.example -> m.example,n.example") }, holds: []string{"n.example/app"},
			ref: "s.example/app@", want: []string{"m.example", "n.example"},
		},
		"the mirror is down, the source is asked": {
			rules: func(w *world.World) { w.D("s.example -> m.example") }, holds: []string{"m.example/app"}, down: []string{"m.example"},
			ref: "s.example/app@", want: []string{"s.example"},
		},
		"the source is down, the mirror has it": {
			rules: func(w *world.World) { w.D("s.example -> m.example") }, holds: []string{"m.example/app"}, down: []string{"s.example"},
			ref: "s.example/app@", want: []string{"m.example"},
		},
		"Never, and the mirror has it": {
			rules: func(w *world.World) { w.D("s.example -> m.example; Never") }, holds: []string{"m.example/app"},
			ref: "s.example/app@", want: []string{"m.example"},
		},
		"Never, and the mirror is down: the source is not asked": {
			rules: func(w *world.World) { w.D("s.example -> m.example; Never") }, down: []string{"m.example"},
			ref: "s.example/app@", fails: true,
		},
		"Never for digests, pulled by tag: refused": {
			rules: func(w *world.World) { w.D("s.example -> m.example; Never") }, holds: []string{"m.example/app"},
			ref: "s.example/app:v1", fails: true,
		},
		"Allow goes on to the source": {
			rules: func(w *world.World) { w.D("s.example -> m.example; Allow") },
			ref:   "s.example/app@", want: []string{"m.example", "s.example"},
		},
		"a mirror that is not called insecure is not asked by HTTP": {
			rules: func(w *world.World) { w.D("s.example -> strict.example") }, holds: []string{"strict.example/app"},
			ref: "s.example/app@", want: []string{"s.example"},
		},
		"a blocked source uses its mirror": {
			rules: func(w *world.World) { w.B("s.example").D("s.example -> m.example") }, holds: []string{"m.example/app"},
			ref: "s.example/app@", want: []string{"m.example"},
		},
		"blocked without a mirror: refused": {
			rules: func(w *world.World) { w.B("s.example") }, ref: "s.example/app:v1", fails: true,
		},
		"a blocked mirror is passed over": {
			rules: func(w *world.World) { w.D("s.example -> m.example/b,n.example").B("m.example/b") }, holds: []string{"m.example/b/app", "n.example/app"},
			ref: "s.example/app@", want: []string{"n.example"},
		},
		"a wildcard": {
			rules: func(w *world.World) { w.T("*.wild.example -> m.example/w") }, holds: []string{"m.example/w/app"},
			ref: "a.wild.example/app:v1", want: []string{"m.example"},
		},
		"nested: the nearest mirrors": {
			rules: func(w *world.World) { w.D("s.example -> n.example", "s.example/team -> m.example/t") }, holds: []string{"m.example/t/app", "n.example/team/app"},
			ref: "s.example/team/app@", want: []string{"m.example"},
		},
		"nested: a blocked child inherits the mirrors": {
			rules: func(w *world.World) { w.D("s.example -> m.example/p").B("s.example/team") }, holds: []string{"m.example/p/team/app"},
			ref: "s.example/team/app@", want: []string{"m.example"},
		},
		"nobody has it": {
			rules: func(w *world.World) { w.D("s.example -> m.example,n.example") }, missing: true,
			ref: "s.example/app@", want: []string{"m.example", "n.example", "s.example"}, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			net := newNetwork(t, append(slices.Clone(insecure), "strict.example")...)
			config := registrytest.JSON(registrytest.Object{"os": "linux", "architecture": "arm64", "rootfs": registrytest.Object{"type": "layers", "diff_ids": []string{}}})
			digest := ""
			put := func(place string) {
				host, repository, _ := strings.Cut(place, "/")
				digest = net.registries[host].PutConfigured(repository, "v1", registrytest.Config, config)
			}
			source, _, _ := strings.Cut(strings.TrimSuffix(tc.ref, "@"), ":")
			put(source)
			if tc.missing {
				host, repository, _ := strings.Cut(source, "/")
				net.registries[host].Delete(repository, digest)
			}
			for _, place := range tc.holds {
				put(place)
			}
			for _, host := range tc.down {
				net.down[host] = true
			}
			w := (&world.World{}).I(insecure...)
			tc.rules(w)
			conf := w.Ours(t).RegistriesConf()
			ref := strings.Replace(tc.ref, "@", "@"+digest, 1)

			fails := pull(t, net, conf, ref)
			if diff := cmp.Diff(tc.want, net.take()); diff != "" || fails != tc.fails {
				t.Errorf("the containers library: fails %v %s\n%s", fails, diff, conf)
			}
			answer := inspect(t, net, conf, ref)
			if diff := cmp.Diff(tc.want, net.take()); diff != "" || answer.Known() == tc.fails {
				t.Errorf("the provider: %v %s\n%s", answer.Err, diff, conf)
			}
			if !tc.fails {
				mirror, _, _ := strings.Cut(answer.Mirror, "/")
				if last := tc.want[len(tc.want)-1]; mirror != last && !(mirror == "" && strings.HasPrefix(ref, last+"/")) {
					t.Errorf("the provider names the mirror %q", answer.Mirror)
				}
				if diff := cmp.Diff([]string{"linux/arm64"}, answer.Platforms); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

// pull reads an image's manifest with the containers library and tells whether
// that fails.
func pull(t *testing.T, n *network, conf []byte, text string) (fails bool) {
	t.Helper()
	l := load(t, conf, nil)
	if l.err != nil {
		t.Fatal(l.err)
	}
	l.sys.DockerProxyURL = n.url
	named, err := reference.ParseNormalizedNamed(text)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := docker.NewReference(named)
	if err != nil {
		t.Fatal(err)
	}
	image, err := ref.NewImageSource(t.Context(), l.sys)
	if err != nil {
		return true
	}
	defer image.Close()
	_, kind, err := image.GetManifest(t.Context(), nil)
	if err == nil && kind == "" {
		err = fmt.Errorf("a manifest without a type")
	}
	return err != nil
}

// inspect asks the provider's own inspector.
func inspect(t *testing.T, n *network, conf []byte, text string) provider.Answer {
	t.Helper()
	rules, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "rendered", Data: conf})
	if err != nil {
		t.Fatal(err)
	}
	connections, err := reach.New(reach.Config{Proxy: func(*url.URL) (*url.URL, error) { return n.url, nil }})
	if err != nil {
		t.Fatal(err)
	}
	inspector, err := registry.New(registry.Options{Reach: connections, Mirrors: func() *mirrors.Config { return rules }})
	if err != nil {
		t.Fatal(err)
	}
	defer inspector.Close()
	return inspector.Inspect(t.Context(), []provider.Query{{Image: text}})[0]
}
