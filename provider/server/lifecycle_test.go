package server_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/provider/throwaway"
)

// Told to end, the server first says that it is not ready and goes on, then
// takes no more, and answers what it has begun.
func TestNothingInFlightIsLost(t *testing.T) {
	const flying = 20
	release, begun := make(chan struct{}), atomic.Int64{}
	w := start(t, func(_ *world, o *server.Options) {
		o.DrainDelay = time.Minute
		o.Deadline = 20 * time.Second
		o.Inspector = inspectorFunc(func(ctx context.Context, q provider.Query) provider.Answer {
			if strings.Contains(q.Image, "held") {
				begun.Add(1)
				<-release
			}
			return shelf(ctx, q)
		})
	})
	client := w.gatekeeperClient()
	statuses := make(chan reply, flying)
	for range flying {
		go func() { statuses <- w.do(client, "POST", w.data+server.PathPublic, request("r/held:1")) }()
	}
	w.eventually("all have begun", func() bool { return begun.Load() == flying })
	w.stop()
	ready := func() int {
		resp := must(http.Get(w.probe + server.PathReady))
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	w.eventually("it is not ready", func() bool { return ready() == http.StatusServiceUnavailable })
	during := w.do(w.gatekeeperClient(), "POST", w.data+server.PathPublic, request("r/a:1"))
	if during.StatusCode != 200 || !during.closes {
		t.Errorf("during the delay: status %d, header %v", during.StatusCode, during.Header)
	}
	w.stepping = true // through the delay
	w.eventually("new connections are refused", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.data, "https://"))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	if got := ready(); got != http.StatusServiceUnavailable {
		t.Errorf("readiness while draining: status %d", got)
	}
	close(release)
	for range flying {
		if got := <-statuses; got.StatusCode != 200 || len(got.Response.Items) != 1 {
			t.Errorf("status %d: %s", got.StatusCode, got.text)
		}
	}
	if err := <-w.ended; err != nil {
		t.Errorf("the drain: %v", err)
	}
}

// What does not end in time does not keep the process.
func TestADrainIsBounded(t *testing.T) {
	begun := make(chan struct{})
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	w := start(t, func(_ *world, o *server.Options) {
		o.Deadline = time.Hour
		o.DrainTimeout = 50 * time.Millisecond
		o.Inspector = inspectorFunc(func(ctx context.Context, q provider.Query) provider.Answer {
			close(begun)
			<-forever
			return provider.Answer{Image: q.Image}
		})
	})
	go func() {
		req := must(http.NewRequestWithContext(context.Background(), "POST", w.data+server.PathPublic, strings.NewReader(request("a"))))
		if resp, err := w.gatekeeperClient().Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-begun
	w.stop()
	if err := <-w.ended; err == nil || !strings.Contains(err.Error(), "in flight") {
		t.Errorf("error %v", err)
	}
}

// A port that fails ends the server with its error instead of leaving half of it.
func TestAFailedListenerEndsTheServer(t *testing.T) {
	var data net.Listener
	w := start(t, func(_ *world, o *server.Options) { data = o.Data })
	_ = data.Close()
	if err := <-w.ended; err == nil || !strings.Contains(err.Error(), "serving") {
		t.Errorf("error %v", err)
	}
}

func TestTheAdmissionPort(t *testing.T) {
	const token = "0123456789abcdef-secret"
	w := start(t, func(w *world, o *server.Options) {
		o.Admission = must(net.Listen("tcp", "127.0.0.1:0"))
		w.write("token", []byte(token+"\n"))
		o.AdmissionTokenFile = w.path("token")
		o.AdmissionHandler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			body := string(must(io.ReadAll(r.Body)))
			if body == `"panic"` {
				panic("as asked")
			}
			rw.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(rw, `{"kind":"admitted"}`)
		})
	})
	nobody := w.caller(nil, throwaway.Request{})
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		says               string
	}{
		"the right token":          {"POST", server.PathAdmit + token, "{}", 200, "admitted"},
		"a parameter behind it":    {"POST", server.PathAdmit + token + "?timeout=3s", "{}", 200, "admitted"},
		"another token":            {"POST", server.PathAdmit + "0123456789abcdef-secreT", "{}", 404, "no such path"},
		"a part of the token":      {"POST", server.PathAdmit + "0123456789abcdef", "{}", 404, "no such path"},
		"no token":                 {"POST", server.PathAdmit, "{}", 404, "no such path"},
		"something behind it":      {"POST", server.PathAdmit + token + "/x", "{}", 404, "no such path"},
		"another method":           {"GET", server.PathAdmit + token, "", 405, "takes POST"},
		"a guess with that method": {"GET", server.PathAdmit + "0123456789abcdef-secreT", "", 404, "no such path"},
		"a data path":              {"POST", server.PathPublic, request("a"), 404, "no such path"},
		"a handler that panics":    {"POST", server.PathAdmit + token, `"panic"`, 500, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.do(nobody, tc.method, w.admission+tc.path, tc.body)
			if got.StatusCode != tc.status || !strings.Contains(got.text, tc.says) {
				t.Errorf("status %d: %s", got.StatusCode, got.text)
			}
		})
	}
	w.write("token", []byte("another-token-of-16\n"))
	w.reload()
	w.eventually("the new token", func() bool {
		return w.do(nobody, "POST", w.admission+server.PathAdmit+"another-token-of-16", "{}").StatusCode == 200
	})
	if got := w.do(nobody, "POST", w.admission+server.PathAdmit+token, "{}"); got.StatusCode != 404 {
		t.Errorf("the old token: status %d", got.StatusCode)
	}
	w.write("token", []byte("short"))
	w.reload()
	w.eventually("the bad token is counted", func() bool {
		return w.metric(`archkeeper_provider_reload_failures_total{file="admission-token"}`) == "1"
	})
	if got := w.do(nobody, "POST", w.admission+server.PathAdmit+"another-token-of-16", "{}"); got.StatusCode != 200 {
		t.Errorf("beside a bad file: status %d", got.StatusCode)
	}
	if strings.Contains(w.log.String(), token) {
		t.Error("the token is in the log")
	}
}
