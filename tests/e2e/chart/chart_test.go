package chart_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

var (
	cluster *controlplane.Cluster
	images  *archkeeper.Registry
)

const gate = "archkeeper.io/architecture"

func TestMain(m *testing.M) {
	os.Exit(controlplane.Main(m, controlplane.Options{
		Gatekeeper: &controlplane.GatekeeperOptions{AuditInterval: -1},
		// The API server reaches the webhook through its Service.
		APIServerFlags: []string{"--enable-aggregator-routing=true"},
		// Nodes do not go away, however busy the machine is.
		ControllerManagerFlags: []string{"--controllers=*,-endpointslice-controller,-endpoints-controller", "--node-monitor-grace-period=30m"},
	}, func(ctx context.Context, c *controlplane.Cluster) error {
		cluster = c
		var err error
		if images, err = archkeeper.ServeImages(); err != nil {
			return err
		}
		for repository, platforms := range map[string][]string{
			"shop/multi:1": {"linux/amd64", "linux/arm64"}, "shop/arm:1": {"linux/arm64"}, "shop/arm:2": {"linux/arm64"}, "shop/amd:1": {"linux/amd64"},
		} {
			if _, err := images.Push(ctx, repository, platforms...); err != nil {
				return err
			}
		}
		return applyForeignCRDs(ctx, c)
	}))
}

// Every object of every file of values is one that the API server takes.
func TestTheAPIServerTakesEveryCombination(t *testing.T) {
	k := cluster.Test(t)
	files, err := filepath.Glob(filepath.Join(archkeeper.Chart(), "ci", "*-values.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("files of values: %v, %v", files, err)
	}
	odd := "9.a-release.with-dots." + strings.Repeat("x", 31)
	for _, file := range files {
		for _, release := range []string{"archkeeper", odd} {
			manifests, err := archkeeper.Helm(t.Context(), "template", release, archkeeper.Chart(), "--namespace", k.Namespace, "--values", file, "--kube-version", "1.36.3")
			if err != nil {
				t.Fatal(err)
			}
			if out, err := cluster.KubectlInput(t.Context(), manifests, "apply", "--server-side", "--dry-run=server", "-f", "-"); err != nil {
				t.Errorf("%s, release %s: %v\n%s", filepath.Base(file), release, err, out)
			}
		}
	}
}

const (
	release   = "archkeeper"
	namespace = "archkeeper-system"
)

func values() string {
	return fmt.Sprintf(`
admission: {enabled: true, timeoutSeconds: 10, budget: 3s}
policies: {schedulingGate: true, templates: [image-architectures]}
provider: {deadline: 3s, timeoutSeconds: 4, extraArgs: ["--shutdown-delay=0s"]}
registries: {plainHTTPHosts: [%q], secretNamespaces: [default]}
configuration: {placement: {holdDeadline: 10m}}
tls: {lifetimes: {authority: 30m, leaf: 1m, overlap: 6s}}
logging: {format: text}
`, images.Host)
}

// story is the installation while its chapters go on.
type story struct {
	*installation
	audit int64
}

// TestAnInstallation is one story, because what is installed is the cluster's.
func TestAnInstallation(t *testing.T) {
	i, err := render(t.Context(), cluster, release, namespace, values())
	if err != nil {
		t.Fatal(err)
	}
	s := &story{installation: i, audit: cluster.AuditSize()}
	t.Cleanup(s.end)
	if err := s.install(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, chapter := range []struct {
		name string
		run  func(*story, *testing.T)
	}{
		{"our own pods run under restricted pod security, ungated", (*story).ownPods},
		{"everybody is told whom to trust", (*story).trust},
		{"Gatekeeper asks the provider", (*story).constraint},
		{"a gated pod is freed, and the next one is placed at admission", (*story).placement},
		{"no request fails while authorities rotate", (*story).rotation},
		{"nobody was forbidden anything", (*story).forbidden},
		{"doctor finds nothing, and a right that is taken away", (*story).doctor},
		{"removal leaves no gated pod and nothing of ours", (*story).removal},
	} {
		if !t.Run(chapter.name, func(t *testing.T) { chapter.run(s, t) }) {
			t.FailNow()
		}
	}
}

func (s *story) ownPods(t *testing.T) {
	k := cluster.Test(t)
	k.Eventually("the Deployments have their pods", func(ctx context.Context) error {
		for _, component := range []string{"provider", "controllers"} {
			d, err := cluster.Client.AppsV1().Deployments(namespace).Get(ctx, release+"-"+component, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if d.Status.AvailableReplicas != 2 {
				return fmt.Errorf("%s has %d pods: %v", d.Name, d.Status.AvailableReplicas, d.Status.Conditions)
			}
		}
		return nil
	})
	pods, err := cluster.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 4 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
}

var providers = schema.GroupVersionResource{Group: "externaldata.gatekeeper.sh", Version: "v1beta1", Resource: "providers"}

// bundle is what Gatekeeper trusts the provider by.
func bundle(ctx context.Context, name string) ([]byte, error) {
	o, err := cluster.Dynamic.Resource(providers).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	text, _, _ := unstructured.NestedString(o.Object, "spec", "caBundle")
	return base64.StdEncoding.DecodeString(text)
}

func (s *story) authority(ctx context.Context) (*corev1.Secret, error) {
	return cluster.Client.CoreV1().Secrets(s.namespace).Get(ctx, release+"-ca", metav1.GetOptions{})
}

func (s *story) trust(t *testing.T) {
	k := cluster.Test(t)
	k.Eventually("Providers and webhook hold our authority", func(ctx context.Context) error {
		authority, err := s.authority(ctx)
		if err != nil {
			return err
		}
		for _, name := range []string{"archkeeper", "archkeeper-namespaced", "archkeeper-pin"} {
			if got, err := bundle(ctx, name); err != nil || !bytes.Contains(got, authority.Data["tls.crt"]) {
				return fmt.Errorf("provider %s: %v", name, err)
			}
		}
		hook, err := s.webhook(ctx)
		if err != nil {
			return err
		}
		if service := hook.ClientConfig.Service; !bytes.Contains(hook.ClientConfig.CABundle, authority.Data["tls.crt"]) || service.Path == nil || len(*service.Path) < 30 {
			return errors.New("the webhook has no authority, or no path")
		}
		return nil
	})
}

func (s *story) webhook(ctx context.Context) (admissionv1.MutatingWebhook, error) {
	c, err := cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "mutate.archkeeper.io", metav1.GetOptions{})
	if err != nil {
		return admissionv1.MutatingWebhook{}, err
	}
	return c.Webhooks[0], nil
}

func pod(name, image string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: c, image: %s}]}}`, name, image)
}

func (s *story) constraint(t *testing.T) {
	k := cluster.Test(t)
	if err := cluster.Gatekeeper.WaitTemplate(t.Context(), "imagearchitectures"); err != nil {
		t.Fatal(err)
	}
	k.ApplyForTest(fmt.Sprintf(`
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: ImageArchitectures
metadata: {name: %[1]s}
spec:
  match: {kinds: [{apiGroups: [""], kinds: [Pod]}], namespaces: [%[1]s]}
  parameters: {architectures: [amd64, arm64]}
`, k.Namespace))
	k.Eventually("an image for arm64 alone is refused", func(context.Context) error {
		_, err := k.TryCreatePod(pod("arm", images.Host+"/shop/arm:1"))
		if err == nil {
			k.Kubectl("delete", "pod", "arm", "-n", k.Namespace, "--wait=false")
			return errors.New("it was admitted")
		}
		if !strings.Contains(err.Error(), "amd64") {
			return err
		}
		return nil
	})
	k.CreatePod(pod("multi", images.Host+"/shop/multi:1"))
}

func gated(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == gate })
}

func (s *story) placement(t *testing.T) {
	k := cluster.Test(t)
	if err := cluster.Gatekeeper.WaitMutator(t.Context(), "Assign", "archkeeper-scheduling-gate"); err != nil {
		t.Fatal(err)
	}
	// The registry is slower than an admission waits.
	images.Delay(5 * time.Second)
	created := k.CreatePod(pod("first", images.Host+"/shop/arm:2"))
	if !gated(created) {
		t.Errorf("a pod whose image is not known was admitted with gates %v", created.Spec.SchedulingGates)
	}
	images.Delay(0)
	if node := k.WaitRunning("first").Spec.NodeName; !strings.HasPrefix(node, "arm64-") {
		t.Errorf("the freed pod runs on %s", node)
	}
	second := k.CreatePod(pod("second", images.Host+"/shop/arm:2"))
	if gated(second) || second.Spec.Affinity == nil {
		t.Errorf("a pod whose image is known was admitted with gates %v and affinity %v", second.Spec.SchedulingGates, second.Spec.Affinity)
	}
	if node := k.WaitRunning("second").Spec.NodeName; !strings.HasPrefix(node, "arm64-") {
		t.Errorf("the placed pod runs on %s", node)
	}
}

// doctor runs the command as an administrator.
func (s *story) doctor(t *testing.T) {
	k := cluster.Test(t)
	binary, err := archkeeper.Binary(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	type report struct {
		Findings []struct{ Check, Object, Message, Advice string }
	}
	look := func(want int) report {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), binary, "doctor", "-n", namespace, "-o", "json", "--kubeconfig", cluster.Kubeconfig)
		out, err := cmd.Output()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Fatalf("exit status %d, want %d: %v\n%s", got, want, err, out)
		}
		var r report
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return r
	}
	if r := look(0); len(r.Findings) != 0 {
		t.Errorf("findings in a healthy installation: %+v", r.Findings)
	}
	role := s.object("ClusterRoleBinding", "-provider")
	k.Kubectl("delete", "clusterrolebinding", role.GetName())
	may := func(want string) func(context.Context) error {
		return func(ctx context.Context) error {
			out, _ := cluster.Kubectl(ctx, "auth", "can-i", "create", "tokenreviews.authentication.k8s.io", "--as", "system:serviceaccount:"+namespace+":"+release+"-provider")
			if !strings.HasPrefix(out, want) {
				return errors.New(out)
			}
			return nil
		}
	}
	k.Eventually("the API server knows that the right is gone", may("no"))
	found := false
	for _, f := range look(2).Findings {
		found = found || (f.Check == "rbac" && strings.Contains(f.Message, "tokenreviews") && f.Advice != "")
	}
	if !found {
		t.Error("the right that was taken away is not among the findings")
	}
	if err := cluster.ApplyObjects(t.Context(), "", role); err != nil {
		t.Fatal(err)
	}
	k.Eventually("the right is back", may("yes"))
	s.audit = cluster.AuditSize() // what was forbidden meanwhile was meant to be
}

// load asks the provider 200 times a second, half as our controllers, over kept
// connections, and half as Gatekeeper, each over a new one.
type load struct {
	asked, failed atomic.Int64
	mu            sync.Mutex
	errors        []string
	stop          context.CancelFunc
	done          sync.WaitGroup
}

func (l *load) fail(err error) {
	l.failed.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.errors) < 10 {
		l.errors = append(l.errors, time.Now().Format("15:04:05.000 ")+err.Error())
	}
}

func (s *story) ask(t *testing.T, image string) *load {
	t.Helper()
	url := fmt.Sprintf("https://%s:%d", s.address, s.ports["provider 8443"])
	theirs := &gatekeeperCaller{url: url + "/v1/public", image: image}
	if err := theirs.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop}
	l.done.Go(func() { theirs.follow(ctx) })
	turns := make(chan bool, 400)
	for range 32 {
		// A connection of its own: a shared pool opens some in reserve, which the
		// server closes when no request comes within five seconds of the handshake,
		// and a POST that meets that moment fails.
		ours := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: s.asControllers()}}
		l.done.Go(func() {
			for asTheirs := range turns {
				l.asked.Add(1)
				if asTheirs {
					if err := theirs.ask(context.Background()); err != nil {
						l.fail(fmt.Errorf("as Gatekeeper: %w", err))
					}
					continue
				}
				if err := ask(context.Background(), ours, theirs.url, image); err != nil {
					l.fail(fmt.Errorf("as our controllers: %w", err))
				}
			}
		})
	}
	l.done.Go(func() {
		defer close(turns)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				turns <- true
				turns <- false
			}
		}
	})
	return l
}

// gatekeeperCaller trusts what the Provider object says, and shows a certificate
// of the authority that Gatekeeper's webhook configuration names: its pods get
// their new Secret a little later than that.
type gatekeeperCaller struct {
	url, image string
	mu         sync.Mutex
	config     *tls.Config
	authority  []byte
}

func (g *gatekeeperCaller) refresh(ctx context.Context) error {
	trusted, err := bundle(ctx, "archkeeper")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	hook, err := cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "gatekeeper-validating-webhook-configuration", metav1.GetOptions{})
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	next := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}
	if now := hook.Webhooks[0].ClientConfig.CABundle; !bytes.Equal(now, g.authority) && bytes.Equal(now, cluster.Gatekeeper.CA().CertPEM) {
		pair, err := cluster.Gatekeeper.ClientCertificate()
		if err != nil {
			return err
		}
		certificate, err := pair.TLS()
		if err != nil {
			return err
		}
		if g.config != nil {
			time.Sleep(time.Second) // the kubelet's part
		}
		next.Certificates, g.authority = []tls.Certificate{certificate}, now
	} else if g.config != nil {
		next.Certificates = g.config.Certificates
	}
	g.config = next
	return nil
}

func (g *gatekeeperCaller) follow(ctx context.Context) {
	for ctx.Err() == nil {
		_ = g.refresh(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (g *gatekeeperCaller) ask(ctx context.Context) error {
	g.mu.Lock()
	config := g.config
	g.mu.Unlock()
	transport := &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true}
	return ask(ctx, &http.Client{Transport: transport, Timeout: 10 * time.Second}, g.url, g.image)
}

// asControllers is the TLS of our controllers: what is mounted into their pod at
// the time of a handshake.
func (s *story) asControllers() *tls.Config {
	dir := filepath.Join(s.root("controllers"), "etc", "archkeeper", "tls")
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
			if err != nil { // the folder was swapped between the two
				pair, err = tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
			}
			return &pair, err
		},
		InsecureSkipVerify: true, // VerifyConnection does, by the file
		VerifyConnection: func(state tls.ConnectionState) error {
			text, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
			if err != nil {
				return err
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(text)
			_, err = state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: s.address})
			return err
		},
	}
}

// ask asks about one image that is known.
func ask(ctx context.Context, client *http.Client, url, image string) error {
	body := fmt.Sprintf(`{"apiVersion":"externaldata.gatekeeper.sh/v1beta1","kind":"ProviderRequest","request":{"keys":[%q]}}`, image)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return err
	}
	var response struct {
		Response struct {
			Items       []json.RawMessage `json:"items"`
			SystemError string            `json:"systemError"`
		} `json:"response"`
	}
	if err := json.Unmarshal(text, &response); err != nil || answer.StatusCode != http.StatusOK || len(response.Response.Items) != 1 || response.Response.SystemError != "" {
		return fmt.Errorf("status %d: %s", answer.StatusCode, text)
	}
	return nil
}

func (s *story) rotation(t *testing.T) {
	// Two overlaps and the time until the controllers look: more than a test
	// usually waits.
	wait := func(what string, condition func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := controlplane.WaitFor(ctx, what, condition); err != nil {
			t.Fatal(err)
		}
	}
	l := s.ask(t, images.Host+"/shop/multi:1")
	defer l.stop()
	rotateOurs := func() func(context.Context) error {
		before, err := s.authority(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"archkeeper.io/rotate":%q}}}`, time.Now())
		if _, err := cluster.Client.CoreV1().Secrets(namespace).Patch(t.Context(), before.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context) error {
			now, err := s.authority(ctx)
			switch {
			case err != nil:
				return err
			case bytes.Equal(now.Data["tls.crt"], before.Data["tls.crt"]):
				return errors.New("the old authority still signs")
			case len(now.Data["old.crt"]) > 0:
				return errors.New("the old authority is still trusted")
			}
			return nil
		}
	}
	wait("our authority is another one", rotateOurs())
	if err := cluster.Gatekeeper.RotateCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := rotateOurs()
	if err := cluster.Gatekeeper.RotateCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait("our authority is another one again", done)
	l.stop()
	l.done.Wait()
	t.Logf("%d requests, %d failed", l.asked.Load(), l.failed.Load())
	if l.failed.Load() > 0 {
		t.Errorf("%d of %d requests failed:\n%s", l.failed.Load(), l.asked.Load(), strings.Join(l.errors, "\n"))
	}
	if l.asked.Load() < 1000 {
		t.Errorf("%d requests were made in all: that shows little", l.asked.Load())
	}
	// And Gatekeeper itself still gets its answers.
	s.constraint(t)
}

func (s *story) forbidden(t *testing.T) {
	events, err := cluster.Audit(s.audit, func(e *auditv1.Event) bool {
		return strings.HasPrefix(e.User.Username, "system:serviceaccount:"+s.namespace+":") && e.ResponseStatus != nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(events) == 0 {
		t.Fatal("the audit log has no request of ours")
	}
	said := map[string]bool{}
	for _, e := range events {
		line := fmt.Sprintf("%s: %s %s", e.User.Username, e.Verb, e.RequestURI)
		if e.ResponseStatus.Code == http.StatusForbidden && !said[line] {
			said[line] = true
			t.Errorf("forbidden: %s", line)
		}
	}
}

func (s *story) removal(t *testing.T) {
	const many = 200
	k := cluster.Test(t)
	if err := images.Down(); err != nil {
		t.Fatal(err)
	}
	var creating sync.WaitGroup
	turns := make(chan int)
	for range 8 {
		creating.Go(func() {
			for n := range turns {
				if _, err := k.TryCreatePod(pod(fmt.Sprintf("held-%d", n), images.Host+"/shop/unheard-of:1")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := range many {
		turns <- n
	}
	close(turns)
	creating.Wait()
	count := func(ctx context.Context) int {
		pods, err := cluster.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range pods.Items {
			if gated(&pods.Items[i]) {
				n++
			}
		}
		return n
	}
	if n := count(t.Context()); n != many {
		t.Fatalf("%d pods are gated, want %d", n, many)
	}
	out, err := s.runHook(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out, "/held-"); n != many {
		t.Errorf("the hook says that it freed %d pods, want %d", n, many)
	}
	s.forbidden(t)
	if err := s.deleteObjects(t.Context(), s.objects); err != nil {
		t.Fatal(err)
	}
	s.end()
	if n := count(t.Context()); n != 0 {
		t.Errorf("%d pods are still gated", n)
	}
	created := k.CreatePod(pod("after", images.Host+"/shop/unheard-of:1"))
	if gated(created) {
		t.Error("a new pod is gated")
	}
	// What else there is in our namespace, and everywhere under our labels.
	if err := cluster.Client.DiscoveryV1().EndpointSlices(namespace).Delete(t.Context(), s.providerName()+"-here", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	k.Eventually("nothing of ours is left", func(ctx context.Context) error {
		left, err := s.left(ctx)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("%d objects: %v", len(left), left)
		}
		return nil
	})
}

// left lists what is in our namespace but for what every namespace has, and
// cluster-scoped objects that carry our name or label.
func (s *story) left(ctx context.Context) ([]string, error) {
	lists, err := cluster.Client.Discovery().ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Kind == "Event" {
				continue
			}
			objects, err := cluster.Dynamic.Resource(gv.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Name, err)
			}
			for _, o := range objects.Items {
				ours := o.GetLabels()["app.kubernetes.io/part-of"] == "archkeeper" || o.GetLabels()["app.kubernetes.io/managed-by"] == "archkeeper"
				if r.Namespaced {
					everywhere := o.GetName() == "kube-root-ca.crt" || o.GetName() == "default"
					ours = ours || (o.GetNamespace() == namespace && !everywhere)
				} else {
					ours = ours || (strings.HasPrefix(o.GetName(), release) && o.GetName() != namespace)
				}
				if ours {
					left = append(left, r.Kind+" "+o.GetNamespace()+"/"+o.GetName())
				}
			}
		}
	}
	return left, nil
}
