// Package client asks the provider over HTTPS. It is a provider.Inspector, so
// that a controller needs neither credentials nor a way to registries, and its
// questions warm the cache from which admission is answered.
package client

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
	"net/url"
	"time"

	"github.com/open-policy-agent/frameworks/constraint/pkg/externaldata"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/reload"
	"github.com/archkeeper/archkeeper/provider/wire"
)

// Defaults and limits.
const (
	// DefaultTimeout of one request. The provider answers within its own
	// deadline, which is shorter.
	DefaultTimeout = 5 * time.Second
	// MaxBatch is how many keys go into one request; the provider takes 512.
	MaxBatch = 256

	maxBatchBytes = 512 << 10 // of keys in one request; the provider takes 1 MiB
	maxRequests   = 4         // of one Inspect at a time
	maxIdle       = 64        // connections kept: as many callers ask at the same time
	maxResponse   = 16 << 20  // bytes
)

// The provider's paths; package server serves them.
const (
	pathPublic     = "/v1/public"
	pathNamespaced = "/v1/namespaced"
)

// Options say where the provider is and how the two prove themselves. URL and
// CAFile are needed.
type Options struct {
	// URL of the provider's data port, such as
	// https://archkeeper-provider.archkeeper-system.svc:8443.
	URL string
	// CAFile is a PEM bundle of the authorities that sign the provider's
	// certificate. No other authority is trusted. This file and the others are
	// followed when they change.
	CAFile string
	// ServerName that the certificate must have; the URL's host when empty.
	ServerName string
	// CertFile and KeyFile are the client certificate; both empty for none.
	CertFile, KeyFile string
	// TokenFile holds a bearer token that is sent instead; empty for none.
	TokenFile string
	// Timeout of one request; DefaultTimeout when 0. The context's deadline
	// counts as well.
	Timeout time.Duration
	// Clock of the following of files and of Answer.Checked; nil for the real one.
	Clock clock.WithTicker
	// Log hears of files that became unusable; nil for none.
	Log *slog.Logger
}

// Client is a provider.Inspector. It asks once and retries nothing: whoever
// asks knows when to ask again.
//
// Answers that come from it have no CredentialSource, no Mirror and no
// Warnings: these do not travel.
type Client struct {
	base    *url.URL
	timeout time.Duration
	clock   clock.WithTicker
	http    *http.Client
	token   *reload.Value[string] // nil for none
	follow  []func(context.Context)
}

var _ provider.Inspector = (*Client)(nil)

// New reads the files. Its error names the one that is missing or broken.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Scheme != "https" || base.Host == "" || (base.Path != "" && base.Path != "/") {
		return nil, fmt.Errorf("provider URL %q is not https://HOST[:PORT]", o.URL)
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	base.Path = ""
	c := &Client{base: base, timeout: o.Timeout, clock: o.Clock}
	follow := reload.Options{Clock: o.Clock, Log: o.Log}
	if o.ServerName == "" {
		o.ServerName = base.Hostname()
	}
	config, err := c.tlsConfig(o, follow)
	if err != nil {
		return nil, err
	}
	if o.TokenFile != "" {
		c.token, err = reload.New([]string{o.TokenFile}, func(contents [][]byte) (string, error) {
			token := string(bytes.TrimSpace(contents[0]))
			if token == "" {
				return "", errors.New("no token")
			}
			return token, nil
		}, follow)
		if err != nil {
			return nil, fmt.Errorf("provider client's token: %w", err)
		}
		c.follow = append(c.follow, c.token.Run)
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:     config,
			DialContext:         (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			TLSHandshakeTimeout: 3 * time.Second,
			MaxIdleConnsPerHost: maxIdle,
			IdleConnTimeout:     90 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// tlsConfig trusts what CAFile holds at the time of a handshake.
func (c *Client) tlsConfig(o Options, follow reload.Options) (*tls.Config, error) {
	roots, err := reload.New([]string{o.CAFile}, func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(contents[0]) {
			return nil, errors.New("no PEM certificate found")
		}
		return pool, nil
	}, follow)
	if err != nil {
		return nil, fmt.Errorf("provider's authority: %w", err)
	}
	c.follow = append(c.follow, roots.Run)
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: o.ServerName,
		// A tls.Config cannot take new roots; VerifyConnection checks the same
		// things, the name included, with the present ones, on every handshake.
		InsecureSkipVerify: true, //nolint:gosec // G402: VerifyConnection verifies
		VerifyConnection: func(state tls.ConnectionState) error {
			intermediates := x509.NewCertPool()
			for _, certificate := range state.PeerCertificates[1:] {
				intermediates.AddCert(certificate)
			}
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
				DNSName: o.ServerName, Roots: roots.Get(), Intermediates: intermediates,
			})
			return err
		},
	}
	if o.CertFile == "" && o.KeyFile == "" {
		return config, nil
	}
	pair, err := reload.New([]string{o.CertFile, o.KeyFile}, func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		return &pair, err
	}, follow)
	if err != nil {
		return nil, fmt.Errorf("provider client's certificate: %w", err)
	}
	c.follow = append(c.follow, pair.Run)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Get(), nil }
	return config, nil
}

// Run follows the files until ctx ends.
func (c *Client) Run(ctx context.Context) {
	var all errgroup.Group
	for _, follow := range c.follow {
		all.Go(func() error { follow(ctx); return nil })
	}
	_ = all.Wait()
}

// Close gives up idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// kind is what must be the same in one request.
type kind struct {
	path  string
	fresh bool
}

// batch is one request: distinct keys, and which queries each answers.
type batch struct {
	kind
	keys    []string
	bytes   int
	queries map[string][]int // key to indices
}

// Inspect implements provider.Inspector. A provider that does not answer, or
// refuses us, is a passing failure of every image that was asked of it, and
// its message says that it is the provider's and not a registry's.
func (c *Client) Inspect(ctx context.Context, queries []provider.Query) []provider.Answer {
	answers := make([]provider.Answer, len(queries))
	requests := errgroup.Group{}
	requests.SetLimit(maxRequests)
	for _, b := range batches(queries, answers) {
		requests.Go(func() error {
			found := c.ask(ctx, b.kind, b.keys)
			for key, indices := range b.queries {
				for _, i := range indices {
					answers[i] = c.answer(queries[i].Image, key, found)
				}
			}
			return nil
		})
	}
	_ = requests.Wait()
	return answers
}

// batches divides queries into requests: each key once, in the order of the
// queries. A malformed image is answered at once.
func batches(queries []provider.Query, answers []provider.Answer) []*batch {
	var all []*batch
	open := map[kind]*batch{}
	where := map[kind]map[string]*batch{}
	for i, query := range queries {
		var malformed *provider.Error
		if _, err := imageref.Parse(query.Image); errors.As(err, &malformed) {
			answers[i] = provider.Answer{Image: query.Image, Err: malformed}
			continue
		}
		k, key := kind{path: pathPublic, fresh: query.Revalidate}, query.Image
		if !query.Scope.Anonymous() {
			k.path, key = pathNamespaced, wire.KeyFromQuery(query).String()
		}
		if where[k] == nil {
			where[k] = map[string]*batch{}
		}
		if b := where[k][key]; b != nil {
			b.queries[key] = append(b.queries[key], i)
			continue
		}
		b := open[k]
		if b == nil || len(b.keys) >= MaxBatch || (len(b.keys) > 0 && b.bytes+len(key) > maxBatchBytes) {
			b = &batch{kind: k, queries: map[string][]int{}}
			open[k] = b
			all = append(all, b)
		}
		b.keys = append(b.keys, key)
		b.bytes += len(key)
		b.queries[key] = []int{i}
		where[k][key] = b
	}
	return all
}

// found is what one request brought.
type found struct {
	values map[string]json.RawMessage
	errors map[string]*provider.Error
	// rest is why a key that is in neither has no answer.
	rest *provider.Error
}

// response is externaldata.ProviderResponse with values left as they are.
type response struct {
	Kind     externaldata.ProviderKind `json:"kind"`
	Response struct {
		Items []struct {
			Key   string          `json:"key"`
			Value json.RawMessage `json:"value"`
			Error string          `json:"error"`
		} `json:"items"`
		SystemError string `json:"systemError"`
	} `json:"response"`
}

// ask sends one request.
func (c *Client) ask(ctx context.Context, k kind, keys []string) found {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	status, body, err := c.post(ctx, k, keys)
	switch {
	case err != nil && ctx.Err() != nil:
		return found{rest: provider.Errorf(provider.ClassTimeout, "the provider at %s did not answer in time", c.base.Host)}
	case err != nil:
		return found{rest: provider.Errorf(provider.ClassUnreachable, "asking the provider at %s: %w", c.base.Host, err)}
	}
	var r response
	if err := json.Unmarshal(body, &r); err != nil || r.Kind != externaldata.ProviderResponseKind {
		return found{rest: provider.Errorf(provider.ClassInternal, "the provider at %s answered with status %d and no ProviderResponse", c.base.Host, status)}
	}
	f := found{values: map[string]json.RawMessage{}, errors: map[string]*provider.Error{}}
	for _, item := range r.Response.Items {
		if item.Error != "" {
			f.errors[item.Key] = wire.ParseItemError(item.Error)
			continue
		}
		f.values[item.Key] = item.Value
	}
	said, err := wire.ParseSystemError(r.Response.SystemError)
	var fault *provider.Error
	switch {
	case errors.As(err, &fault):
		f.rest = provider.Errorf(provider.ClassInternal, "status %d: %s", status, fault.Message)
	case err != nil:
		f.rest = provider.Errorf(provider.ClassInternal, "status %d: %w", status, err)
	}
	for _, entry := range said.Undetermined {
		f.errors[entry.Key] = entry.Error()
	}
	return f
}

func (c *Client) post(ctx context.Context, k kind, keys []string) (status int, body []byte, err error) {
	text, err := json.Marshal(externaldata.NewProviderRequest(keys))
	if err != nil {
		return 0, nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.String()+k.path, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if k.fresh {
		request.Header.Set("Cache-Control", "no-cache")
	}
	c.sign(request)
	reply, err := c.http.Do(request)
	if err != nil {
		return 0, nil, withoutURL(err)
	}
	defer reply.Body.Close()
	body, err = io.ReadAll(io.LimitReader(reply.Body, maxResponse+1))
	if err == nil && len(body) > maxResponse {
		err = fmt.Errorf("the answer is larger than %d bytes", maxResponse)
	}
	return reply.StatusCode, body, err
}

// sign says who asks.
func (c *Client) sign(request *http.Request) {
	request.Header.Set("User-Agent", "archkeeper")
	if c.token != nil {
		request.Header.Set("Authorization", "Bearer "+c.token.Get())
	}
}

// withoutURL leaves out method and URL, which are ours.
func withoutURL(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

// answer gives what was found for a key, as the answer for an image.
func (c *Client) answer(image, key string, f found) provider.Answer {
	answer := provider.Answer{Image: image}
	if ref, err := imageref.Parse(image); err == nil {
		answer.Reference, answer.Digest = ref.String(), ref.Digest()
	}
	if value, ok := f.values[key]; ok {
		known, err := wire.ParseValue(image, value)
		if err == nil {
			known.Reference, known.Checked = answer.Reference, c.clock.Now()
			return known
		}
		var fault *provider.Error
		if !errors.As(err, &fault) {
			fault = provider.Errorf(provider.ClassInternal, "the provider's value cannot be read: %w", err)
		}
		answer.Err = fault
		return answer
	}
	switch {
	case f.errors[key] != nil:
		answer.Err = f.errors[key]
	case f.rest != nil:
		answer.Err = f.rest
	default:
		answer.Err = provider.Errorf(provider.ClassInternal, "the provider gave no answer for %s", provider.Quote(image))
	}
	return answer
}
