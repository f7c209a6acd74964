package client_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/client"
)

// The controllers ask with a certificate that one of them has to make first.
func TestTheCertificateMayComeLater(t *testing.T) {
	w := start(t)
	certificate, err := os.ReadFile(w.path("client.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(w.path("client.crt")); err != nil {
		t.Fatal(err)
	}
	d := client.NewDeferred(w.options())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { d.Run(ctx); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })

	question := []provider.Query{{Image: "r.io/app:1"}}
	early := d.Inspect(t.Context(), question)
	if d.Ready() || len(early) != 1 || early[0].Err == nil || !early[0].Err.Class.Retryable() || !strings.Contains(early[0].Err.Message, "client.crt") {
		t.Errorf("ready %t, answers %+v", d.Ready(), early)
	}
	if pinned := d.Pin(t.Context(), []string{"r.io/app:1"}); len(pinned) > 0 {
		t.Errorf("pinned %v", pinned)
	}
	w.write("client.crt", certificate)
	for deadline := time.Now().Add(30 * time.Second); !d.Ready(); w.clock.Step(time.Second) {
		if time.Now().After(deadline) {
			t.Fatal("the certificate came, and nobody looked")
		}
		time.Sleep(time.Millisecond)
	}
	if late := d.Inspect(t.Context(), question); late[0].Err != nil {
		t.Errorf("%v", late[0].Err)
	}
}

func TestPin(t *testing.T) {
	w := start(t)
	got := w.client(w.options()).Pin(t.Context(), []string{"r.io/app:1", "r.io/not-found:1", "r.io/malformed:1", "r.io/app@" + digest})
	want := map[string]string{"r.io/app:1": "r.io/app:1@" + digest, "r.io/app@" + digest: "r.io/app@" + digest}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
