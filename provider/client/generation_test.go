package client_test

import (
	"os"
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/provider/client"
)

func TestGenerationTravels(t *testing.T) {
	w := start(t)
	c := w.client(w.options())
	first, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.generation.Changed()
	second, err := c.Generation(t.Context())
	if err != nil || second.Instance != first.Instance || second.Changes != first.Changes+1 {
		t.Errorf("%+v, then %+v, %v", first, second, err)
	}
	stranger := w.options()
	stranger.CertFile, stranger.KeyFile = "", ""
	if _, err := w.client(stranger).Generation(t.Context()); err == nil {
		t.Error("a stranger is told")
	}
	if err := os.Remove(w.path("client.crt")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.NewDeferred(w.options()).Generation(t.Context()); err == nil || !strings.Contains(err.Error(), "client.crt") {
		t.Errorf("without a certificate: %v", err)
	}
}
