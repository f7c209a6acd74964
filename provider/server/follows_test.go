package server_test

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registriesconf"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// inspecting starts a server whose inspector is the real one, by a clock.
func inspecting(t *testing.T, clock *clocktesting.FakeClock, config reach.Config, o registry.Options) *world {
	t.Helper()
	o.Clock, o.Reach = clock, must(reach.New(config))
	inspector := must(registry.New(o))
	t.Cleanup(inspector.Close)
	return start(t, func(_ *world, s *server.Options) {
		s.Inspector = inspector
		s.Deadline = 20 * time.Second
	})
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAnAnswerIsConfirmedAllDayLong: a tag costs one HEAD for each time that it
// is asked for after ten minutes, behind an answer that waits for nobody; a
// digest costs nothing; tokens of five minutes cost one each, and no refusal.
func TestAnAnswerIsConfirmedAllDayLong(t *testing.T) {
	images := registrytest.New()
	t.Cleanup(images.Close)
	clock := clocktesting.NewFakeClock(time.Now())
	images.Bearer(registrytest.Tokens{Anonymous: true, Life: 5 * time.Minute, Now: clock.Now})
	digest := images.PutIndex("team/app", "1", "linux/amd64")
	w := inspecting(t, clock, reach.Config{PlainHTTPHosts: []string{images.Host()}}, registry.Options{})
	tag, byDigest := images.Host()+"/team/app:1", images.Host()+"/team/app@"+digest
	ask := func() {
		t.Helper()
		if got := w.ask(server.PathPublic, tag, byDigest); strings.Count(got.text, "linux/amd64") != 2 {
			t.Fatalf("status %d: %s", got.StatusCode, got.text)
		}
	}
	w.ask(server.PathPublic, tag)
	ask()
	tokens := func() int { return images.Count(registrytest.Request.Token) }
	content := func() []string {
		var lines []string
		for _, r := range images.Requests() {
			if !r.Token() {
				lines = append(lines, fmt.Sprintf("%s %d", r.Method, r.Status))
			}
		}
		return lines
	}
	want := []string{"GET 401", "GET 200"}
	if diff := cmp.Diff(want, content()); diff != "" || tokens() != 1 {
		t.Fatalf("%d tokens; requests (-want +got):\n%s", tokens(), diff)
	}
	clock.Step(9 * time.Minute)
	ask()
	if diff := cmp.Diff(want, content()); diff != "" {
		t.Fatalf("within ten minutes (-want +got):\n%s", diff)
	}
	const rounds = 90 // of a quarter of an hour: less than the day for which a digest is known
	for round := range rounds {
		clock.Step(15 * time.Minute)
		ask()
		want = append(want, "HEAD 200")
		until(t, "the tag is confirmed", func() bool { return len(content()) >= len(want) && content()[len(want)-1] != "HEAD 0" })
		until(t, "the answer is fresh", func() bool {
			before := len(images.Requests())
			ask()
			return len(images.Requests()) == before
		})
		if diff := cmp.Diff(want, content()); diff != "" || tokens() != round+2 {
			t.Fatalf("round %d: %d tokens; requests (-want +got):\n%s", round, tokens(), diff)
		}
	}
}

func TestAChangedMirrorFileIsFollowed(t *testing.T) {
	source, mirror := registrytest.New(), registrytest.New()
	t.Cleanup(source.Close)
	t.Cleanup(mirror.Close)
	source.PutIndex("team/app", "1", "linux/amd64")
	mirror.PutIndex("copies/app", "1", "linux/arm64")
	clock := clocktesting.NewFakeClock(time.Now())
	path := filepath.Join(t.TempDir(), "registries.conf")
	write(t, path, "")
	mirrors := must(registriesconf.Open(registriesconf.Options{File: path, Clock: clock}))
	w := inspecting(t, clock, reach.Config{PlainHTTPHosts: []string{source.Host(), mirror.Host()}}, registry.Options{Mirrors: mirrors.Current})
	entry := "[[registry]]\nlocation = \"" + source.Host() + "/team\"\n"
	for _, step := range []struct {
		name, file, want string
		source, mirror   []string
	}{
		{"no mirror", "", "linux/amd64", []string{"GET /v2/team/app/manifests/1 200"}, nil},
		{"a mirror", entry + "[[registry.mirror]]\nlocation = \"" + mirror.Host() + "/copies\"\n", "linux/arm64", nil, []string{"GET /v2/copies/app/manifests/1 200"}},
		{"a broken file leaves the last good one", "[[registry", "linux/arm64", nil, nil},
		{"a blocked source", entry + "blocked = true\n", "blocked: ", nil, nil},
		{"no mirror again: that is known", "", "linux/amd64", nil, nil},
	} {
		source.Forget()
		mirror.Forget()
		write(t, path, step.file)
		clock.Step(2 * time.Second)
		if got := w.ask(server.PathPublic, source.Host()+"/team/app:1"); !strings.Contains(got.text, step.want) {
			t.Errorf("%s: status %d: %s", step.name, got.StatusCode, got.text)
		}
		if diff := cmp.Diff([][]string{step.source, step.mirror}, [][]string{source.Lines(), mirror.Lines()}); diff != "" {
			t.Errorf("%s: requests to source and mirror (-want +got):\n%s", step.name, diff)
		}
	}
}

func TestAChangedCertificateFolderIsFollowed(t *testing.T) {
	images := registrytest.NewTLS()
	t.Cleanup(images.Close)
	images.PutIndex("team/app", "1", "linux/amd64")
	images.PutIndex("team/app", "2", "linux/amd64")
	clock := clocktesting.NewFakeClock(time.Now())
	dir := t.TempDir()
	w := inspecting(t, clock, reach.Config{CertsDirs: []string{dir}}, registry.Options{})
	image := images.Host() + "/team/app:"
	if got := w.ask(server.PathPublic, image+"1"); !strings.Contains(got.text, "unknown authority") {
		t.Fatalf("before there is a folder: %s", got.text)
	}
	path := filepath.Join(dir, images.Host(), "ca.crt")
	write(t, path, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: images.Server().Certificate().Raw})))
	clock.Step(6 * time.Second) // until the failure is forgotten
	if got := w.ask(server.PathPublic, image+"1"); !strings.Contains(got.text, "linux/amd64") {
		t.Fatalf("with its authority: %s", got.text)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := w.ask(server.PathPublic, image+"2"); !strings.Contains(got.text, "unknown authority") {
		t.Fatalf("without its authority again: %s", got.text)
	}
	if lines := images.Lines(); !slices.Equal(lines, []string{http.MethodGet + " /v2/team/app/manifests/1 200"}) {
		t.Errorf("requests: %v", lines)
	}
}
