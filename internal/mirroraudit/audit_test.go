package mirroraudit

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// pair is a source and a mirror on real HTTP, and rules between them.
type pair struct {
	source, mirror *registrytest.Registry
	rules          *mirrors.Config
	inspector      *registry.Inspector
	amd, arm       string // digests of the source's images
	index          string // its index, tag v1
}

func newPair(t *testing.T, pull string) *pair {
	t.Helper()
	p := &pair{source: registrytest.New(), mirror: registrytest.New()}
	t.Cleanup(p.source.Close)
	t.Cleanup(p.mirror.Close)
	connections, err := reach.New(reach.Config{PlainHTTPHosts: []string{p.source.Host(), p.mirror.Host()}})
	if err != nil {
		t.Fatal(err)
	}
	if p.inspector, err = registry.New(registry.Options{Reach: connections}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.inspector.Close)
	conf := "[[registry]]\nlocation = \"" + p.source.Host() + "\"\n"
	for kind := range strings.SplitSeq(pull, ",") {
		conf += "[[registry.mirror]]\nlocation = \"" + p.mirror.Host() + "/m\"\npull-from-mirror = \"" + kind + "-only\"\n"
	}
	if p.rules, err = mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "rules", Data: []byte(conf)}); err != nil {
		t.Fatal(err)
	}
	p.amd, p.arm, p.index = fill(p.source, "app", "v1")
	return p
}

// fill stores an index of two images, the same at every place.
func fill(r *registrytest.Registry, repository, tag string) (amd, arm, index string) {
	amd, arm = image(r, repository, "", "linux/amd64"), image(r, repository, "", "linux/arm64")
	index = r.Put(repository, tag, registrytest.Index, indexOf(amd, arm))
	return amd, arm, index
}

func image(r *registrytest.Registry, repository, tag, platform string) string {
	config := registrytest.Platform(platform)
	config["rootfs"] = registrytest.Object{"type": "layers", "diff_ids": []string{}}
	return r.PutConfigured(repository, tag, registrytest.Config, registrytest.JSON(config))
}

func indexOf(amd, arm string) []byte {
	return registrytest.IndexOf(registrytest.Descriptor(registrytest.Image, amd, 500, "linux/amd64"), registrytest.Descriptor(registrytest.Image, arm, 500, "linux/arm64"))
}

func TestAudit(t *testing.T) {
	for name, tc := range map[string]struct {
		pull    string // default digest,tag
		mirror  func(p *pair, r *registrytest.Registry)
		want    Status
		lacking []string
		message string
	}{
		"identical": {mirror: func(_ *pair, r *registrytest.Registry) { fill(r, "m/app", "v1") }, want: Identical},
		"identical by digest, without the tag": {pull: "digest", mirror: func(_ *pair, r *registrytest.Registry) {
			fill(r, "m/app", "v1")
			r.Delete("m/app", "v1")
		}, want: Identical},
		"the mirror's digest is a child of the source index: flattened, and amd64 survived": {mirror: func(_ *pair, r *registrytest.Registry) {
			image(r, "m/app", "v1", "linux/amd64")
		}, want: Flattened, lacking: []string{"linux/arm64"}, message: "linux/amd64 survived"},
		"same index digest, children 404: sparse": {mirror: func(p *pair, r *registrytest.Registry) {
			fill(r, "m/app", "v1")
			r.Delete("m/app", p.arm)
		}, want: Sparse, lacking: []string{"linux/arm64"}},
		"re-indexed subset": {mirror: func(_ *pair, r *registrytest.Registry) {
			amd := image(r, "m/app", "", "linux/amd64")
			r.Put("m/app", "v1", registrytest.Index, registrytest.IndexOf(registrytest.Descriptor(registrytest.Image, amd, 500, "linux/amd64")))
		}, want: Subset, lacking: []string{"linux/arm64"}},
		"re-indexed as a whole": {mirror: func(_ *pair, r *registrytest.Registry) {
			amd, arm := image(r, "m/app", "", "linux/amd64"), image(r, "m/app", "", "linux/arm64")
			r.Put("m/app", "v1", registrytest.Index, registrytest.IndexOf(registrytest.Descriptor(registrytest.Image, arm, 500, "linux/arm64"), registrytest.Descriptor(registrytest.Image, amd, 500, "linux/amd64")))
		}, want: Reindexed},
		"stale":                             {mirror: func(_ *pair, r *registrytest.Registry) { r.PutIndex("m/app", "v1", "linux/amd64", "linux/arm64") }, want: Stale},
		"stale, and one architecture alone": {mirror: func(_ *pair, r *registrytest.Registry) { r.PutImage("m/app", "v1", "linux/s390x") }, want: Stale, message: "for linux/s390x alone"},
		"mislabelled platform": {mirror: func(_ *pair, r *registrytest.Registry) {
			amd, arm := image(r, "m/app", "", "linux/amd64"), image(r, "m/app", "", "linux/arm64")
			r.Put("m/app", "v1", registrytest.Index, indexOf(arm, amd))
		}, want: Mislabelled},
		"missing": {mirror: func(*pair, *registrytest.Registry) {}, want: Missing},
		"the tag is missing for pulls by tag": {mirror: func(_ *pair, r *registrytest.Registry) {
			fill(r, "m/app", "v1")
			r.Delete("m/app", "v1")
		}, want: Missing, message: "the tag v1"},
		"a mirror that does not answer": {mirror: func(_ *pair, r *registrytest.Registry) {
			r.Behave("", "/", registrytest.Status(http.StatusServiceUnavailable))
		}, want: Undetermined},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.pull == "" {
				tc.pull = "digest,tag"
			}
			p := newPair(t, tc.pull)
			tc.mirror(p, p.mirror)
			found := Audit(t.Context(), p.inspector, p.rules, []string{p.source.Host() + "/app:v1"}, Options{})
			if len(found) != 1 {
				t.Fatalf("%+v", found)
			}
			f := found[0]
			if f.Status != tc.want || !strings.Contains(f.Message, tc.message) || f.Mirror != p.mirror.Host()+"/m/app" {
				t.Errorf("%+v", f)
			}
			if diff := cmp.Diff(tc.lacking, f.Lacking); diff != "" {
				t.Error(diff)
			}
			mends := f.Status != Identical && f.Status != Undetermined
			if mends != (len(f.Commands) == 4) {
				t.Errorf("commands %q", f.Commands)
			}
			if mends && f.Commands[0] != "skopeo copy --all --preserve-digests docker://"+p.source.Host()+"/app:v1 docker://"+p.mirror.Host()+"/m/app:v1" {
				t.Errorf("command %q", f.Commands[0])
			}
			want := map[Status]int{Identical: 0, Undetermined: 3}
			status, ok := want[f.Status]
			if !ok {
				status = 2
			}
			if got := ExitStatus(found); got != status {
				t.Errorf("exit status %d, want %d", got, status)
			}
		})
	}
}

func TestAuditByDigestAndOfWhatIsNotMirrored(t *testing.T) {
	p := newPair(t, "digest")
	fill(p.mirror, "m/app", "")
	found := Audit(t.Context(), p.inspector, p.rules, []string{
		p.source.Host() + "/app@" + p.index, "other.example/app:v1", p.source.Host() + "/none:v1", "Bad Reference",
	}, Options{})
	var got []Status
	for _, f := range found {
		got = append(got, f.Status)
	}
	if diff := cmp.Diff([]Status{Identical, Undetermined, Undetermined}, got); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyTheArchitecturesOfTheClusterNeedTheirImages(t *testing.T) {
	p := newPair(t, "digest")
	fill(p.mirror, "m/app", "v1")
	p.mirror.Delete("m/app", p.arm)
	images := []string{p.source.Host() + "/app:v1"}
	if got := Audit(t.Context(), p.inspector, p.rules, images, Options{Architectures: []string{"amd64"}}); got[0].Status != Identical {
		t.Errorf("%+v", got)
	}
	if got := Audit(t.Context(), p.inspector, p.rules, images, Options{Architectures: []string{"amd64", "arm64"}}); got[0].Status != Sparse {
		t.Errorf("%+v", got)
	}
}

func TestPrint(t *testing.T) {
	findings := []Finding{
		{Image: "s.io/a:1", Source: "s.io/a:1", Mirror: "m.io/a", Pull: []string{"digest"}, Status: Identical, Message: "same"},
		{Image: "s.io/b:1", Source: "s.io/b:1", Mirror: "m.io/b", Pull: []string{"tag"}, Status: Flattened, Lacking: []string{"linux/arm64"}, Message: "one", Commands: []string{"skopeo copy", "crane copy"}},
	}
	var out bytes.Buffer
	if err := WriteTable(&out, findings); err != nil {
		t.Fatal(err)
	}
	want := "IMAGE      MIRROR   PULL     STATUS      LACKING       MESSAGE\n" +
		"s.io/a:1   m.io/a   digest   identical   -             same\n" +
		"s.io/b:1   m.io/b   tag      flattened   linux/arm64   one\n" +
		"\nTo mend:\n  skopeo copy\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	out.Reset()
	if err := WriteJSON(&out, nil); err != nil || out.String() != "[]\n" {
		t.Errorf("%q %v", out.String(), err)
	}
}
