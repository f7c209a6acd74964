package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAllInOneDoesNotStart(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir, _ := certificates(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	served := []string{"--tls-cert", in("tls.crt"), "--tls-key", in("tls.key"), "--listen=127.0.0.1:0", "--probe-listen=127.0.0.1:0"}
	for sentence, tc := range map[string]struct {
		args []string
		says []string
	}{
		"without a certificate":                 {nil, []string{"--tls-cert"}},
		"without an API server":                 {served, []string{"no API server", "--kubeconfig"}},
		"with a missing kubeconfig":             {append(served, "--kubeconfig", in("kc")), []string{"kc"}},
		"with a controller that is none":        {append(served, "--enable=scheduling"), []string{"scheduling", "placement"}},
		"with certificates, and no word which":  {append(served, "--enable=certificates"), []string{"--certificates"}},
		"with a shared secret without a name":   {append(served, "--node-pull-secret=ns"), []string{"--node-pull-secret", "NAMESPACE/NAME"}},
		"with two mistakes, both are named":     {append(served, "--secrets=all", "--lease-duration=1s"), []string{"--secrets", "--lease-duration"}},
		"with the flags of who asks over HTTPS": {append(served, "--provider=https://x"), []string{"unknown flag: --provider"}},
		"at a probe address that is none":       {append(served, "--probe-listen=256.0.0.1:1"), []string{"--probe-listen", "256.0.0.1"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			stdout, stderr, status := command(t, "", append([]string{"all-in-one"}, tc.args...)...)
			if status != statusFailed || stdout != "" {
				t.Errorf("status %d, stdout %q", status, stdout)
			}
			for _, says := range tc.says {
				if !strings.Contains(stderr, says) {
					t.Errorf("stderr %q does not say %q", stderr, says)
				}
			}
		})
	}
}

func TestFilesMayComeLater(t *testing.T) {
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
	var log lockedBuffer
	come := make(chan struct{})
	go func() {
		defer close(come)
		awaitFiles(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), files)
	}()
	for _, file := range files {
		for !strings.Contains(log.String(), file) {
			select {
			case <-come:
				t.Fatalf("it did not wait for %s:\n%s", file, log.String())
			case <-time.After(time.Millisecond):
			}
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	<-come
	ctx, stop := context.WithCancel(t.Context())
	stop()
	awaitFiles(ctx, slog.New(slog.DiscardHandler), []string{filepath.Join(dir, "never")})
}
