package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/wire"
)

// The paths of the data port.
const (
	PathPublic     = "/v1/public"
	PathNamespaced = "/v1/namespaced"
	PathPin        = "/v1/pin"
	PathImages     = "/v1/images"
	PathGeneration = "/v1/generation" // with Options.Generation
)

// grace is how long after the deadline the inspector may still take to hand
// over what it has. It has no reason to take any of it.
const grace = 100 * time.Millisecond

// dataHandler routes the data port.
func (s *Server) dataHandler() http.Handler {
	router := mux.NewRouter().SkipClean(true) // or else //v1/public is a redirect with an HTML body
	router.NotFoundHandler = s.metrics.counted(pathOther, s.recovered(http.HandlerFunc(s.notFound)))
	type route struct {
		path    string
		methods []string
		handler http.Handler
	}
	routes := []route{
		{PathPublic, []string{http.MethodPost}, s.keys(PathPublic, s.o.Deadline, plainKey, platformsValue, true)},
		{PathNamespaced, []string{http.MethodPost}, s.keys(PathNamespaced, s.o.Deadline, structuredKey, platformsValue, true)},
		// In mutation a systemError voids the whole batch and nothing is
		// cached, so that every failure is its own image's alone.
		{PathPin, []string{http.MethodPost}, s.keys(PathPin, s.o.PinDeadline, pinKey(s.o.HasTagMirrors), pinnedValue, false)},
		{PathImages, []string{http.MethodGet, http.MethodHead}, http.HandlerFunc(s.serveImage)},
	}
	if s.o.Generation != nil {
		routes = append(routes, route{PathGeneration, []string{http.MethodGet}, http.HandlerFunc(s.serveGeneration)})
	}
	for _, route := range routes {
		router.Handle(route.path, s.metrics.counted(route.path, s.recovered(s.proven(route.path, route.methods, route.handler))))
	}
	return router
}

// proven lets known callers with the right method through.
func (s *Server) proven(path string, methods []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		allowed := false
		for _, method := range methods {
			allowed = allowed || r.Method == method
		}
		if !allowed {
			s.refuseMethod(w, methods...)
			return
		}
		last, refused := s.guard.admit(r, path)
		if last {
			w.Header().Set("Connection", "close")
		}
		if refused != nil {
			s.metrics.refusals.WithLabelValues(refused.reason).Inc()
			s.o.Log.Debug("refused a caller", "path", path, "remote", r.RemoteAddr, "status", refused.status, "reason", refused.text)
			if refused.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="archkeeper"`)
			}
			writeFault(w, refused.status, apiVersionBeta, refused.text)
			return
		}
		s.closeWhenDraining(w)
		next.ServeHTTP(w, r)
	})
}

// keys answers a ProviderRequest: read makes a step of each key, value an item
// value of each known answer, and hold is explained at assemble.
func (s *Server) keys(path string, deadline time.Duration, read reader, value func(provider.Answer) (any, *provider.Error), hold bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), deadline)
		defer cancel()
		body, bad := readBody(r)
		if bad != nil {
			writeFault(w, bad.status, apiVersionBeta, bad.text)
			return
		}
		sent, version, bad := parseRequest(body)
		if bad != nil {
			writeFault(w, bad.status, version, bad.text)
			return
		}
		asked := distinct(sent)
		s.metrics.keys.WithLabelValues(path).Add(float64(len(asked)))
		fresh := wantsFresh(r)
		steps := make([]step, len(asked))
		queries := make([]provider.Query, 0, len(asked))
		for i, key := range asked {
			steps[i] = read(key)
			if !steps[i].settled {
				steps[i].query.Revalidate = fresh
				queries = append(queries, steps[i].query)
			}
		}
		status := http.StatusOK
		answers, err := s.inspect(ctx, queries)
		if err != nil {
			status = http.StatusInternalServerError
			answers = failed(queries, err)
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.metrics.deadlineHits.WithLabelValues(path).Inc()
		}
		// A panic is an outage, not a verdict on any image: it is always told
		// as a systemError.
		out := assemble(asked, steps, answers, value, hold || err != nil)
		for _, class := range out.items {
			s.metrics.keyError(path, class, formItem)
		}
		for _, class := range out.held {
			s.metrics.keyError(path, class, formUndetermined)
		}
		writeResponse(w, status, version, out.response)
	})
}

// inspect asks the inspector and comes back at the deadline whatever happens.
// The error is a fault of ours that leaves every query without an answer.
func (s *Server) inspect(ctx context.Context, queries []provider.Query) ([]provider.Answer, *provider.Error) {
	if len(queries) == 0 {
		return nil, nil
	}
	type result struct {
		answers []provider.Answer
		err     *provider.Error
	}
	done := make(chan result, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				s.panicked(p)
				done <- result{err: provider.Errorf(provider.ClassInternal, "the provider failed on this request; its log says more")}
			}
		}()
		answers := s.o.Inspector.Inspect(ctx, queries)
		if len(answers) != len(queries) {
			s.o.Log.Error("the inspector gave another number of answers", "queries", len(queries), "answers", len(answers))
			done <- result{err: provider.Errorf(provider.ClassInternal, "the provider failed on this request; its log says more")}
			return
		}
		done <- result{answers: answers}
	}()
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(grace, func() { close(late) })
	})
	defer stop()
	select {
	case r := <-done:
		return r.answers, r.err
	case <-late:
		s.o.Log.Error("the inspector outlived its deadline", "queries", len(queries), "grace", grace)
		return failed(queries, provider.Errorf(provider.ClassTimeout, "the deadline came before the answer")), nil
	}
}

// serveImage answers a person about one image, as `archkeeper inspect` does.
func (s *Server) serveImage(w http.ResponseWriter, r *http.Request) {
	images := r.URL.Query()["image"]
	if len(images) != 1 || images[0] == "" {
		writeFault(w, http.StatusBadRequest, apiVersionBeta, "ask "+PathImages+"?image=REFERENCE, with one reference, percent-encoded")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.o.Deadline)
	defer cancel()
	s.metrics.keys.WithLabelValues(PathImages).Inc()
	queries := []provider.Query{{Image: images[0], Revalidate: wantsFresh(r)}}
	answers, err := s.inspect(ctx, queries)
	status := http.StatusOK
	if err != nil {
		status = http.StatusInternalServerError
		answers = failed(queries, err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.metrics.deadlineHits.WithLabelValues(PathImages).Inc()
	}
	if answers[0].Err != nil {
		s.metrics.keyError(PathImages, answers[0].Err.Class, formItem)
	}
	writeJSON(w, status, wire.FromAnswer(answers[0]))
}

// wantsFresh tells whether the caller asks for answers that the registry
// confirms now (RFC 9111, section 5.2.1.4). Gatekeeper never does.
func wantsFresh(r *http.Request) bool {
	for _, header := range r.Header.Values("Cache-Control") {
		for directive := range strings.SplitSeq(header, ",") {
			if strings.EqualFold(strings.TrimSpace(directive), "no-cache") {
				return true
			}
		}
	}
	return false
}

func (s *Server) notFound(w http.ResponseWriter, _ *http.Request) {
	writeFault(w, http.StatusNotFound, apiVersionBeta, "there is no such path")
}

func (s *Server) refuseMethod(w http.ResponseWriter, methods ...string) {
	w.Header().Set("Allow", strings.Join(methods, ", "))
	writeFault(w, http.StatusMethodNotAllowed, apiVersionBeta, "this path takes "+strings.Join(methods, ", "))
}

// closeWhenDraining ends a connection with the answer of its last request, so
// that the next one goes to another replica.
func (s *Server) closeWhenDraining(w http.ResponseWriter) {
	if s.draining.Load() {
		w.Header().Set("Connection", "close")
	}
}

// recovered turns a panic into an answer.
func (s *Server) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			s.panicked(p)
			if status, ok := w.(*statusWriter); ok && status.code != 0 {
				panic(http.ErrAbortHandler) //nolint:forbidigo // half of an answer is sent: this alone cuts it off, so that nobody takes it for a whole one
			}
			writeFault(w, http.StatusInternalServerError, apiVersionBeta, "the provider failed on this request; its log says more")
		}()
		next.ServeHTTP(w, r)
	})
}

func (s *Server) panicked(p any) {
	s.metrics.panics.Inc()
	s.o.Log.Error("recovered from a panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}
