package server_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/open-policy-agent/frameworks/constraint/pkg/externaldata"

	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// BenchmarkWarm asks over TLS, one after the other on one connection, with the
// real inspector, by turns with a bare net/http server that reads the same
// request with encoding/json and answers a constant of the same size. It prints
// how many times as long ours takes.
//
//	go test -run '^$' -bench Warm ./provider/server
func BenchmarkWarm(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			w, keys := stocked(b, n)
			constant := []byte(w.ask(server.PathPublic, keys...).text)
			bare := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				var request externaldata.ProviderRequest
				if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
					http.Error(rw, err.Error(), http.StatusBadRequest)
					return
				}
				rw.Header().Set("Content-Type", "application/json")
				_, _ = rw.Write(constant)
			}))
			bare.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
			bare.StartTLS()
			defer bare.Close()
			body := []byte(request(keys...))
			ours, theirs := w.gatekeeperClient(), bare.Client()
			ask(b, ours, w.data+server.PathPublic, body) // makes both warm
			ask(b, theirs, bare.URL, body)
			var took [2]time.Duration
			for b.Loop() {
				took[0] += ask(b, ours, w.data+server.PathPublic, body)
				took[1] += ask(b, theirs, bare.URL, body)
			}
			b.ReportMetric(took[0].Seconds()*1e6/float64(b.N), "us/request")
			b.ReportMetric(took[1].Seconds()*1e6/float64(b.N), "us/bare")
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x-bare")
		})
	}
}

// stocked is a server in front of a registry with n images.
func stocked(b *testing.B, n int) (w *world, keys []string) {
	b.Helper()
	images := registrytest.New()
	for i := range n {
		images.PutIndex("app", fmt.Sprint(i), "linux/amd64", "linux/arm64")
		keys = append(keys, fmt.Sprintf("%s/app:%d", images.Host(), i))
	}
	return start(b, func(_ *world, o *server.Options) { withRegistries(b, o, nil, images) }), keys
}

// ask sends one request and gives how long it took until the answer was read.
func ask(b *testing.B, client *http.Client, url string, body []byte) time.Duration {
	b.Helper()
	started := time.Now()
	response, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		b.Fatal(response.Status)
	}
	return time.Since(started)
}
