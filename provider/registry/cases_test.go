package registry_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// accounts is a keychain that gives the same credentials for every image.
type accounts []registrytest.Account

func (a accounts) Lookup(context.Context, provider.Scope, string) ([]credentials.Credential, error) {
	var found []credentials.Credential
	for n, account := range a {
		found = append(found, credentials.New(fmt.Sprintf("account %d", n+1), authn.AuthConfig{
			Username: account.User, Password: account.Password, IdentityToken: account.IdentityToken,
		}))
	}
	return found, nil
}

func worldReach(t *testing.T, w *registrytest.World, guarded bool) *reach.Reach {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Secure.Server().Certificate().Raw})
	dir := filepath.Join(t.TempDir(), w.Secure.Host())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ca, filepath.Join(dir, "ca.crt")} {
		if err := os.WriteFile(name, certificate, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The certificate is trusted for that host alone: all of httptest's
	// registries have the same.
	r, err := reach.New(reach.Config{CertsDirs: []string{filepath.Dir(dir)}, PlainHTTPHosts: w.PlainHosts(), DenyPrivate: guarded})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// maxHeap is how much a case may add to the heap at its worst.
const maxHeap = 96 << 20

func TestEveryCase(t *testing.T) {
	for _, c := range registrytest.Cases() {
		t.Run(c.Group+"/"+c.Name, func(t *testing.T) {
			w, err := registrytest.NewWorld()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Close)
			image := c.Set(w)
			o := registry.Options{Reach: worldReach(t, w, c.Guarded), Keychain: accounts(w.Accounts), FetchTimeout: 10 * time.Second}
			if c.Stalls {
				o.FetchTimeout = 300 * time.Millisecond
			}
			i := newInspector(t, o)
			peak := watchHeap(t)
			check(t, i, w, provider.Query{Image: image}, c.Want)
			if c.Then != nil {
				c.Then(w)
				check(t, i, w, provider.Query{Image: image, Revalidate: true}, c.ThenWant)
			}
			if grown := peak(); grown > maxHeap {
				t.Errorf("the heap grew by %d MiB, at most %d are allowed", grown>>20, maxHeap>>20)
			}
		})
	}
}

func check(t *testing.T, i *registry.Inspector, w *registrytest.World, q provider.Query, want registrytest.Want) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a := i.Inspect(ctx, []provider.Query{q})[0]
	if a.Image != q.Image {
		t.Errorf("image is %q, want %q", a.Image, q.Image)
	}
	if want.Class != "" {
		wantClass(t, a, want.Class)
		if a.Err.HTTPStatus != want.Status {
			t.Errorf("status %d, want %d: %v", a.Err.HTTPStatus, want.Status, a.Err)
		}
		if want.Kind != "" && a.Kind != want.Kind {
			t.Errorf("kind %q, want %q", a.Kind, want.Kind)
		}
		if len(a.Platforms) > 0 || len(a.Architectures) > 0 || a.ContentOnly {
			t.Errorf("platforms beside an error: %+v", a)
		}
		for _, r := range a.Err.Message {
			if r < ' ' || r > '~' {
				t.Errorf("the message has the character %q: %s", r, a.Err.Message)
			}
		}
		if len(a.Err.Message) > 1024 {
			t.Errorf("the message has %d bytes", len(a.Err.Message))
		}
		return
	}
	if a.Err != nil {
		t.Fatalf("%v", a.Err)
	}
	if a.Kind != want.Kind || a.ContentOnly != want.ContentOnly {
		t.Errorf("got kind %q and contentOnly %v, want %q and %v", a.Kind, a.ContentOnly, want.Kind, want.ContentOnly)
	}
	if diff := cmp.Diff(want.Platforms, a.Platforms); diff != "" {
		t.Errorf("platforms (-want +got):\n%s", diff)
	}
	if warns := len(a.Warnings) > 0; want.Warns && !warns {
		t.Error("no warning")
	}
	if want.Source != "" && a.CredentialSource != want.Source {
		t.Errorf("credential source %q, want %q", a.CredentialSource, want.Source)
	}
	if want.Lines != nil {
		if diff := cmp.Diff(want.Lines, w.Registry.Lines()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	}
	if a.Digest == "" || !strings.Contains(a.Digest, ":") {
		t.Errorf("digest %q", a.Digest)
	}
}

// watchHeap gives a function that tells how much the heap grew at its worst.
func watchHeap(t *testing.T) func() uint64 {
	t.Helper()
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		peak := uint64(0)
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapAlloc)
			select {
			case <-ticker.C:
			case <-stop:
				done <- peak
				return
			}
		}
	}()
	return func() uint64 {
		close(stop)
		peak := <-done
		return peak - min(peak, before.HeapAlloc)
	}
}
