package demo

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/policies"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/provider/throwaway"
)

// callerName is the name in the client certificate that the provider knows.
const callerName = "archkeeper-demo"

// Options say how the demonstration runs.
type Options struct {
	// Out takes what there is to see.
	Out io.Writer
	// Log takes what goes wrong; nil for nothing.
	Log *slog.Logger
	// Once ends it when all is printed, instead of serving until the context
	// ends.
	Once bool
	// TempDir takes a new folder for certificates and keys, which is removed at
	// the end; the system's when empty.
	TempDir string
}

// Run shows the demonstration. It comes back when ctx ends, or at once with
// Once.
func Run(ctx context.Context, o Options) (err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := os.MkdirTemp(o.TempDir, "archkeeper-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	registryHost, stopRegistry, err := startRegistry()
	if err != nil {
		return err
	}
	defer stopRegistry()
	client, err := writeCertificates(dir)
	if err != nil {
		return err
	}
	inspector, err := openInspector(registryHost, o.Log)
	if err != nil {
		return err
	}
	defer inspector.Close()
	p, err := newProvider(dir, inspector, o.Log)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- p.service.Run(ctx) }()

	show := show{out: o.Out, dir: dir, registry: registryHost, provider: p, gatekeeper: gatekeeper{url: "https://" + p.data, client: client}}
	if err := show.everything(ctx, o.Once); err != nil {
		stop()
		return errors.Join(err, <-ended)
	}
	if o.Once {
		stop()
		client.CloseIdleConnections()
	}
	return <-ended
}

// startRegistry serves the images on a free port of the loopback interface.
func startRegistry() (host string, stop func(), err error) {
	images, err := newStore()
	if err != nil {
		return "", nil, fmt.Errorf("making the images: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at the start
	if err != nil {
		return "", nil, err
	}
	service := &http.Server{Handler: images, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = service.Serve(listener) // ends by stop alone
	}()
	return listener.Addr().String(), func() {
		_ = service.Close()
		<-done
	}, nil
}

// writeCertificates writes ca.crt, and tls and client certificates with their
// keys, into a folder. It gives the caller whom the provider knows.
func writeCertificates(dir string) (*http.Client, error) {
	now := time.Now()
	authority, err := throwaway.New("archkeeper demo", now)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"ca.crt": authority.PEM()}
	for name, r := range map[string]throwaway.Request{
		"tls":    {CommonName: "provider", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Names: []string{"localhost"}, Server: true, Now: now},
		"client": {CommonName: callerName, Names: []string{callerName}, Client: true, Now: now},
	} {
		if files[name+".crt"], files[name+".key"], err = authority.Issue(r); err != nil {
			return nil, err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	pair, err := tls.X509KeyPair(files["client.crt"], files["client.key"])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}}},
	}, nil
}

// openInspector makes the inspector as `archkeeper provider` does: it connects
// to no loopback address but the one that is named.
func openInspector(registryHost string, log *slog.Logger) (*registry.Inspector, error) {
	connections, err := reach.New(reach.Config{PlainHTTPHosts: []string{registryHost}, DenyPrivate: true, Logger: log})
	if err != nil {
		return nil, err
	}
	return registry.New(registry.Options{Reach: connections, Log: log})
}

// running is the provider of the demonstration.
type running struct {
	service     *server.Server
	data, probe string // addresses
}

func newProvider(dir string, inspector *registry.Inspector, log *slog.Logger) (running, error) {
	data, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at the start
	if err != nil {
		return running{}, err
	}
	probe, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at the start
	if err != nil {
		return running{}, errors.Join(err, data.Close())
	}
	metrics := prometheus.NewRegistry()
	service, err := server.New(server.Options{
		Inspector: inspector, Data: data, Probe: probe,
		CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"),
		ClientCAFiles: []string{filepath.Join(dir, "ca.crt")}, ClientNames: []string{callerName},
		// A demonstration on a busy machine rather answers late than in part.
		Deadline: 5 * time.Second, PinDeadline: 5 * time.Second,
		Registerer: metrics, Gatherer: metrics, Log: log,
	})
	if err != nil {
		return running{}, errors.Join(err, data.Close(), probe.Close())
	}
	return running{service: service, data: data.Addr().String(), probe: probe.Addr().String()}, nil
}

// show prints.
type show struct {
	out        io.Writer
	dir        string
	registry   string // host:port
	provider   running
	gatekeeper gatekeeper
}

func (s show) image(repository string) string { return s.registry + "/" + repository + ":1" }

func (s show) everything(ctx context.Context, once bool) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "A registry with a few images at %s, the provider at https://%s.\n\n", s.registry, s.provider.data)
	if err := s.answers(ctx, &text); err != nil {
		return err
	}
	if err := s.verdicts(ctx, &text); err != nil {
		return err
	}
	if once {
		fmt.Fprintln(&text, "Run it without --once to ask the provider yourself.")
	} else {
		s.commands(&text)
	}
	_, err := s.out.Write(text.Bytes())
	return err
}

// answers shows what the provider says of each image, in one request, as
// Gatekeeper would ask.
func (s show) answers(ctx context.Context, text io.Writer) error {
	what := map[string]string{}
	var keys []string
	for _, image := range []struct{ repository, what string }{
		{repositoryMulti, "index, with attestations"}, {repositoryAMD64, "index of one"}, {repositoryARM64, "single manifest"},
		{repositoryWindows, "index"}, {repositorySignature, "a signature"}, {repositoryMissing, "not in the registry"},
	} {
		key := s.image(image.repository)
		keys, what[key] = append(keys, key), image.what
	}
	status, response, err := s.gatekeeper.ask(ctx, server.PathPublic, keys)
	if err != nil {
		return fmt.Errorf("asking the provider: %w", err)
	}
	if status != http.StatusOK {
		return fmt.Errorf("asking the provider: status %d: %s", status, response.Response.SystemError)
	}
	fmt.Fprintln(text, "What the provider answers to Gatekeeper (POST "+server.PathPublic+"):")
	for _, item := range response.Response.Items {
		answer := "error  " + item.Error
		if item.Error == "" {
			value, err := json.Marshal(item.Value)
			if err != nil {
				return err
			}
			answer = "value  " + string(value)
		}
		fmt.Fprintf(text, "  %s (%s)\n    %s\n", item.Key, what[item.Key], answer)
	}
	if said := response.Response.SystemError; said != "" {
		fmt.Fprintf(text, "  systemError, what may pass and is not cached:\n    %s\n", said)
	}
	fmt.Fprintln(text)
	return nil
}

// verdicts shows what the constraint says of two pods.
func (s show) verdicts(ctx context.Context, text io.Writer) error {
	constraint, err := policies.Load("image-architectures")
	if err != nil {
		return err
	}
	fmt.Fprintln(text, "What the constraint image-architectures says of two pods:")
	for _, pod := range []struct{ name, init, main string }{
		{"web", repositoryMulti, repositoryAMD64},
		{"mixed", repositoryARM64, repositoryAMD64},
	} {
		messages, err := s.gatekeeper.verdict(ctx, constraint, map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"name": pod.name, "namespace": "default"},
			"spec": map[string]any{
				"initContainers": []any{map[string]any{"name": "init", "image": s.image(pod.init)}},
				"containers":     []any{map[string]any{"name": "main", "image": s.image(pod.main)}},
			},
		}, map[string]any{"onUndetermined": "deny"})
		if err != nil {
			return err
		}
		verdict := "allowed"
		if len(messages) > 0 {
			verdict = "denied"
		}
		fmt.Fprintf(text, "  pod %s (init %s, main %s): %s\n", pod.name, pod.init, pod.main, verdict)
		for _, message := range messages {
			fmt.Fprintf(text, "    %s\n", message)
		}
	}
	fmt.Fprintln(text)
	return nil
}

// commands shows what to copy and paste.
func (s show) commands(text io.Writer) {
	file := func(name string) string { return quote(filepath.Join(s.dir, name)) }
	base := "https://" + s.provider.data
	trusting := "curl -sS --cacert " + file("ca.crt")
	known := trusting + " --cert " + file("client.crt") + " --key " + file("client.key")
	post := func(path, image string) string {
		body := `{"apiVersion":"externaldata.gatekeeper.sh/v1beta1","kind":"ProviderRequest","request":{"keys":["` + image + `"]}}`
		return known + " -H 'Content-Type: application/json' -d " + quote(body) + " " + base + path
	}
	fmt.Fprintln(text, "Ask it yourself, while this runs:")
	for _, line := range []struct{ what, command string }{
		{"one image, for a person", known + " " + quote(base+server.PathImages+"?image="+s.image(repositoryMulti))},
		{"as Gatekeeper's validation asks", post(server.PathPublic, s.image(repositoryARM64))},
		{"as Gatekeeper's mutation asks, to pin a digest", post(server.PathPin, s.image(repositoryMulti))},
		{"without a certificate: refused, and still JSON", trusting + " " + quote(base+server.PathImages+"?image="+s.image(repositoryMulti))},
		{"metrics", "curl -sS http://" + s.provider.probe + server.PathMetrics},
	} {
		fmt.Fprintf(text, "\n  # %s\n  %s\n", line.what, line.command)
	}
	fmt.Fprintln(text, "\nCtrl-C ends it.")
}

// quote makes one word of the shell.
func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
