package credentials

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// apiServer speaks as much of the Kubernetes API as reading secrets and service
// accounts takes: get, list and watch, field selectors, and RBAC by verb.
type apiServer struct {
	t   *testing.T
	url string

	mu       sync.Mutex
	changed  *sync.Cond
	version  int
	objects  map[string]object // by "resource/namespace/name"
	events   []event
	requests []string // "verb resource namespace/name?selector"
	denied   map[string]bool
	stalled  chan struct{} // while not nil, GETs wait for it
	closed   bool
}

type object struct {
	resource, namespace, name, kind string // kind is the secret's type
	value                           any
}

type event struct {
	version int
	kind    string
	object  object
}

func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{t: t, objects: map[string]object{}, denied: map[string]bool{}}
	a.changed = sync.NewCond(&a.mu)
	server := httptest.NewServer(a)
	a.url = server.URL
	t.Cleanup(func() {
		a.mu.Lock()
		a.closed = true
		a.changed.Broadcast()
		a.mu.Unlock()
		server.CloseClientConnections()
		server.Close()
	})
	return a
}

func (a *apiServer) client() corev1client.CoreV1Interface {
	a.t.Helper()
	client, err := corev1client.NewForConfig(&rest.Config{Host: a.url, QPS: -1})
	if err != nil {
		a.t.Fatal(err)
	}
	return client
}

// secret stores a secret of a type with one key.
func (a *apiServer) secret(namespace, name string, kind corev1.SecretType, key, data string) {
	a.put(object{"secrets", namespace, name, string(kind), &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"note": "large"}},
		Type:       kind, Data: map[string][]byte{key: []byte(data), "other": []byte("other")},
	}})
}

func (a *apiServer) pullSecret(namespace, name, user string) {
	a.secret(namespace, name, corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, config(user))
}

func (a *apiServer) account(namespace, name string, secrets ...string) {
	account := &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
	}
	for _, secret := range secrets {
		account.ImagePullSecrets = append(account.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	a.put(object{"serviceaccounts", namespace, name, "", account})
}

func (a *apiServer) put(o object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	meta, ok := o.value.(metav1.ObjectMetaAccessor)
	if !ok {
		a.t.Fatalf("%T has no metadata", o.value)
	}
	meta.GetObjectMeta().SetResourceVersion(strconv.Itoa(a.version))
	key := o.resource + "/" + o.namespace + "/" + o.name
	kind := "ADDED"
	if _, ok := a.objects[key]; ok {
		kind = "MODIFIED"
	}
	a.objects[key] = o
	a.events = append(a.events, event{a.version, kind, o})
	a.changed.Broadcast()
}

func (a *apiServer) remove(resource, namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := resource + "/" + namespace + "/" + name
	a.version++
	a.events = append(a.events, event{a.version, "DELETED", a.objects[key]})
	delete(a.objects, key)
	a.changed.Broadcast()
}

func (a *apiServer) deny(verbs ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.denied)
	for _, verb := range verbs {
		a.denied[verb] = true
	}
}

// stall makes GETs wait until the function that it gives is called.
func (a *apiServer) stall() (release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	stalled := make(chan struct{})
	a.stalled = stalled
	return func() {
		a.mu.Lock()
		a.stalled = nil
		a.mu.Unlock()
		close(stalled)
	}
}

// asked counts the requests that begin so.
func (a *apiServer) asked(prefix string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, request := range a.requests {
		if strings.HasPrefix(request, prefix) {
			n++
		}
	}
	return n
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	namespace, name := "", ""
	if parts[0] == "namespaces" && len(parts) >= 3 {
		namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	if len(parts) == 2 {
		name = parts[1]
	}
	query := r.URL.Query()
	verb := "list"
	switch {
	case name != "":
		verb = "get"
	case query.Get("watch") != "":
		verb = "watch"
	}
	selector, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		a.fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	a.mu.Lock()
	a.requests = append(a.requests, verb+" "+resource+" "+namespace+"/"+name+"?"+query.Get("fieldSelector"))
	denied, stalled := a.denied[verb+" "+resource] || a.denied[verb], a.stalled
	a.mu.Unlock()
	if denied {
		a.fail(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	}
	selects := func(o object) bool {
		return o.resource == resource && (namespace == "" || namespace == o.namespace) &&
			selector.Matches(fields.Set{"type": o.kind, "metadata.name": o.name, "metadata.namespace": o.namespace})
	}
	switch verb {
	case "get":
		if stalled != nil {
			select {
			case <-stalled:
			case <-r.Context().Done():
			}
		}
		a.mu.Lock()
		o, ok := a.objects[resource+"/"+namespace+"/"+name]
		a.mu.Unlock()
		if !ok {
			a.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		a.write(w, o.value)
	case "list":
		a.mu.Lock()
		items := []any{}
		for _, o := range a.objects {
			if selects(o) {
				items = append(items, o.value)
			}
		}
		version := strconv.Itoa(a.version)
		a.mu.Unlock()
		kind := "SecretList"
		if resource == "serviceaccounts" {
			kind = "ServiceAccountList"
		}
		a.write(w, map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"resourceVersion": version}, "items": items})
	case "watch":
		a.watch(w, r, query.Get("resourceVersion"), query.Get("sendInitialEvents") == "true", selects)
	}
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, from string, initial bool, selects func(object) bool) {
	w.Header().Set("Content-Type", "application/json")
	send := func(kind string, value any) {
		if json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": value}) == nil {
			_ = http.NewResponseController(w).Flush()
		}
	}
	go func() {
		<-r.Context().Done()
		a.mu.Lock()
		a.changed.Broadcast()
		a.mu.Unlock()
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	seen, _ := strconv.Atoi(from)
	if initial {
		example := "Secret"
		for _, o := range a.objects {
			if selects(o) {
				send("ADDED", o.value)
			}
		}
		if strings.Contains(r.URL.Path, "serviceaccounts") {
			example = "ServiceAccount"
		}
		seen = a.version
		send("BOOKMARK", map[string]any{"apiVersion": "v1", "kind": example, "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(a.version), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	for !a.closed && r.Context().Err() == nil {
		pending := slices.Clone(a.events)
		for _, e := range pending {
			if e.version > seen && selects(e.object) {
				send(e.kind, e.object.value)
			}
		}
		seen = max(seen, a.version)
		a.changed.Wait()
	}
}

func (a *apiServer) write(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

func (a *apiServer) fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: reason, Code: int32(code), Message: "said by the API server: hunter2",
	})
}
