package probes_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/internal/probes"
)

func TestPort(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "archkeeper_test_value"}, func() float64 { return 7 }))
	all := probes.Options{
		Gatherer: registry, LogLevel: new(slog.LevelVar), Pprof: true,
		Unready: probes.Conditions{
			"b": func() error { return errors.New("not yet") }, "a": func() error { return errors.New("nor this") }, "c": func() error { return nil },
		}.Unmet,
		More: map[string]http.Handler{"/report": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "mine") })},
	}
	const near, far = "127.0.0.1:1", "10.0.0.1:1"
	for sentence, tc := range map[string]struct {
		options              probes.Options
		method, path, remote string
		body                 string
		status               int
		says                 string
	}{
		"health is shown":                           {probes.Options{}, "GET", "/healthz", far, "", 200, "ok"},
		"a service without conditions is ready":     {probes.Options{}, "GET", "/readyz", far, "", 200, "ok"},
		"every unmet condition is named":            {all, "GET", "/readyz", far, "", 503, "a: nor this\nb: not yet\n"},
		"metrics are shown":                         {all, "GET", "/metrics", far, "", 200, "archkeeper_test_value 7"},
		"without a gatherer there are no metrics":   {probes.Options{}, "GET", "/metrics", far, "", 404, ""},
		"the log level is shown":                    {all, "GET", "/loglevel", far, "", 200, `{"level":"info"}`},
		"another machine may not set the log level": {all, "PUT", "/loglevel", far, "debug", 403, "from the machine itself"},
		"a log level that is none is refused":       {all, "PUT", "/loglevel", near, "loud", 400, "one of"},
		"without a level there is none to show":     {probes.Options{}, "GET", "/loglevel", near, "", 404, ""},
		"profiles are shown when asked for":         {all, "GET", "/debug/pprof/heap?debug=1", far, "", 200, "heap profile"},
		"profiles are not shown otherwise":          {probes.Options{}, "GET", "/debug/pprof/heap", near, "", 404, ""},
		"further paths are served":                  {all, "GET", "/report", far, "", 200, "mine"},
		"further paths are read only":               {all, "POST", "/report", far, "", 405, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			request := httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body))
			request.RemoteAddr = tc.remote
			answer := httptest.NewRecorder()
			probes.Handler(tc.options).ServeHTTP(answer, request)
			if answer.Code != tc.status || !strings.Contains(answer.Body.String(), tc.says) {
				t.Errorf("status %d, body %q", answer.Code, answer.Body)
			}
		})
	}
}

func TestServeSetsTheLogLevelAndEnds(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	level := new(slog.LevelVar)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- probes.Serve(ctx, listener, probes.Options{LogLevel: level}) }()
	request, err := http.NewRequest(http.MethodPut, "http://"+listener.Addr().String()+"/loglevel", strings.NewReader("debug\n"))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK || level.Level() != slog.LevelDebug {
		t.Errorf("status %d, level %s", answer.StatusCode, level.Level())
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", listener.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

func TestServeSaysWhyItCannotServe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	if err := probes.Serve(t.Context(), listener, probes.Options{}); err == nil || !strings.Contains(err.Error(), listener.Addr().String()) {
		t.Errorf("error %v", err)
	}
}
