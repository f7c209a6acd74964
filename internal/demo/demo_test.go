package demo_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/internal/demo"
)

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	full chan struct{}
	once sync.Once
}

// Write takes the one write that the demonstration makes.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.once.Do(func() { close(o.full) })
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func TestOnceShowsAnswersAndVerdictsAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	out := &output{full: make(chan struct{})}
	if err := demo.Run(context.Background(), demo.Options{Out: out, Once: true, TempDir: dir}); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		`"architectures":["amd64","arm64"]`, `"platforms":["windows(10.0.17763.`, "error  not-runnable: ", `"class":"not-found"`,
		"pod web (init demo/multi, main demo/amd64-only): allowed\n", "pod mixed (init demo/arm64-only, main demo/amd64-only): denied\n    container \"main\"",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("not shown: %s\n%s", want, text)
		}
	}
	if strings.Contains(text, "curl") {
		t.Errorf("a command that does not work any more is shown:\n%s", text)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Each curl line that is printed does what it says.
func TestTheCommandsWork(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	out := &output{full: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- demo.Run(ctx, demo.Options{Out: out, TempDir: t.TempDir()}) }()
	select {
	case <-out.full:
	case err := <-ended:
		t.Fatal(err)
	}
	commands := map[string][]string{} // by the comment above
	what := ""
	for line := range strings.SplitSeq(out.String(), "\n") {
		line = strings.TrimSpace(line)
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			what = comment
		}
		if strings.HasPrefix(line, "curl ") {
			commands[what] = words(line)
		}
	}
	for what, want := range map[string]struct {
		status int
		says   string
	}{
		"one image, for a person":                        {200, `"architectures":["amd64","arm64"]`},
		"as Gatekeeper's validation asks":                {200, `"architectures":["arm64"]`},
		"as Gatekeeper's mutation asks, to pin a digest": {200, `demo/multi:1@sha256:`},
		"without a certificate: refused, and still JSON": {401, `"kind":"ProviderResponse"`},
		"metrics": {200, "archkeeper_provider_requests_total"},
	} {
		t.Run(what, func(t *testing.T) {
			if commands[what] == nil {
				t.Fatalf("not shown:\n%s", out)
			}
			status, text := curl(t, commands[what])
			if status != want.status || !strings.Contains(text, want.says) {
				t.Errorf("status %d: %s", status, text)
			}
		})
	}
	if len(commands) != 5 {
		t.Errorf("%d commands are shown, 5 are tried", len(commands))
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// words splits a line as a shell does, as far as single quotes go.
func words(line string) (all []string) {
	word, quoted, begun := strings.Builder{}, false, false
	for _, c := range line {
		switch {
		case c == '\'':
			quoted, begun = !quoted, true
		case c == ' ' && !quoted:
			if begun {
				all = append(all, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	return append(all, word.String())
}

// curl does what curl would.
func curl(t *testing.T, args []string) (int, string) {
	t.Helper()
	var cacert, cert, key, data, url string
	header := http.Header{}
	for i := 1; i < len(args); i++ {
		value := func() string { i++; return args[i] }
		switch args[i] {
		case "-sS":
		case "--cacert":
			cacert = value()
		case "--cert":
			cert = value()
		case "--key":
			key = value()
		case "-d":
			data = value()
		case "-H":
			name, text, _ := strings.Cut(value(), ": ")
			header.Set(name, text)
		default:
			url = args[i]
		}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()}
	if cacert != "" {
		pem, err := os.ReadFile(cacert)
		if err != nil || !config.RootCAs.AppendCertsFromPEM(pem) {
			t.Fatal(err)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	method := http.MethodGet
	if data != "" {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}
