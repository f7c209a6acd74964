package doctor

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/archkeeper/archkeeper/controllers/config"
)

// Options say where to look.
type Options struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Namespace of the installation, and Gatekeeper's.
	Namespace, GatekeeperNamespace string
	Now                            time.Time
}

const (
	callTimeout = 10 * time.Second
	podPage     = 500
	// maxGated bounds the gated pods that are remembered.
	maxGated = 10000
	ours     = "app.kubernetes.io/part-of=archkeeper"
)

func providersResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "externaldata.gatekeeper.sh", Version: "v1beta1", Resource: "providers"}
}

func assignResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "mutations.gatekeeper.sh", Version: "v1", Resource: "assign"}
}

func crdResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// Collect reads a Snapshot. What may not be read, or fails, is named in Unseen;
// the error is for an API server that cannot be asked at all.
func Collect(ctx context.Context, o Options) (Snapshot, error) {
	c := &collector{Options: o, s: Snapshot{Now: o.Now, Namespace: o.Namespace, Circuits: map[string][]string{}}}
	version, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := c.Client.CoreV1().Namespaces().Get(version, o.Namespace, metav1.GetOptions{}); err != nil && !apierrors.IsForbidden(err) {
		return Snapshot{}, fmt.Errorf("namespace %s: %w", o.Namespace, err)
	}
	for _, part := range []struct {
		what string
		read func(context.Context) error
	}{
		{"our Deployments", c.deployments},
		{"the configuration", c.configuration},
		{"certificates", c.certificates},
		{"the controllers' Lease", c.lease},
		{"webhook configurations", c.webhooks},
		{"Gatekeeper's pods", c.gatekeeper},
		{"Provider objects", c.providers},
		{"Assign objects", c.assigns},
		{"gated pods", c.gatedPods},
		{"access of our service accounts", c.access},
		{"metrics of the provider's pods", c.circuits},
	} {
		reading, cancel := context.WithTimeout(ctx, 3*callTimeout)
		err := part.read(reading)
		cancel()
		if err != nil {
			c.s.Unseen = append(c.s.Unseen, part.what+": "+err.Error())
		}
		if ctx.Err() != nil {
			return Snapshot{}, ctx.Err()
		}
	}
	return c.s, nil
}

type collector struct {
	Options
	s Snapshot
}

func (c *collector) deployments(ctx context.Context) error {
	list, err := c.Client.AppsV1().Deployments(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ours})
	if err != nil {
		return err
	}
	for i := range list.Items {
		d := deployment(&list.Items[i])
		switch list.Items[i].Labels["app.kubernetes.io/component"] {
		case "provider":
			c.s.Provider = d
		case "controllers":
			c.s.Controllers = d
		}
	}
	if c.s.Controllers == nil && c.s.Provider != nil && slices.Contains(c.s.Provider.Args, "all-in-one") {
		c.s.Controllers = c.s.Provider
	}
	return nil
}

func deployment(d *appsv1.Deployment) *Deployment {
	out := &Deployment{
		Name: d.Name, Replicas: ptr.Deref(d.Spec.Replicas, 1), Ready: d.Status.ReadyReplicas,
		ServiceAccountName: d.Spec.Template.Spec.ServiceAccountName,
	}
	for _, container := range d.Spec.Template.Spec.Containers {
		out.Args = append(out.Args, container.Args...)
	}
	return out
}

func (c *collector) configuration(ctx context.Context) error {
	defaults := config.Default().Placement
	c.s.Gate, c.s.HoldDeadline = defaults.Gate, time.Duration(defaults.HoldDeadline)
	list, err := c.Client.CoreV1().ConfigMaps(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ours})
	if err != nil {
		return err
	}
	for _, m := range list.Items {
		text, ok := m.Data["configuration.yaml"]
		if !ok {
			continue
		}
		parsed, err := config.Parse([]byte(text))
		if err != nil {
			return fmt.Errorf("ConfigMap %s: %w", m.Name, err)
		}
		c.s.Gate, c.s.HoldDeadline = parsed.Placement.Gate, time.Duration(parsed.Placement.HoldDeadline)
	}
	return nil
}

// mounted gives the Secret that a Deployment mounts as its volume tls.
func (c *collector) mounted(ctx context.Context, d *Deployment) (*corev1.Secret, error) {
	if d == nil {
		return nil, nil //nolint:nilnil // nothing is mounted
	}
	full, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for _, v := range full.Spec.Template.Spec.Volumes {
		if v.Name == "tls" && v.Secret != nil {
			return c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
		}
	}
	return nil, nil //nolint:nilnil // nothing is mounted
}

func (c *collector) certificates(ctx context.Context) error {
	deployments := []*Deployment{c.s.Provider}
	if c.s.Controllers != c.s.Provider {
		deployments = append(deployments, c.s.Controllers)
	}
	for _, d := range deployments {
		secret, err := c.mounted(ctx, d)
		if err != nil {
			return err
		}
		if secret == nil {
			continue
		}
		certificate, err := readCertificate(secret)
		if err != nil {
			return err
		}
		c.s.Certificates = append(c.s.Certificates, certificate)
		if d == c.s.Provider {
			c.s.Serving = &certificate
		}
	}
	return nil
}

func readCertificate(secret *corev1.Secret) (Certificate, error) {
	out := Certificate{Secret: secret.Name, Chain: secret.Data[corev1.TLSCertKey], Bundle: secret.Data["ca.crt"]}
	block, _ := pem.Decode(out.Chain)
	if block == nil {
		return out, fmt.Errorf("secret %s has no certificate under %s", secret.Name, corev1.TLSCertKey)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return out, fmt.Errorf("secret %s: %w", secret.Name, err)
	}
	out.NotBefore, out.NotAfter = leaf.NotBefore, leaf.NotAfter
	return out, nil
}

func (c *collector) lease(ctx context.Context) error {
	if c.s.Controllers == nil {
		return nil
	}
	for _, name := range flagValues(c.s.Controllers.Args, "lease") {
		lease, err := c.Client.CoordinationV1().Leases(c.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		c.s.Lease = &Lease{
			Name: name, Holder: ptr.Deref(lease.Spec.HolderIdentity, ""), Renewed: ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time,
			Duration: time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 15)) * time.Second,
		}
	}
	return nil
}

func (c *collector) webhooks(ctx context.Context) error {
	mutating, err := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, m := range mutating.Items {
		switch {
		case len(m.Webhooks) == 0:
		case m.Labels["app.kubernetes.io/part-of"] == "archkeeper":
			w := m.Webhooks[0]
			c.s.Webhook = &Webhook{
				Name: m.Name, Reinvocation: string(ptr.Deref(w.ReinvocationPolicy, "Never")), Timeout: seconds(w.TimeoutSeconds),
				CABundle: w.ClientConfig.CABundle, Service: w.ClientConfig.Service != nil,
			}
			if w.ClientConfig.Service != nil {
				c.s.Webhook.Path = ptr.Deref(w.ClientConfig.Service.Path, "")
			}
		case m.Labels["gatekeeper.sh/system"] == "yes":
			g := GatekeeperWebhook{Name: m.Name, Reinvocation: "Never"}
			for _, w := range m.Webhooks {
				g.Timeout = shorter(g.Timeout, seconds(w.TimeoutSeconds))
				g.Reinvocation = string(ptr.Deref(w.ReinvocationPolicy, "Never"))
			}
			c.found().Mutating = append(c.found().Mutating, g)
		}
	}
	validating, err := c.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{LabelSelector: "gatekeeper.sh/system=yes"})
	if err != nil {
		return err
	}
	for _, v := range validating.Items {
		g := GatekeeperWebhook{Name: v.Name}
		for _, w := range v.Webhooks {
			// The others of Gatekeeper's webhooks judge its own objects.
			if strings.HasPrefix(w.Name, "validation.") {
				g.Timeout = shorter(g.Timeout, seconds(w.TimeoutSeconds))
			}
		}
		c.found().Validating = append(c.found().Validating, g)
	}
	return nil
}

func (c *collector) found() *Gatekeeper {
	if c.s.Gatekeeper == nil {
		c.s.Gatekeeper = &Gatekeeper{}
	}
	return c.s.Gatekeeper
}

// seconds gives a webhook's timeout, which is 10 s when it is not set.
func seconds(n *int32) time.Duration { return time.Duration(ptr.Deref(n, 10)) * time.Second }

func shorter(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

func (c *collector) gatekeeper(ctx context.Context) error {
	crd, err := c.Dynamic.Resource(crdResource()).Get(ctx, "assign.mutations.gatekeeper.sh", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	default:
		c.found().Operations = knowsOperations(crd)
	}
	list, err := c.Client.AppsV1().Deployments(c.GatekeeperNamespace).List(ctx, metav1.ListOptions{LabelSelector: "gatekeeper.sh/system=yes"})
	if err != nil {
		return err
	}
	for _, d := range list.Items {
		for _, container := range d.Spec.Template.Spec.Containers {
			c.found().Args = append(c.found().Args, container.Args...)
			if _, tag, ok := strings.Cut(container.Image[strings.LastIndex(container.Image, "/")+1:], ":"); ok {
				c.found().Version, _, _ = strings.Cut(tag, "@")
			}
		}
	}
	return nil
}

// knowsOperations looks for applyTo[].operations in the schema of Assign.
func knowsOperations(crd *unstructured.Unstructured) bool {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	return slices.ContainsFunc(versions, func(v any) bool {
		version, _ := v.(map[string]any)
		_, ok, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "applyTo", "items", "properties", "operations")
		return ok
	})
}

// absent tells whether an error says that a resource is not served.
func absent(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

func (c *collector) providers(ctx context.Context) error {
	list, err := c.Dynamic.Resource(providersResource()).List(ctx, metav1.ListOptions{LabelSelector: ours})
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range list.Items {
		o := list.Items[i].Object
		p := ProviderObject{Name: list.Items[i].GetName()}
		p.URL, _, _ = unstructured.NestedString(o, "spec", "url")
		timeout, _, _ := unstructured.NestedInt64(o, "spec", "timeout")
		p.Timeout = time.Duration(timeout) * time.Second
		encoded, _, _ := unstructured.NestedString(o, "spec", "caBundle")
		p.CABundle, _ = base64.StdEncoding.DecodeString(encoded)
		c.s.Providers = append(c.s.Providers, p)
	}
	return nil
}

func (c *collector) assigns(ctx context.Context) error {
	list, err := c.Dynamic.Resource(assignResource()).List(ctx, metav1.ListOptions{})
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range list.Items {
		location, _, _ := unstructured.NestedString(list.Items[i].Object, "spec", "location")
		if !strings.Contains(location, "schedulingGates") || !strings.Contains(location, c.s.Gate) {
			continue
		}
		a := Assign{Name: list.Items[i].GetName()}
		entries, _, _ := unstructured.NestedSlice(list.Items[i].Object, "spec", "applyTo")
		for _, e := range entries {
			entry, _ := e.(map[string]any)
			operations, _, _ := unstructured.NestedStringSlice(entry, "operations")
			a.Operations = append(a.Operations, operations)
		}
		selector, _, _ := unstructured.NestedMap(list.Items[i].Object, "spec", "match", "labelSelector")
		text, err := json.Marshal(selector)
		a.SkipsDecided = err == nil && strings.Contains(string(text), "archkeeper.io/decided")
		c.s.Assigns = append(c.s.Assigns, a)
	}
	return nil
}

func (c *collector) gatedPods(ctx context.Context) error {
	options := metav1.ListOptions{
		Limit:         podPage,
		FieldSelector: fields.SelectorFromSet(fields.Set{"spec.nodeName": "", "status.phase": string(corev1.PodPending)}).String(),
	}
	for {
		page, err := c.Client.CoreV1().Pods("").List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if p := &page.Items[i]; gated(p, c.s.Gate) && len(c.s.Gated) < maxGated {
				c.s.Gated = append(c.s.Gated, GatedPod{p.Namespace, p.Name, p.CreationTimestamp.Time})
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

// needs lists what our service accounts must be able to do, from what the
// Deployments are told to do.
func needs(s Snapshot) []Access {
	var all []Access
	if p := s.Provider; p != nil {
		add := func(verb, group, resource, name, namespace, why string) {
			all = append(all, Access{ServiceAccount: p.ServiceAccountName, Verb: verb, Group: group, Resource: resource, Name: name, Namespace: namespace, Why: why})
		}
		add("create", "authentication.k8s.io", "tokenreviews", "", "", "to prove callers with a bearer token")
		add("create", "authorization.k8s.io", "subjectaccessreviews", "", "", "to prove callers with a bearer token")
		for _, name := range flagValues(p.Args, "client-ca-webhook") {
			add("watch", "admissionregistration.k8s.io", "validatingwebhookconfigurations", name, "", "to follow Gatekeeper's authority")
		}
		for _, namespace := range flagValues(p.Args, "secret-namespace") {
			add("get", "", "secrets", "", namespace, "to read pull secrets")
		}
		if slices.Contains(flagValues(p.Args, "secrets"), "cluster") {
			add("watch", "", "secrets", "", "", "to read pull secrets")
		}
		for _, lease := range flagValues(p.Args, "lease") {
			namespace, name, both := strings.Cut(lease, "/")
			if !both {
				namespace, name = s.Namespace, lease
			}
			add("watch", "", "namespaces", "", "", "to judge which pods are placed")
			add("get", "coordination.k8s.io", "leases", name, namespace, "to know whether a controller is alive")
		}
	}
	if c := s.Controllers; c != nil {
		add := func(verb, group, resource, name, namespace, why string) {
			all = append(all, Access{ServiceAccount: c.ServiceAccountName, Verb: verb, Group: group, Resource: resource, Name: name, Namespace: namespace, Why: why})
		}
		for _, name := range flagValues(c.Args, "lease") {
			add("update", "coordination.k8s.io", "leases", name, s.Namespace, "to lead")
		}
		enabled := strings.Split(strings.Join(flagValues(c.Args, "enable"), ","), ",")
		if slices.Contains(enabled, "placement") {
			add("watch", "", "pods", "", "", "to see gated pods")
			add("patch", "", "pods", "", "", "to free gated pods")
			add("watch", "", "namespaces", "", "", "to judge which pods are placed")
			add("watch", "", "nodes", "", "", "to know the cluster's architectures")
		}
		if slices.Contains(enabled, "certificates") {
			for _, p := range s.Providers {
				add("update", "externaldata.gatekeeper.sh", "providers", p.Name, "", "to publish whom to trust")
			}
			if s.Webhook != nil {
				add("patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", s.Webhook.Name, "", "to publish whom to trust")
			}
			if s.Serving != nil {
				add("get", "", "secrets", s.Serving.Secret, s.Namespace, "to publish whom to trust")
			}
		}
		if slices.Contains(enabled, "mirrors") {
			for _, name := range flagValues(c.Args, "mirrors-configmap") {
				add("update", "", "configmaps", name, s.Namespace, "to write the merged mirrors")
			}
		}
	}
	return all
}

func (c *collector) access(ctx context.Context) error {
	for _, a := range needs(c.s) {
		review, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   "system:serviceaccount:" + c.Namespace + ":" + a.ServiceAccount,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + c.Namespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: a.Namespace, Verb: a.Verb, Group: a.Group, Resource: a.Resource, Name: a.Name,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		a.Allowed = review.Status.Allowed
		c.s.Access = append(c.s.Access, a)
	}
	return nil
}

func (c *collector) circuits(ctx context.Context) error {
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ours + ",app.kubernetes.io/component=provider"})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		asking, cancel := context.WithTimeout(ctx, callTimeout/2)
		metrics, err := c.Client.CoreV1().Pods(c.Namespace).ProxyGet("http", p.Name, "9090", "/metrics", nil).DoRaw(asking)
		cancel()
		if err != nil {
			return fmt.Errorf("pod %s: %w", p.Name, err)
		}
		if open := openCircuits(metrics); len(open) > 0 {
			c.s.Circuits[p.Name] = open
		}
	}
	return nil
}
