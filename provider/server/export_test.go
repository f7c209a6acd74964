package server

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/provider"
)

// DataHandlerForTest is the data port's handler without its connections.
func DataHandlerForTest(tb testing.TB, inspector provider.Inspector) http.Handler {
	tb.Helper()
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{o: Options{Inspector: inspector}.withDefaults(), metrics: m, guard: guard{open: true}}
	return s.dataHandler()
}

// ServeForTest posts a body.
func ServeForTest(handler http.Handler, path string, body []byte) (int, []byte) {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
	return recorder.Code, recorder.Body.Bytes()
}

// RememberedTokens counts the tokens that are not checked again for now.
func RememberedTokens(t *Tokens) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.good)
}
