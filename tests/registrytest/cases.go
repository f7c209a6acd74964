package registrytest

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/archkeeper/archkeeper/provider"
)

// World is what a case takes place in: registries that are not each other.
type World struct {
	// Registry is on plain HTTP and listed for it; Other too.
	Registry, Other *Registry
	// Secure is on HTTPS with a certificate that is trusted.
	Secure *Registry
	// Untrusted is on HTTPS with one that is not.
	Untrusted *Registry
	// Silent accepts connections and never answers; host:port.
	Silent string
	// Closed is host:port where nothing listens.
	Closed string
	// Accounts whose credentials the caller has, in order, for every registry.
	Accounts []Account

	silent net.Listener
}

// NewWorld starts all registries.
func NewWorld() (*World, error) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer closed.Close()
	return &World{
		Registry: New(), Other: New(), Secure: NewTLS(), Untrusted: NewTLS(),
		Silent: silent.Addr().String(), silent: silent, Closed: closed.Addr().String(),
	}, nil
}

// Close stops all registries.
func (w *World) Close() {
	for _, r := range []*Registry{w.Registry, w.Other, w.Secure, w.Untrusted} {
		r.Close()
	}
	_ = w.silent.Close()
}

// PlainHosts lists the hosts that are spoken to by plain HTTP.
func (w *World) PlainHosts() []string {
	return []string{w.Registry.Host(), w.Other.Host(), w.Silent, w.Closed}
}

// Want is the right answer: a class, or platforms, or ContentOnly.
type Want struct {
	Class       provider.Class
	Status      int
	Kind        provider.Kind
	Platforms   []string
	ContentOnly bool
	// Warns is true when the answer carries a warning.
	Warns bool
	// Source of the credential that was accepted; not compared when empty.
	Source string
	// Lines of the request log of World.Registry; not compared when nil.
	Lines []string
}

// Case is one thing that a registry does, and the answer that is right.
type Case struct {
	Group, Name string
	// Set prepares the world and gives the image to ask for.
	Set  func(w *World) string
	Want Want
	// Then changes the world, and the image is asked for again, to be confirmed.
	Then     func(w *World)
	ThenWant Want
	// Guarded is asked with loopback and link-local addresses refused, but for
	// those of the hosts that are listed for plain HTTP.
	Guarded bool
	// Stalls is true when the answer comes only with the end of the look-up.
	Stalls bool
}

const repo = "team/app"

var (
	both = []string{"linux/amd64", "linux/arm64"}
	one  = []string{"linux/amd64"}
)

func (w *World) image() string { return w.Registry.Host() + "/" + repo + ":v1" }

// index puts the usual index and gives its reference.
func index(w *World) string {
	w.Registry.PutIndex(repo, "v1", both...)
	return w.image()
}

// single puts the usual single image and gives its reference.
func single(w *World) string {
	w.Registry.PutImage(repo, "v1", "linux/amd64")
	return w.image()
}

// manifests begins the paths of the usual repository's manifests, blobs those
// of its blobs.
const (
	manifests = "/v2/" + repo + "/manifests/"
	blobs     = "/v2/" + repo + "/blobs/"
)

// broken puts the usual index, and a behaviour in front of its manifests.
func broken(do Behaviour) func(w *World) string {
	return func(w *World) string {
		image := index(w)
		w.Registry.Behave("", manifests, do)
		return image
	}
}

// brokenConfig is broken for the config of the usual single image.
func brokenConfig(do Behaviour) func(w *World) string {
	return func(w *World) string {
		image := single(w)
		w.Registry.Behave("", blobs, do)
		return image
	}
}

// manifest puts a body as the usual reference.
func manifest(mediaType string, body any) func(w *World) string {
	return func(w *World) string {
		raw, ok := body.([]byte)
		if !ok {
			raw = JSON(body)
		}
		w.Registry.Put(repo, "v1", mediaType, raw)
		return w.image()
	}
}

// config puts a single image with a config.
func config(mediaType string, body any) func(w *World) string {
	return func(w *World) string {
		raw, ok := body.([]byte)
		if !ok {
			raw = JSON(body)
		}
		w.Registry.PutConfigured(repo, "v1", mediaType, raw)
		return w.image()
	}
}

func wantIndex(platforms ...string) Want {
	return Want{Kind: provider.KindIndex, Platforms: platforms}
}

func wantImage(platforms ...string) Want {
	return Want{Kind: provider.KindManifest, Platforms: platforms}
}

func wantClass(class provider.Class, status int) Want { return Want{Class: class, Status: status} }

// Cases lists everything.
func Cases() []Case {
	var all []Case
	for _, group := range []func() []Case{
		imageCases, contentTypeCases, digestCases, hostileCases, statusCases, stallCases, redirectCases, tokenCases, headCases, reachCases,
	} {
		all = append(all, group()...)
	}
	return all
}

func in(group string, cases ...Case) []Case {
	for n := range cases {
		cases[n].Group = group
	}
	return cases
}

func imageCases() []Case {
	attestation := Absent("unknown/unknown")
	attestation["annotations"] = Object{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": Digest([]byte("x"))}
	return in("Images as they are",
		Case{Name: "an index by tag is one request", Set: index,
			Want: Want{Kind: provider.KindIndex, Platforms: both, Lines: []string{"GET " + manifests + "v1 200"}}},
		Case{Name: "a Docker manifest list", Want: wantIndex(both...), Set: func(w *World) string {
			body := JSON(Object{"schemaVersion": 2, "mediaType": DockerList, "manifests": []Object{Absent("linux/arm64"), Absent("linux/amd64")}})
			w.Registry.Put(repo, "v1", DockerList, body)
			return w.image()
		}},
		Case{Name: "a single image says its platform only in its config", Set: single, Want: wantImage(one...)},
		Case{Name: "a single Docker image", Want: wantImage("linux/arm/v7"), Set: func(w *World) string {
			body := JSON(Platform("linux/arm/v7"))
			digest := w.Registry.PutBlob(repo, body)
			w.Registry.Put(repo, "v1", DockerImage, JSON(Object{
				"schemaVersion": 2, "mediaType": DockerImage, "config": Descriptor(DockerConfig, digest, len(body), ""), "layers": []Object{},
			}))
			return w.image()
		}},
		Case{Name: "a single image that carries its config inline is one request", Set: func(w *World) string {
			body := JSON(Platform("linux/s390x"))
			d := Descriptor(Config, Digest(body), len(body), "")
			d["data"] = base64.StdEncoding.EncodeToString(body)
			w.Registry.Put(repo, "v1", Image, ImageOf(d))
			return w.image()
		}, Want: Want{Kind: provider.KindManifest, Platforms: []string{"linux/s390x"}, Lines: []string{"GET " + manifests + "v1 200"}}},
		Case{Name: "an inline config with the wrong digest is not believed", Want: Want{Kind: provider.KindManifest, Platforms: one, Warns: true}, Set: func(w *World) string {
			body := JSON(Platform("linux/amd64"))
			d := Descriptor(Config, w.Registry.PutBlob(repo, body), len(body), "")
			d["data"] = base64.StdEncoding.EncodeToString(JSON(Platform("linux/s390x")))
			w.Registry.Put(repo, "v1", Image, ImageOf(d))
			return w.image()
		}},
		Case{Name: "attestations beside images are no platforms", Set: manifest(Index, IndexOf(Absent("linux/amd64"), attestation)), Want: wantIndex(one...)},
		Case{Name: "an index of attestations alone", Set: manifest(Index, IndexOf(attestation)), Want: wantClass(provider.ClassNotRunnable, 0)},
		Case{Name: "an empty index", Set: manifest(Index, IndexOf()), Want: wantClass(provider.ClassNotRunnable, 0)},
		Case{Name: "Windows versions are kept", Set: manifest(Index, IndexOf(Absent("windows(10.0.17763.1)/amd64"), Absent("windows(10.0.20348.1)/amd64"))),
			Want: wantIndex("windows(10.0.17763.1)/amd64", "windows(10.0.20348.1)/amd64")},
		Case{Name: "aliases and variants are normalised", Set: manifest(Index, IndexOf(Absent("linux/x86_64"), Absent("linux/aarch64"), Absent("linux/arm64/v8"), Absent("linux/armhf"), Absent("linux/arm/v6"))),
			Want: wantIndex("linux/amd64", "linux/arm/v6", "linux/arm/v7", "linux/arm64")},
		Case{Name: "entries without a platform are read, config included", Set: func(w *World) string {
			digest := w.Registry.PutImage(repo, "", "linux/ppc64le")
			w.Registry.Put(repo, "v1", Index, IndexOf(Absent("linux/amd64"), Descriptor(Image, digest, 300, "")))
			return w.image()
		}, Want: wantIndex("linux/amd64", "linux/ppc64le")},
		Case{Name: "an index inside an index", Set: func(w *World) string {
			inner := w.Registry.PutIndex(repo, "", both...)
			w.Registry.Put(repo, "v1", Index, IndexOf(Descriptor(Index, inner, 300, "")))
			return w.image()
		}, Want: wantIndex(both...)},
		Case{Name: "an index inside an index that declares its platform counts as that", Set: func(w *World) string {
			inner := w.Registry.PutIndex(repo, "", both...)
			w.Registry.Put(repo, "v1", Index, IndexOf(Descriptor(Index, inner, 300, "linux/riscv64")))
			return w.image()
		}, Want: wantIndex("linux/riscv64")},
		Case{Name: "indexes nested deeper than three", Set: func(w *World) string {
			digest := w.Registry.PutImage(repo, "", "linux/amd64")
			for range 3 {
				digest = w.Registry.Put(repo, "", Index, IndexOf(Descriptor(Image, digest, 300, "")))
			}
			w.Registry.Put(repo, "v1", Index, IndexOf(Descriptor(Index, digest, 300, "")))
			return w.image()
		}, Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "a sparse index, whose children with platforms are missing", Set: index, Want: wantIndex(both...)},
		Case{Name: "an index whose child without a platform is missing", Set: manifest(Index, IndexOf(Absent("linux/amd64"), Absent(""))),
			Want: wantClass(provider.ClassNotFound, http.StatusNotFound)},
		Case{Name: "where index and config disagree the index decides", Set: func(w *World) string {
			digest := w.Registry.PutImage(repo, "", "linux/amd64")
			child := Descriptor(Image, digest, 300, "")
			child["platform"] = Object{"os": "linux", "architecture": "arm64"}
			w.Registry.Put(repo, "v1", Index, IndexOf(child))
			return w.image()
		}, Want: wantIndex("linux/arm64")},
		Case{Name: "a Docker schema 1 manifest", Set: manifest(Schema1, Object{
			"schemaVersion": 1, "name": repo, "tag": "v1", "architecture": "amd64", "fsLayers": []Object{{"blobSum": Digest(nil)}},
			"history": []Object{{"v1Compatibility": `{"architecture":"amd64","os":"linux"}`}},
		}), Want: Want{Kind: provider.KindSchema1, Platforms: one}},
		Case{Name: "a Helm chart", Set: config("application/vnd.cncf.helm.config.v1+json", Object{"name": "chart"}), Want: Want{Class: provider.ClassNotRunnable, Kind: provider.KindArtifact}},
		Case{Name: "an artifact with the empty config", Set: config(Empty, []byte("{}")), Want: Want{Class: provider.ClassNotRunnable, Kind: provider.KindArtifact}},
		Case{Name: "a WebAssembly module", Set: config("application/vnd.wasm.config.v0+json", Object{"architecture": "wasm", "os": "wasip1"}), Want: Want{Class: provider.ClassNotRunnable, Kind: provider.KindArtifact}},
		Case{Name: "a signature, whose config has no architecture", Set: config(Config, Object{"architecture": "", "os": "", "config": Object{}}), Want: wantClass(provider.ClassNotRunnable, 0)},
		Case{Name: "an OLM bundle is content only", Set: config(Config, Object{
			"architecture": "amd64", "os": "linux", "config": Object{"Labels": Object{"operators.operatorframework.io.bundle.mediatype.v1": "registry+v1"}},
		}), Want: Want{Kind: provider.KindManifest, ContentOnly: true}},
		Case{Name: "a config that is no JSON", Set: config(Config, []byte("no JSON")), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "a config that is missing", Want: wantClass(provider.ClassNotFound, http.StatusNotFound), Set: func(w *World) string {
			w.Registry.Put(repo, "v1", Image, ImageOf(Descriptor(Config, Digest([]byte("absent")), 100, "")))
			return w.image()
		}},
		Case{Name: "two images of one index are the same", Set: manifest(Index, IndexOf(Absent("linux/amd64"), Absent("linux/amd64"))), Want: wantIndex(one...)},
	)
}

func contentTypeCases() []Case {
	put := func(contentType string) func(*World) string {
		return func(w *World) string {
			w.Registry.Put(repo, "v1", contentType, IndexOf(Absent("linux/amd64"), Absent("linux/arm64")))
			return w.image()
		}
	}
	return in("Content types",
		Case{Name: "with a parameter", Set: put(Index + "; charset=utf-8"), Want: wantIndex(both...)},
		Case{Name: "in the wrong case", Set: put(strings.ToUpper(Index)), Want: wantIndex(both...)},
		Case{Name: "missing", Set: put(""), Want: wantIndex(both...)},
		Case{Name: "text/html for an index", Set: put("text/html"), Want: wantIndex(both...)},
		Case{Name: "an image's for an index: the body decides", Set: put(Image), Want: Want{Kind: provider.KindIndex, Platforms: both, Warns: true}},
		Case{Name: "an index's for an image: the body decides", Set: func(w *World) string {
			image := single(w)
			w.Registry.Behave("", manifests, WithHeader("Content-Type", Index))
			return image
		}, Want: Want{Kind: provider.KindManifest, Platforms: one, Warns: true}},
		Case{Name: "an index without a media type of its own, served as one", Set: manifest(Index, Object{"schemaVersion": 2, "manifests": []Object{Absent("linux/amd64")}}), Want: wantIndex(one...)},
		Case{Name: "a manifest that could be read as two kinds", Set: manifest(Index, Object{
			"schemaVersion": 2, "manifests": []Object{Absent("linux/amd64")}, "config": Descriptor(Config, Digest(nil), 1, ""), "layers": []Object{},
		}), Want: wantClass(provider.ClassInvalidContent, 0)},
	)
}

func digestCases() []Case {
	return in("Digests",
		Case{Name: "by digest", Set: func(w *World) string {
			return w.Registry.Host() + "/" + repo + "@" + w.Registry.PutIndex(repo, "v1", both...)
		}, Want: wantIndex(both...)},
		Case{Name: "by a SHA-512 digest", Set: func(w *World) string {
			body := IndexOf(Absent("linux/amd64"))
			sum := sha512.Sum512(body)
			digest := "sha512:" + hex.EncodeToString(sum[:])
			w.Registry.PutAs(repo, "", Index, digest, body)
			return w.Registry.Host() + "/" + repo + "@" + digest
		}, Want: wantIndex(one...)},
		Case{Name: "the content has another digest than was asked for", Set: func(w *World) string {
			digest := Digest([]byte("something else"))
			w.Registry.PutAs(repo, "", Index, digest, IndexOf(Absent("linux/amd64")))
			return w.Registry.Host() + "/" + repo + "@" + digest
		}, Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "a Docker-Content-Digest that lies, by tag: the body decides", Set: broken(WithHeader("Docker-Content-Digest", Digest([]byte("a lie")))), Want: wantIndex(both...)},
		Case{Name: "no Docker-Content-Digest", Set: broken(WithHeader("Docker-Content-Digest", "")), Want: wantIndex(both...)},
		Case{Name: "a Docker-Content-Digest that is none", Set: broken(WithHeader("Docker-Content-Digest", "sha256:short")), Want: wantIndex(both...)},
		Case{Name: "a config with another digest than the manifest says", Set: func(w *World) string {
			digest := Digest([]byte("something else"))
			w.Registry.PutBlobAs(repo, digest, JSON(Platform("linux/amd64")))
			w.Registry.Put(repo, "v1", Image, ImageOf(Descriptor(Config, digest, 100, "")))
			return w.image()
		}, Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "an index that is its own child", Set: func(w *World) string {
			digest := Digest([]byte("itself"))
			body := IndexOf(Descriptor(Index, digest, 300, ""))
			w.Registry.PutAs(repo, "v1", Index, digest, body)
			return w.image()
		}, Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "an index with a digest that leads out of the registry", Set: manifest(Index, IndexOf(Descriptor(Image, "../../../../etc/passwd", 10, ""))),
			Want: wantClass(provider.ClassInvalidContent, 0)},
	)
}

func hostileCases() []Case {
	entries := func(n int, entry string) []byte {
		return []byte(`{"schemaVersion":2,"mediaType":"` + Index + `","manifests":[` + strings.TrimSuffix(strings.Repeat(entry+",", n), ",") + `]}`)
	}
	return in("Hostile content",
		Case{Name: "an index of 100,000 entries, beyond 4 MiB", Set: manifest(Index, entries(100000, string(JSON(Absent("linux/amd64"))))), Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "an index of 100,000 entries, within 4 MiB", Set: manifest(Index, entries(100000, `{"platform":{"os":"linux"}}`)), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "an index of 1,000 entries without platforms", Set: func(w *World) string {
			var list []Object
			for n := range 1000 {
				list = append(list, Descriptor(Image, Digest([]byte(fmt.Sprint(n))), 10, ""))
			}
			w.Registry.Put(repo, "v1", Index, IndexOf(list...))
			return w.image()
		}, Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "JSON a million levels deep", Set: manifest(Index, []byte(strings.Repeat("[", 1<<20))), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "control characters in a platform", Set: manifest(Index, IndexOf(Absent("linux/amd64"), Absent("linux/\x1b[31marm64\n"))), Want: Want{Kind: provider.KindIndex, Platforms: one, Warns: true}},
		Case{Name: "an architecture of 1 MiB", Set: manifest(Index, IndexOf(Absent("linux/"+strings.Repeat("a", 1<<20)))), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "an architecture that is no label value", Set: manifest(Index, IndexOf(Absent("linux/-amd64"), Absent("linux/amd64"))), Want: Want{Kind: provider.KindIndex, Platforms: one, Warns: true}},
		Case{Name: "a config with an architecture of 1 MiB", Set: config(Config, Object{"os": "linux", "architecture": strings.Repeat("a", 1<<20)}), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "a manifest of 5 MiB", Set: broken(Body(Index, strings.Repeat(" ", 5<<20))), Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "a config of 9 MiB", Set: brokenConfig(Body("", strings.Repeat(" ", 9<<20))), Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "a manifest without end", Set: func(w *World) string {
			image := index(w)
			w.Registry.Behave("", manifests, w.Registry.Endless(Index, " "))
			return image
		}, Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "a config without end", Set: func(w *World) string {
			image := single(w)
			w.Registry.Behave("", blobs, w.Registry.Endless("", " "))
			return image
		}, Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "a manifest in gzip, which was not asked for", Set: broken(Gzip), Want: wantIndex(both...)},
		Case{Name: "a gzip bomb of 1 GiB as a manifest", Set: broken(Bomb(Index, 1<<30)), Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "a gzip bomb of 1 GiB as a config", Set: brokenConfig(Bomb("", 1<<30)), Want: wantClass(provider.ClassInvalidContent, http.StatusOK)},
		Case{Name: "a content encoding that nobody knows", Set: broken(WithHeader("Content-Encoding", "rot13")), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "a manifest that says gzip and is none", Set: broken(WithHeader("Content-Encoding", "gzip")), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "a body cut short, with a length", Set: broken(Cut), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a body cut short, chunked", Set: broken(CutChunked), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a length longer than the body", Set: broken(TooLong), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a length shorter than the body", Set: broken(TooShort), Want: wantClass(provider.ClassUnreachable, http.StatusOK)},
		Case{Name: "a config cut short", Set: brokenConfig(Cut), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a sign-in page with status 200", Set: broken(Body("text/html", "<html>Please sign in</html>")), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "null", Set: broken(Body(Index, "null")), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "a list", Set: broken(Body(Index, "[]")), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "two values, one behind the other", Set: broken(Body(Index, string(IndexOf(Absent("linux/amd64")))+string(IndexOf(Absent("linux/arm64"))))), Want: wantClass(provider.ClassInvalidContent, 0)},
		Case{Name: "a field twice", Set: broken(Body(Index, `{"schemaVersion":2,"mediaType":"`+Index+`","manifests":[],"manifests":[]}`)), Want: wantClass(provider.ClassInvalidContent, 0)},
	)
}

func statusCases() []Case {
	return in("Statuses",
		Case{Name: "404", Set: broken(Status(404)), Want: wantClass(provider.ClassNotFound, 404)},
		Case{Name: "401 without a challenge", Set: broken(Status(401)), Want: wantClass(provider.ClassUnauthorized, 401)},
		Case{Name: "401 with a challenge that nobody knows", Set: broken(Status(401, `WWW-Authenticate: Negotiate`)), Want: wantClass(provider.ClassUnauthorized, 401)},
		Case{Name: "401 with a challenge that cannot be read", Set: broken(Status(401, `WWW-Authenticate: Bearer realm="`)), Want: wantClass(provider.ClassUnauthorized, 401)},
		Case{Name: "401 for what is missing, with a token", Set: func(w *World) string {
			w.Registry.Bearer(Tokens{Anonymous: true})
			w.Registry.Behave("GET", manifests, func(rw http.ResponseWriter, q *http.Request, next http.Handler) {
				if q.Header.Get("Authorization") != "" {
					w.challenge(rw)
					return
				}
				next.ServeHTTP(rw, q)
			})
			return w.image()
		}, Want: wantClass(provider.ClassUnauthorized, 401)},
		Case{Name: "403", Set: broken(Status(403)), Want: wantClass(provider.ClassUnauthorized, 403)},
		Case{Name: "405", Set: broken(Status(405)), Want: wantClass(provider.ClassUnreachable, 405)},
		Case{Name: "410", Set: broken(Status(410)), Want: wantClass(provider.ClassNotFound, 410)},
		Case{Name: "418", Set: broken(Status(418)), Want: wantClass(provider.ClassUnreachable, 418)},
		Case{Name: "429 with Retry-After in seconds", Set: broken(Status(429, "Retry-After: 60")), Want: wantClass(provider.ClassRateLimited, 429)},
		Case{Name: "429 with Retry-After as a date", Set: broken(Status(429, "Retry-After: "+time.Now().Add(time.Minute).UTC().Format(http.TimeFormat))), Want: wantClass(provider.ClassRateLimited, 429)},
		Case{Name: "429 without Retry-After", Set: broken(Status(429)), Want: wantClass(provider.ClassRateLimited, 429)},
		Case{Name: "429 with a Retry-After that is none", Set: broken(Status(429, "Retry-After: soon")), Want: wantClass(provider.ClassRateLimited, 429)},
		Case{Name: "403 that says TOOMANYREQUESTS", Set: broken(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { Error(w, 403, "TOOMANYREQUESTS") }), Want: wantClass(provider.ClassRateLimited, 403)},
		Case{Name: "500", Set: broken(Status(500)), Want: wantClass(provider.ClassUnreachable, 500)},
		Case{Name: "502", Set: broken(Status(502)), Want: wantClass(provider.ClassUnreachable, 502)},
		Case{Name: "503 with Retry-After", Set: broken(Status(503, "Retry-After: 1")), Want: wantClass(provider.ClassUnreachable, 503)},
		Case{Name: "204", Set: broken(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusNoContent) }), Want: wantClass(provider.ClassUnreachable, 204)},
		Case{Name: "200 without a body", Set: broken(Body(Index, "")), Want: wantClass(provider.ClassUnreachable, http.StatusOK)},
		Case{Name: "500 for the config", Set: brokenConfig(Status(500)), Want: wantClass(provider.ClassUnreachable, 500)},
		Case{Name: "403 for the config", Set: brokenConfig(Status(403)), Want: wantClass(provider.ClassUnauthorized, 403)},
	)
}

func (w *World) challenge(rw http.ResponseWriter) {
	rw.Header().Set("WWW-Authenticate", `Bearer realm="`+w.Registry.URL()+`/token",service="registrytest",scope="repository:`+repo+`:pull"`)
	Error(rw, http.StatusUnauthorized, "UNAUTHORIZED")
}

func stallCases() []Case {
	return in("Stalls",
		Case{Name: "the connection is accepted and nothing follows", Set: func(w *World) string { return w.Silent + "/" + repo + ":v1" }, Want: wantClass(provider.ClassTimeout, 0), Stalls: true},
		Case{Name: "no headers", Set: func(w *World) string { i := index(w); w.Registry.Behave("", manifests, w.Registry.Stall()); return i }, Want: wantClass(provider.ClassTimeout, 0), Stalls: true},
		Case{Name: "half of a manifest", Set: func(w *World) string {
			i := index(w)
			w.Registry.Behave("", manifests, w.Registry.StallMidBody())
			return i
		}, Want: wantClass(provider.ClassTimeout, 0), Stalls: true},
		Case{Name: "a manifest that comes byte by byte", Set: func(w *World) string {
			i := index(w)
			w.Registry.Behave("", manifests, w.Registry.Trickle(Index, 100))
			return i
		}, Want: wantClass(provider.ClassTimeout, 0), Stalls: true},
		Case{Name: "half of a config", Set: func(w *World) string {
			i := single(w)
			w.Registry.Behave("", blobs, w.Registry.StallMidBody())
			return i
		}, Want: wantClass(provider.ClassTimeout, 0), Stalls: true},
		Case{Name: "the token service", Set: func(w *World) string {
			w.Registry.Bearer(Tokens{Anonymous: true, Delay: time.Hour})
			return index(w)
		}, Want: wantClass(provider.ClassTimeout, 0), Stalls: true},
		Case{Name: "where a redirect leads", Set: func(w *World) string {
			i := single(w)
			w.Registry.Behave("", blobs, RedirectTo(307, "http://"+w.Silent))
			return i
		}, Want: wantClass(provider.ClassTimeout, 0), Stalls: true},
	)
}

func redirectCases() []Case {
	return in("Redirects",
		Case{Name: "a config on another host, which sees no Authorization", Set: func(w *World) string {
			w.Accounts = []Account{{User: "user", Password: "right"}}
			w.Registry.Basic(w.Accounts...)
			i := single(w)
			w.Other.PutImage(repo, "v1", "linux/amd64")
			w.Other.Behave("", "/", func(rw http.ResponseWriter, q *http.Request, next http.Handler) {
				if q.Header.Get("Authorization") != "" {
					http.Error(rw, "a credential came with a redirect", http.StatusTeapot)
					return
				}
				next.ServeHTTP(rw, q)
			})
			w.Registry.Behave("", blobs, RedirectTo(307, w.Other.URL()))
			return i
		}, Want: wantImage(one...)},
		Case{Name: "a manifest on another host", Set: func(w *World) string {
			w.Other.PutIndex(repo, "v1", both...)
			w.Registry.Behave("", manifests, RedirectTo(302, w.Other.URL()))
			return w.image()
		}, Want: wantIndex(both...)},
		Case{Name: "from https to http", Set: func(w *World) string {
			w.Secure.Behave("", "/v2/", RedirectTo(307, w.Registry.URL()))
			index(w)
			return w.Secure.Host() + "/" + repo + ":v1"
		}, Want: wantClass(provider.ClassBlocked, 0)},
		Case{Name: "to itself", Set: func(w *World) string {
			i := index(w)
			w.Registry.Behave("", manifests, RedirectTo(307, w.Registry.URL()))
			return i
		}, Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "between two hosts without end", Set: func(w *World) string {
			i := index(w)
			w.Registry.Behave("", manifests, RedirectTo(307, w.Other.URL()))
			w.Other.Behave("", manifests, RedirectTo(307, w.Registry.URL()))
			return i
		}, Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "to nowhere", Set: broken(Status(307)), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "to what is no URL", Set: broken(Status(307, "Location: http://[::1")), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "to a file", Set: broken(Status(307, "Location: file:///etc/passwd")), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "to loopback", Guarded: true, Set: broken(RedirectTo(307, "https://127.0.0.1:1")), Want: wantClass(provider.ClassBlocked, 0)},
		Case{Name: "to loopback by name", Guarded: true, Set: broken(RedirectTo(307, "https://localhost:1")), Want: wantClass(provider.ClassBlocked, 0)},
		Case{Name: "to loopback, mapped into IPv6", Guarded: true, Set: broken(RedirectTo(307, "https://[::ffff:127.0.0.1]:1")), Want: wantClass(provider.ClassBlocked, 0)},
		Case{Name: "to the metadata service", Guarded: true, Set: broken(RedirectTo(307, "https://169.254.169.254")), Want: wantClass(provider.ClassBlocked, 0)},
	)
}

func tokenCases() []Case {
	good := Account{User: "user", Password: "right"}
	bad := Account{User: "user", Password: "wrong"}
	with := func(t Tokens, accounts ...Account) func(*World) string {
		return func(w *World) string {
			w.Accounts = accounts
			w.Registry.Bearer(t)
			return index(w)
		}
	}
	basic := func(accounts ...Account) func(*World) string {
		return func(w *World) string {
			w.Accounts = accounts
			w.Registry.Basic(good)
			return index(w)
		}
	}
	wantSource := func(source string) Want {
		return Want{Kind: provider.KindIndex, Platforms: both, Source: source}
	}
	return in("Credentials",
		Case{Name: "an anonymous token", Set: with(Tokens{Anonymous: true}), Want: wantSource("anonymous")},
		Case{Name: "a token for an account", Set: with(Tokens{Accounts: []Account{good}}, good), Want: wantSource("account 1")},
		Case{Name: "a token for an identity token", Set: with(Tokens{Accounts: []Account{{IdentityToken: "id"}}}, Account{IdentityToken: "id"}), Want: wantSource("account 1")},
		Case{Name: "a wrong password on a public image", Set: with(Tokens{Anonymous: true, Accounts: []Account{good}}, bad), Want: wantSource("anonymous")},
		Case{Name: "a wrong password, then a right one", Set: with(Tokens{Accounts: []Account{good}}, bad, good), Want: wantSource("account 2")},
		Case{Name: "only wrong passwords", Set: with(Tokens{Accounts: []Account{good}}, bad, bad), Want: wantClass(provider.ClassUnauthorized, 401)},
		Case{Name: "no credential", Set: with(Tokens{Accounts: []Account{good}}), Want: wantClass(provider.ClassUnauthorized, 401)},
		Case{Name: "Basic is one request", Set: basic(good),
			Want: Want{Kind: provider.KindIndex, Platforms: both, Source: "account 1", Lines: []string{"GET " + manifests + "v1 200"}}},
		Case{Name: "Basic, a wrong password, then a right one", Set: basic(bad, good), Want: wantSource("account 2")},
		Case{Name: "Basic, wrong passwords alone", Set: basic(bad), Want: wantClass(provider.ClassUnauthorized, 401)},
		Case{Name: "a token that ends sooner than it was said to", Set: with(Tokens{Anonymous: true, Life: 50 * time.Millisecond, ExpiresIn: time.Hour}), Want: wantIndex(both...),
			Then: func(*World) { time.Sleep(60 * time.Millisecond) }, ThenWant: wantIndex(both...)},
		Case{Name: "the token service fails", Set: with(Tokens{Status: 500}), Want: wantClass(provider.ClassUnreachable, 500)},
		Case{Name: "the token service limits the rate", Set: with(Tokens{Status: 429}), Want: wantClass(provider.ClassRateLimited, 429)},
		Case{Name: "the token service refuses", Set: with(Tokens{Status: 403}), Want: wantClass(provider.ClassUnauthorized, 403)},
		Case{Name: "the token service redirects", Set: with(Tokens{Status: 307}), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "the token service gives no token", Set: with(Tokens{Status: 200, Body: "{}"}), Want: wantClass(provider.ClassUnauthorized, 0)},
		Case{Name: "the token service gives no JSON", Set: with(Tokens{Status: 200, Body: "token"}), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a token that would break the header", Set: with(Tokens{Status: 200, Body: `{"token":"a\r\nX-Evil: 1"}`}), Want: wantClass(provider.ClassUnauthorized, 0)},
		Case{Name: "a realm that is no URL", Set: with(Tokens{Realm: "::"}), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a realm where nobody listens", Set: func(w *World) string {
			w.Registry.Bearer(Tokens{Realm: "http://" + w.Closed + "/token"})
			return index(w)
		}, Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a realm on the metadata service", Guarded: true, Set: with(Tokens{Realm: "https://169.254.169.254/token"}), Want: wantClass(provider.ClassBlocked, 0)},
		Case{Name: "a realm on plain HTTP, of a registry on HTTPS", Set: func(w *World) string {
			w.Secure.Bearer(Tokens{Anonymous: true, Realm: "http://" + w.Untrusted.Host() + "/token"})
			w.Secure.PutIndex(repo, "v1", both...)
			return w.Secure.Host() + "/" + repo + ":v1"
		}, Want: wantClass(provider.ClassBlocked, 0)},
	)
}

func headCases() []Case {
	head := func(do Behaviour) func(*World) {
		return func(w *World) { w.Registry.Forget(); w.Registry.Behave("HEAD", manifests, do) }
	}
	lines := func(status int, more ...string) Want {
		return Want{Kind: provider.KindIndex, Platforms: both, Lines: append([]string{fmt.Sprintf("HEAD %sv1 %d", manifests, status)}, more...)}
	}
	get := "GET " + manifests + "v1 200"
	return in("HEAD, when an answer is confirmed",
		Case{Name: "it is one request", Set: index, Want: wantIndex(both...), Then: func(w *World) { w.Registry.Forget() }, ThenWant: lines(200)},
		Case{Name: "refused with 405", Set: index, Want: wantIndex(both...), Then: head(Status(405)), ThenWant: lines(405, get)},
		Case{Name: "refused with 403", Set: index, Want: wantIndex(both...), Then: head(Status(403)), ThenWant: lines(403, get)},
		Case{Name: "refused with 404", Set: index, Want: wantIndex(both...), Then: head(Status(404)), ThenWant: lines(404, get)},
		Case{Name: "without a digest", Set: index, Want: wantIndex(both...), Then: head(WithHeader("Docker-Content-Digest", "")), ThenWant: lines(200, get)},
		Case{Name: "with a digest that lies", Set: index, Want: wantIndex(both...), Then: head(WithHeader("Docker-Content-Digest", Digest([]byte("a lie")))), ThenWant: lines(200, get)},
		Case{Name: "the tag moved", Set: index, Want: wantIndex(both...), Then: func(w *World) {
			w.Registry.Forget()
			w.Registry.PutIndex(repo, "v1", "linux/s390x")
		}, ThenWant: Want{Kind: provider.KindIndex, Platforms: []string{"linux/s390x"}, Lines: []string{"HEAD " + manifests + "v1 200", get}}},
		Case{Name: "the tag is gone", Set: index, Want: wantIndex(both...), Then: func(w *World) { w.Registry.Delete(repo, "v1") }, ThenWant: wantClass(provider.ClassNotFound, 404)},
		Case{Name: "a host that lies in its GET is not asked by HEAD", Set: broken(WithHeader("Docker-Content-Digest", Digest([]byte("a lie")))), Want: wantIndex(both...),
			Then: func(w *World) { w.Registry.Forget() }, ThenWant: Want{Kind: provider.KindIndex, Platforms: both, Lines: []string{get}}},
	)
}

func reachCases() []Case {
	at := func(host func(*World) string) func(*World) string {
		return func(w *World) string { return host(w) + "/" + repo + ":v1" }
	}
	return in("Connections",
		Case{Name: "nobody listens", Set: at(func(w *World) string { return w.Closed }), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a name that does not resolve", Set: at(func(*World) string { return "registry.invalid" }), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a certificate that is not trusted", Set: at(func(w *World) string { return w.Untrusted.Host() }), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "a certificate that is trusted", Set: func(w *World) string {
			w.Secure.PutIndex(repo, "v1", both...)
			return w.Secure.Host() + "/" + repo + ":v1"
		}, Want: wantIndex(both...)},
		Case{Name: "a registry on loopback that nobody listed", Guarded: true, Set: at(func(w *World) string { return w.Untrusted.Host() }), Want: wantClass(provider.ClassBlocked, 0)},
		Case{Name: "the connection is closed at once", Set: broken(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			if connection, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = connection.Close()
			}
		}), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "what is no HTTP", Set: broken(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			if connection, buffer, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = buffer.WriteString("220 mail.example.com ESMTP\r\n")
				_ = buffer.Flush()
				_ = connection.Close()
			}
		}), Want: wantClass(provider.ClassUnreachable, 0)},
		Case{Name: "headers without end", Set: broken(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			if connection, buffer, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = buffer.WriteString("HTTP/1.1 200 OK\r\n")
				for {
					if _, err := buffer.WriteString("X-Filling: " + strings.Repeat("a", 4<<10) + "\r\n"); err != nil {
						_ = connection.Close()
						return
					}
				}
			}
		}), Want: wantClass(provider.ClassUnreachable, 0)},
	)
}
