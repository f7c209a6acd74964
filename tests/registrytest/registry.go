// Package registrytest is a container registry that misbehaves on demand.
//
// Registry is one real HTTP server. It serves what is put into it as the OCI
// distribution specification says, keeps a log of every request, and has a
// behaviour for each route that a test wants to be broken. Cases is the table
// of everything that registries are known to do wrong, each with the answer
// that is right all the same; docs/registries.md is made from it.
package registrytest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// Request is one request that a Registry was sent.
type Request struct {
	Method, Path, Query string
	// Authorization header, as it was sent.
	Authorization string
	Header        http.Header
	// Status that it was answered with; 0 when the connection was cut.
	Status int
}

// Manifest tells whether the request was for a manifest or index.
func (r Request) Manifest() bool { return strings.Contains(r.Path, "/manifests/") }

// Blob tells whether the request was for a blob.
func (r Request) Blob() bool { return strings.Contains(r.Path, "/blobs/") }

// Token tells whether the request was for a token.
func (r Request) Token() bool { return strings.HasPrefix(r.Path, "/token") }

// Behaviour answers a request in the place of the registry. next is what it
// would have done.
type Behaviour func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Registry is a registry at an address of its own.
type Registry struct {
	server *httptest.Server

	mu         sync.Mutex
	manifests  map[string]content // "repository@digest" and "repository:tag"
	blobs      map[string][]byte  // "repository@digest"
	log        []Request
	behaviours []route
	delay      time.Duration
	auth       func(http.ResponseWriter, *http.Request) bool
	token      http.HandlerFunc
	stop       chan struct{}
}

type content struct {
	mediaType string
	body      []byte
	digest    string
}

type route struct {
	method, path string
	do           Behaviour
}

// New starts a registry on plain HTTP.
func New() *Registry {
	r := newRegistry()
	r.server.Start()
	return r
}

// NewTLS starts a registry on HTTPS, with the certificate of httptest.
func NewTLS() *Registry {
	r := newRegistry()
	r.server.EnableHTTP2 = true
	r.server.StartTLS()
	return r
}

func newRegistry() *Registry {
	r := &Registry{manifests: map[string]content{}, blobs: map[string][]byte{}, stop: make(chan struct{})}
	r.server = httptest.NewUnstartedServer(r)
	r.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return r
}

// Close stops the registry, requests that it stalls included.
func (r *Registry) Close() {
	r.mu.Lock()
	select {
	case <-r.stop:
	default:
		close(r.stop)
	}
	r.mu.Unlock()
	r.server.CloseClientConnections()
	r.server.Close()
}

// Host gives host:port.
func (r *Registry) Host() string { return r.server.Listener.Addr().String() }

// URL gives scheme://host:port.
func (r *Registry) URL() string { return r.server.URL }

// Server gives the server, for its certificate.
func (r *Registry) Server() *httptest.Server { return r.server }

// Put stores a manifest or index under a tag, and under its digest, which it
// gives. An empty tag stores it by digest alone.
func (r *Registry) Put(repository, tag, mediaType string, body []byte) (digest string) {
	digest = Digest(body)
	r.PutAs(repository, tag, mediaType, digest, body)
	return digest
}

// PutAs is Put with a digest of the caller's choice, true or not.
func (r *Registry) PutAs(repository, tag, mediaType, digest string, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := content{mediaType: mediaType, body: body, digest: digest}
	r.manifests[repository+"@"+digest] = c
	if tag != "" {
		r.manifests[repository+":"+tag] = c
	}
}

// Delete removes a manifest, by tag or by digest.
func (r *Registry) Delete(repository, reference string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.manifests, key(repository, reference))
}

// PutBlob stores a blob and gives its digest.
func (r *Registry) PutBlob(repository string, body []byte) (digest string) {
	digest = Digest(body)
	r.PutBlobAs(repository, digest, body)
	return digest
}

// PutBlobAs is PutBlob with a digest of the caller's choice, true or not.
func (r *Registry) PutBlobAs(repository, digest string, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blobs[repository+"@"+digest] = body
}

// Behave makes requests of a method ("" for any) whose path begins with path
// behave. The last one that fits is used.
func (r *Registry) Behave(method, path string, do Behaviour) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behaviours = append(r.behaviours, route{method, path, do})
}

// Misbehave ends all behaviours when given none.
func (r *Registry) Misbehave(routes ...func(*Registry)) {
	r.mu.Lock()
	r.behaviours = nil
	r.mu.Unlock()
	for _, each := range routes {
		each(r)
	}
}

// Delay makes every request take at least d.
func (r *Registry) Delay(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = d
}

// Requests gives the log so far.
func (r *Registry) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Request(nil), r.log...)
}

// Forget empties the log.
func (r *Registry) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = nil
}

// Count counts the requests in the log that fit.
func (r *Registry) Count(fits func(Request) bool) int {
	n := 0
	for _, request := range r.Requests() {
		if fits(request) {
			n++
		}
	}
	return n
}

// Lines gives the log as "METHOD path status" lines.
func (r *Registry) Lines() []string {
	var lines []string
	for _, q := range r.Requests() {
		lines = append(lines, fmt.Sprintf("%s %s %d", q.Method, q.Path, q.Status))
	}
	return lines
}

// ServeHTTP logs a request and answers it.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	n := len(r.log)
	r.log = append(r.log, Request{
		Method: q.Method, Path: q.URL.Path, Query: q.URL.RawQuery, Authorization: q.Header.Get("Authorization"), Header: q.Header.Clone(),
	})
	var do Behaviour
	for _, b := range r.behaviours {
		if (b.method == "" || b.method == q.Method) && strings.HasPrefix(q.URL.Path, b.path) {
			do = b.do
		}
	}
	delay := r.delay
	r.mu.Unlock()
	if delay > 0 {
		r.wait(q, delay)
	}
	recorded := &recorder{ResponseWriter: w}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if n < len(r.log) {
			r.log[n].Status = recorded.status
		}
	}()
	if do != nil {
		do(recorded, q, http.HandlerFunc(r.serve))
		return
	}
	r.serve(recorded, q)
}

func (r *Registry) wait(q *http.Request, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-q.Context().Done():
	case <-r.stop:
	}
}

// serve is what a good registry does.
func (r *Registry) serve(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	auth, token := r.auth, r.token
	r.mu.Unlock()
	if token != nil && strings.HasPrefix(q.URL.Path, "/token") {
		token(w, q)
		return
	}
	if auth != nil && !auth(w, q) {
		return
	}
	path, ok := strings.CutPrefix(q.URL.Path, "/v2/")
	if !ok {
		http.NotFound(w, q)
		return
	}
	if path == "" {
		w.WriteHeader(http.StatusOK)
		return
	}
	if repository, reference, ok := cut(path, "/manifests/"); ok {
		r.mu.Lock()
		c, found := r.manifests[key(repository, reference)]
		r.mu.Unlock()
		if !found {
			Error(w, http.StatusNotFound, "MANIFEST_UNKNOWN")
			return
		}
		w.Header().Set("Docker-Content-Digest", c.digest)
		write(w, q, c.mediaType, c.body)
		return
	}
	if repository, digest, ok := cut(path, "/blobs/"); ok {
		r.mu.Lock()
		body, found := r.blobs[repository+"@"+digest]
		r.mu.Unlock()
		if !found {
			Error(w, http.StatusNotFound, "BLOB_UNKNOWN")
			return
		}
		w.Header().Set("Docker-Content-Digest", digest)
		write(w, q, "application/octet-stream", body)
		return
	}
	http.NotFound(w, q)
}

func write(w http.ResponseWriter, q *http.Request, mediaType string, body []byte) {
	if mediaType != "" {
		w.Header().Set("Content-Type", mediaType)
	} else {
		w.Header()["Content-Type"] = nil
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(http.StatusOK)
	if q.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have gone
	}
}

// Error answers as the specification says errors are.
func Error(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []map[string]string{{"code": code, "message": code}}})
}

func cut(path, infix string) (repository, reference string, ok bool) {
	at := strings.LastIndex(path, infix)
	if at < 0 {
		return "", "", false
	}
	return path[:at], path[at+len(infix):], true
}

func key(repository, reference string) string {
	if strings.Contains(reference, ":") {
		return repository + "@" + reference
	}
	return repository + ":" + reference
}

// Digest gives the sha256 digest of a body.
func Digest(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// recorder notes the status that was sent.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the status.
func (w *recorder) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Write notes the status of an answer that did not set one.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush sends what was written so far.
func (w *recorder) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }
