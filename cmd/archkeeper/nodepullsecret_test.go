package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// kubeconfigFor writes a kubeconfig of an API server that only the test knows.
func kubeconfigFor(t *testing.T, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// One secret opens every image, of whatever namespace; when it comes later, the
// generation tells.
func TestTheNodesPullSecretIsForEveryImage(t *testing.T) {
	images := registrytest.New()
	defer images.Close()
	images.PutImage("app", "1", "linux/arm64")
	images.Basic(registrytest.Account{User: "node", Password: "secret"})
	var there atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/namespaces/openshift-config/secrets/pull-secret" || !there.Load() {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		config := fmt.Sprintf(`{"auths":{%q:{"username":"node","password":"secret"}}}`, images.Host())
		fmt.Fprintf(w, `{"kind":"Secret","apiVersion":"v1","metadata":{"namespace":"openshift-config","name":"pull-secret","resourceVersion":"2"},"type":"kubernetes.io/dockerconfigjson","data":{".dockerconfigjson":%q}}`,
			base64.StdEncoding.EncodeToString([]byte(config)))
	}))
	defer api.Close()
	s := serve(t, "--secrets=none", "--node-pull-secret=openshift-config/pull-secret", "--kubeconfig", kubeconfigFor(t, api.URL), "--plain-http-host", images.Host())
	ask := func() string {
		_, text := s.post(s.known, "https://"+s.data+"/v1/public",
			`{"apiVersion":"externaldata.gatekeeper.sh/v1beta1","kind":"ProviderRequest","request":{"keys":["`+images.Host()+`/app:1"]}}`)
		return text
	}
	generation := func() string {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.data+"/v1/generation", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := s.known.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text := make([]byte, 200)
		n, _ := answer.Body.Read(text)
		return string(text[:n])
	}
	if text := ask(); !strings.Contains(text, "unauthorized") {
		t.Errorf("without the secret: %s", text)
	}
	before := generation()
	if !strings.Contains(before, `"changes":0`) {
		t.Errorf("generation %s", before)
	}
	there.Store(true)
	if text := ask(); !strings.Contains(text, `"architectures":["arm64"]`) {
		t.Errorf("with the secret: %s", text)
	}
	if after := generation(); !strings.Contains(after, `"changes":1`) {
		t.Errorf("generation %s, then %s", before, after)
	}
	s.end()
	if strings.Contains(s.log.String(), `"secret"`) {
		t.Errorf("the log shows a password:\n%s", s.log)
	}
}
