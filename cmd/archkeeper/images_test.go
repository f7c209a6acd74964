package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// apiServer serves lists by path, in pages of one object, and refuses the rest.
func apiServer(t *testing.T, lists map[string][]string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		objects, ok := lists[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`)
			return
		}
		page, next := 0, ""
		if _, err := fmt.Sscan(r.URL.Query().Get("continue"), &page); err != nil {
			page = 0
		}
		if page+1 < len(objects) {
			next = fmt.Sprint(page + 1)
		}
		fmt.Fprintf(w, `{"kind":"List","apiVersion":"v1","metadata":{"continue":%q},"items":[%s]}`, next, objects[page])
	}))
	t.Cleanup(server.Close)
	return server
}

func TestImagesOfACluster(t *testing.T) {
	r := shelf(t)
	pod := func(name, image string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"shop","uid":%q,"ownerReferences":[{"apiVersion":"apps/v1","kind":"StatefulSet","name":"db","uid":"s","controller":true}]},`+
			`"spec":{"containers":[{"name":"c","image":%q}]}}`, name, name, r.Host()+image)
	}
	server := apiServer(t, map[string][]string{
		"/api/v1/pods":                 {pod("db-0", "/both:v1"), pod("db-1", "/both:v1"), pod("db-2", "/amd64:v1")},
		"/api/v1/namespaces/shop/pods": {pod("db-0", "/both:v1")},
		"/apis/apps/v1/statefulsets":   {`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"db","namespace":"shop","uid":"s"},"spec":{"template":{"spec":{"containers":[{"name":"c","image":"` + r.Host() + `/both:v1"}]}}}}`},
	})
	kubeconfig := writeFile(t, t.TempDir(), "kubeconfig", `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"`+server.URL+`"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`)
	for sentence, row := range map[string]struct {
		args []string
		want []string // lines of output
	}{
		"all namespaces, every page": {[]string{"-A"}, []string{"both:v1   StatefulSet/shop/db   linux/amd64,linux/arm64", "amd64:v1   StatefulSet/shop/db   linux/amd64"}},
		"one namespace":              {[]string{"-n", "shop"}, []string{"both:v1   StatefulSet/shop/db   linux/amd64,linux/arm64"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			home(t)
			stdout, stderr, status := command(t, "", append([]string{"images", "--kubeconfig", kubeconfig, "--plain-http-host", r.Host()}, row.args...)...)
			lines := strings.Split(strings.TrimSpace(stdout), "\n")
			if status != 0 || len(lines) != 1+len(row.want) {
				t.Fatalf("status %d\n%s%s", status, stdout, stderr)
			}
			for i, want := range row.want {
				if got := strings.Join(strings.Fields(lines[i+1]), "   "); got != r.Host()+"/"+want {
					t.Errorf("line %q, want %q", got, want)
				}
			}
			if !strings.Contains(stderr, "warning: CronJob is left out") || strings.Contains(stderr, "warning: Pod") {
				t.Errorf("what may not be listed is named: %s", stderr)
			}
		})
	}
	home(t)
	empty := apiServer(t, nil)
	t.Setenv("KUBECONFIG", writeFile(t, t.TempDir(), "kubeconfig", `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"`+empty.URL+`"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`))
	if stdout, stderr, status := command(t, "", "images", "-A"); status != 1 || stdout != "" || !strings.Contains(stderr, "list pods") {
		t.Errorf("pods that may not be listed: status %d, %s%s", status, stdout, stderr)
	}
}
