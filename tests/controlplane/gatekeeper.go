package controlplane

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// GatekeeperNamespace is where Gatekeeper's objects live, and GatekeeperSAN is
// the name in its certificate, by which a provider knows it.
const (
	GatekeeperNamespace = "gatekeeper-system"
	GatekeeperSAN       = "gatekeeper-webhook-service.gatekeeper-system.svc"
)

// gatekeeperPod stands for the process. Gatekeeper makes it the owner of what it
// reports about each template, constraint and mutator; without an owner that is
// there, the garbage collector deletes the reports as fast as they are written.
// Nothing schedules it: it goes away with no node.
const gatekeeperPod = `
apiVersion: v1
kind: Pod
metadata: {name: gatekeeper, namespace: gatekeeper-system, labels: {gatekeeper.sh/system: "yes"}}
spec:
  serviceAccountName: gatekeeper-admin
  automountServiceAccountToken: false
  schedulingGates: [{name: tests.archkeeper.io/runs-as-a-process}]
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: manager
      image: openpolicyagent/gatekeeper:` + gatekeeperVersion + `
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`

// GatekeeperOptions say how Gatekeeper differs from what it ships as.
type GatekeeperOptions struct {
	// AuditInterval is 10 s when zero; a negative one switches audit off.
	AuditInterval time.Duration
	// MutatingTimeout and ValidatingTimeout of the webhooks, whole seconds; 5 s
	// and 10 s when zero, so that a busy machine changes no result. Gatekeeper
	// ships 1 s and 3 s.
	MutatingTimeout, ValidatingTimeout time.Duration
	// FailurePolicy of both webhooks; Ignore when empty, as shipped.
	FailurePolicy string
	// ReinvocationPolicy of the mutating webhook; Never when empty, as shipped.
	ReinvocationPolicy string
	// ResponseCacheTTL of external data; 3 min when zero, as shipped.
	ResponseCacheTTL time.Duration
	// Flags after those of the harness. They win.
	Flags []string
}

// Gatekeeper is the one that runs for a cluster: all operations in one process.
type Gatekeeper struct {
	// CAFile holds, as PEM, the authority of Gatekeeper's own certificate: what
	// a provider is given as --client-ca. RotateCA replaces it.
	CAFile string
	// Process of the manager.
	Process *Process

	cluster *Cluster
	certDir string
	port    int

	mu sync.Mutex
	ca *CA
}

func (c *Cluster) startGatekeeper(ctx context.Context) error {
	options := c.options.Gatekeeper
	if options == nil {
		return nil
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	g := &Gatekeeper{
		cluster: c,
		CAFile:  c.path("pki", "gatekeeper-ca.crt"),
		certDir: c.path("pki", "gatekeeper"),
		port:    ports[0],
	}
	objects, err := gatekeeperObjects(ctx)
	if err != nil {
		return err
	}
	if err := g.newCertificate(); err != nil {
		return err
	}
	if err := c.ApplyObjects(ctx, "", objects.installed...); err != nil {
		return err
	}
	if err := g.publish(ctx); err != nil {
		return err
	}
	if err := c.Apply(ctx, "", gatekeeperPod); err != nil {
		return err
	}
	kubeconfig, err := c.KubeconfigForServiceAccount(ctx, GatekeeperNamespace, "gatekeeper-admin")
	if err != nil {
		return err
	}
	if err := os.Mkdir(c.path("gatekeeper-audit"), 0o755); err != nil {
		return fmt.Errorf("making the audit cache's folder: %w", err)
	}
	health := "127.0.0.1:" + strconv.Itoa(ports[1])
	g.Process, err = c.Run(ctx, Program{
		Name: "gatekeeper",
		Path: c.Bin.Path("gatekeeper"),
		Args: append([]string{
			"--kubeconfig=" + kubeconfig, "--logtostderr", "--disable-cert-rotation",
			"--cert-dir=" + g.certDir, "--host=127.0.0.1", "--port=" + strconv.Itoa(g.port),
			"--health-addr=" + health, "--prometheus-port=" + strconv.Itoa(ports[2]),
			"--exempt-namespace=" + GatekeeperNamespace, "--api-cache-dir=" + c.path("gatekeeper-audit"),
			"--audit-interval=" + strconv.Itoa(options.auditSeconds()), "--disable-opa-builtin={http.send}",
			"--external-data-provider-response-cache-ttl=" + options.responseCacheTTL().String(),
			"--shutdown-delay=0",
		}, options.Flags...),
		Env: []string{
			"POD_NAMESPACE=" + GatekeeperNamespace, "NAMESPACE=" + GatekeeperNamespace,
			"POD_NAME=gatekeeper", "CONTAINER_NAME=manager",
		},
		Ready: func(ctx context.Context) error { return getOK(ctx, "http://"+health+"/readyz") },
	})
	if err != nil {
		return err
	}
	if err := options.adjust(objects.webhooks); err != nil {
		return err
	}
	if err := g.pointWebhooks(objects.webhooks); err != nil {
		return err
	}
	c.Gatekeeper = g
	return c.ApplyObjects(ctx, "", objects.webhooks...)
}

func (o *GatekeeperOptions) auditSeconds() int {
	switch {
	case o.AuditInterval < 0:
		return 0
	case o.AuditInterval == 0:
		return 10
	}
	return int(o.AuditInterval.Seconds())
}

func (o *GatekeeperOptions) responseCacheTTL() time.Duration {
	if o.ResponseCacheTTL == 0 {
		return 3 * time.Minute
	}
	return o.ResponseCacheTTL
}

// adjust sets what the options say on the shipped webhook configurations.
func (o *GatekeeperOptions) adjust(configurations []*unstructured.Unstructured) error {
	return eachWebhook(configurations, func(configuration *unstructured.Unstructured, webhook map[string]any) error {
		mutating := configuration.GetKind() == "MutatingWebhookConfiguration"
		timeout := o.ValidatingTimeout
		if mutating {
			timeout = o.MutatingTimeout
		}
		seconds := int64(timeout.Seconds())
		if seconds == 0 {
			seconds = 10
			if mutating {
				seconds = 5
			}
		}
		webhook["timeoutSeconds"] = seconds
		if o.FailurePolicy != "" && webhook["name"] != "check-ignore-label.gatekeeper.sh" {
			webhook["failurePolicy"] = o.FailurePolicy
		}
		if mutating && o.ReinvocationPolicy != "" {
			webhook["reinvocationPolicy"] = o.ReinvocationPolicy
		}
		return nil
	})
}

// gatekeeperManifests are Gatekeeper's own, in the two groups in which they
// are applied.
type gatekeeperManifests struct{ installed, webhooks []*unstructured.Unstructured }

// gatekeeperObjects reads deploy/gatekeeper.yaml of Gatekeeper's module:
// without the Deployments, whose place our process takes, and what belongs to
// them.
func gatekeeperObjects(ctx context.Context) (gatekeeperManifests, error) {
	module, err := ModuleDir(ctx, "github.com/open-policy-agent/gatekeeper/v3")
	if err != nil {
		return gatekeeperManifests{}, err
	}
	all, err := DecodeFile(filepath.Join(module, "deploy", "gatekeeper.yaml"))
	if err != nil {
		return gatekeeperManifests{}, err
	}
	var m gatekeeperManifests
	for _, object := range all {
		switch object.GetKind() {
		case "Deployment", "PodDisruptionBudget", "ResourceQuota", "Secret":
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			m.webhooks = append(m.webhooks, object)
		default:
			m.installed = append(m.installed, object)
		}
	}
	return m, nil
}

// newCertificate makes an authority and a leaf, and puts the leaf where the
// manager looks.
func (g *Gatekeeper) newCertificate() error {
	ca, err := NewCA("gatekeeper-ca")
	if err != nil {
		return err
	}
	leaf, err := ca.Issue(Leaf{
		CommonName: GatekeeperSAN, DNSNames: []string{GatekeeperSAN}, IPs: []net.IP{loopback},
		Server: true, Client: true,
	})
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.ca = ca
	g.mu.Unlock()
	return errors.Join(WriteFile(g.CAFile, ca.CertPEM), WriteFile(filepath.Join(g.certDir, "ca.crt"), ca.CertPEM), leaf.Write(g.certDir))
}

// publish puts the certificate into the secret in which Gatekeeper keeps it.
func (g *Gatekeeper) publish(ctx context.Context) error {
	secret := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": "gatekeeper-webhook-server-cert", "namespace": GatekeeperNamespace},
	}}
	data := map[string]any{}
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		content, err := os.ReadFile(filepath.Join(g.certDir, name))
		if err != nil {
			return fmt.Errorf("reading Gatekeeper's certificate: %w", err)
		}
		data[name] = base64.StdEncoding.EncodeToString(content)
	}
	secret.Object["data"] = data
	return g.cluster.ApplyObjects(ctx, "", secret)
}

func (g *Gatekeeper) pointWebhooks(configurations []*unstructured.Unstructured) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(g.port))
	return PointWebhooks(configurations, GatekeeperNamespace, "gatekeeper-webhook-service", address, g.ca.CertPEM)
}

// CA is the authority of Gatekeeper's certificate.
func (g *Gatekeeper) CA() *CA {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ca
}

// ClientCertificate returns a new certificate as Gatekeeper presents it to
// providers, for tests that call a provider in its place.
func (g *Gatekeeper) ClientCertificate() (KeyPair, error) {
	return g.CA().Issue(Leaf{CommonName: GatekeeperSAN, DNSNames: []string{GatekeeperSAN}, Client: true})
}

// RotateCA gives Gatekeeper a new authority and certificate, as its own
// rotation does: secret, mounted files, the webhooks' caBundle and CAFile
// change, and no process is restarted. The API server takes a moment to see the
// new caBundle.
func (g *Gatekeeper) RotateCA(ctx context.Context) error {
	if err := g.newCertificate(); err != nil {
		return err
	}
	if err := g.publish(ctx); err != nil {
		return err
	}
	err := WaitFor(ctx, "Gatekeeper serves its new certificate", func(ctx context.Context) error {
		dialer := tls.Dialer{Config: clientTLS(g.CA())}
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(g.port)))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return err
	}
	objects, err := gatekeeperObjects(ctx)
	if err != nil {
		return err
	}
	if err := g.cluster.options.Gatekeeper.adjust(objects.webhooks); err != nil {
		return err
	}
	if err := g.pointWebhooks(objects.webhooks); err != nil {
		return err
	}
	return g.cluster.ApplyObjects(ctx, "", objects.webhooks...)
}

// Restart ends the manager and starts it again, with empty caches, and waits
// until it is ready.
func (g *Gatekeeper) Restart(ctx context.Context) error {
	if err := g.Process.Kill(); err != nil && !errors.Is(err, errNotRunning) {
		return err
	}
	return g.Process.Start(ctx)
}

// WaitMutator waits until a mutator (Assign, AssignMetadata, ModifySet,
// AssignImage) is in force: it returns Gatekeeper's error when it is refused.
func (g *Gatekeeper) WaitMutator(ctx context.Context, kind, name string) error {
	return WaitFor(ctx, kind+" "+name+" is in force", func(ctx context.Context) error {
		object, err := g.cluster.Get(ctx, kind+".v1.mutations.gatekeeper.sh", "", name)
		if err != nil {
			return err
		}
		return enforced(object)
	})
}

// WaitConstraint waits until a constraint is enforced. kind is the one that
// its template declares.
func (g *Gatekeeper) WaitConstraint(ctx context.Context, kind, name string) error {
	return WaitFor(ctx, "constraint "+kind+" "+name+" is enforced", func(ctx context.Context) error {
		object, err := g.cluster.Get(ctx, kind+".v1beta1.constraints.gatekeeper.sh", "", name)
		if err != nil {
			return err
		}
		return enforced(object)
	})
}

// WaitTemplate waits until a constraint template is compiled; it returns
// Gatekeeper's error when it cannot be.
func (g *Gatekeeper) WaitTemplate(ctx context.Context, name string) error {
	return WaitFor(ctx, "template "+name+" is compiled", func(ctx context.Context) error {
		object, err := g.cluster.Get(ctx, "ConstraintTemplate.v1.templates.gatekeeper.sh", "", name)
		if err != nil {
			return err
		}
		if err := podErrors(object); err != nil {
			return err
		}
		if created, _, _ := unstructured.NestedBool(object.Object, "status", "created"); !created {
			return errors.New("its status says nothing yet")
		}
		return nil
	})
}

// enforced reads status.byPod: one entry a Gatekeeper process, which must have
// seen the object's present generation.
func enforced(object *unstructured.Unstructured) error {
	if err := podErrors(object); err != nil {
		return err
	}
	pods, _, err := unstructured.NestedSlice(object.Object, "status", "byPod")
	if err != nil {
		return fmt.Errorf("reading status.byPod: %w", err)
	}
	for _, item := range pods {
		pod, ok := item.(map[string]any)
		if !ok {
			continue
		}
		if seen, ok := pod["observedGeneration"].(int64); ok && seen >= object.GetGeneration() && pod["enforced"] == true {
			return nil
		}
	}
	return fmt.Errorf("generation %d is not enforced: status.byPod is %v", object.GetGeneration(), pods)
}

// podErrors is final: what Gatekeeper cannot compile will not compile later.
func podErrors(object *unstructured.Unstructured) error {
	pods, _, err := unstructured.NestedSlice(object.Object, "status", "byPod")
	if err != nil {
		return fmt.Errorf("reading status.byPod: %w", err)
	}
	for _, item := range pods {
		pod, ok := item.(map[string]any)
		if !ok {
			continue
		}
		seen, _ := pod["observedGeneration"].(int64)
		problems, _ := pod["errors"].([]any)
		if len(problems) > 0 && seen >= object.GetGeneration() {
			return Final(fmt.Errorf("Gatekeeper refuses it: %v", problems))
		}
	}
	return nil
}

// PointWebhooks rewrites webhook configurations that call a service inside the
// cluster, where nothing routes: those for namespace/service call
// https://ADDRESS/PATH instead and trust caPEM.
func PointWebhooks(configurations []*unstructured.Unstructured, namespace, service, address string, caPEM []byte) error {
	return eachWebhook(configurations, func(_ *unstructured.Unstructured, webhook map[string]any) error {
		config, ok := webhook["clientConfig"].(map[string]any)
		if !ok {
			return errors.New("a webhook has no clientConfig")
		}
		target, ok := config["service"].(map[string]any)
		if !ok || target["name"] != service || target["namespace"] != namespace {
			return nil
		}
		path, _ := target["path"].(string)
		webhook["clientConfig"] = map[string]any{
			"url":      "https://" + address + path,
			"caBundle": base64.StdEncoding.EncodeToString(caPEM),
		}
		return nil
	})
}

func eachWebhook(configurations []*unstructured.Unstructured, do func(configuration *unstructured.Unstructured, webhook map[string]any) error) error {
	for _, configuration := range configurations {
		webhooks, ok := configuration.Object["webhooks"].([]any)
		if !ok {
			continue
		}
		for _, item := range webhooks {
			webhook, ok := item.(map[string]any)
			if !ok {
				return fmt.Errorf("%s has a webhook that is no object", describe(configuration))
			}
			if err := do(configuration, webhook); err != nil {
				return fmt.Errorf("%s: %w", describe(configuration), err)
			}
		}
	}
	return nil
}

// getOK asks url once and expects status 200.
func getOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if err != nil {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return fmt.Errorf("%s answers %s: %s", url, answer.Status, body)
}
