package doctor

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

func TestWhatIsCollected(t *testing.T) {
	whole := healthy(t)
	labels := func(component string) map[string]string {
		return map[string]string{"app.kubernetes.io/part-of": "archkeeper", "app.kubernetes.io/component": component}
	}
	deployment := func(component, secret string, args ...string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: component, Labels: labels(component)}}
		d.Spec.Replicas, d.Status.ReadyReplicas = ptr.To[int32](2), 2
		d.Spec.Template.Spec = corev1.PodSpec{
			ServiceAccountName: component,
			Containers:         []corev1.Container{{Args: args}},
			Volumes:            []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}},
		}
		return d
	}
	gated := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/mine"}}
	gatekeeper := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "gatekeeper-system", Name: "g", Labels: map[string]string{"gatekeeper.sh/system": "yes"}}}
	gatekeeper.Spec.Template.Spec.Containers = []corev1.Container{{Image: "host:5000/openpolicyagent/gatekeeper:v3.23.1", Args: []string{"--operation=webhook"}}}
	renewed := metav1.NewMicroTime(now.Add(-time.Second))
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		deployment("provider", "provider-tls", "provider", "--deadline=900ms", "--client-ca-webhook=g", "--secret-namespace=shop", "--lease=ns/controllers"),
		deployment("controllers", "controllers-tls", "controllers", "--enable=certificates,placement", "--lease=controllers"),
		gatekeeper,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "provider-tls"}, Data: map[string][]byte{"tls.crt": whole.Serving.Chain, "ca.crt": whole.Serving.Bundle}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "controllers-tls"}, Data: map[string][]byte{"tls.crt": whole.Serving.Chain}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "configuration", Labels: labels("controllers")}, Data: map[string]string{
			"configuration.yaml": "apiVersion: archkeeper.io/v1alpha1\nkind: Configuration\nplacement: {gate: example.com/mine, holdDeadline: 5m}\n",
		}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "controllers"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("one"), RenewTime: &renewed, LeaseDurationSeconds: ptr.To[int32](15)}},
		&admissionv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "mutate.archkeeper.io", Labels: labels("provider")},
			Webhooks: []admissionv1.MutatingWebhook{{
				TimeoutSeconds: ptr.To[int32](2), ReinvocationPolicy: ptr.To(admissionv1.IfNeededReinvocationPolicy),
				ClientConfig: admissionv1.WebhookClientConfig{CABundle: whole.Serving.Bundle, Service: &admissionv1.ServiceReference{Path: ptr.To("/v1/admit/secret")}},
			}},
		},
		&admissionv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "gatekeeper-mutating", Labels: map[string]string{"gatekeeper.sh/system": "yes"}},
			Webhooks:   []admissionv1.MutatingWebhook{{TimeoutSeconds: ptr.To[int32](1)}},
		},
		&admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "gatekeeper-validating", Labels: map[string]string{"gatekeeper.sh/system": "yes"}},
			Webhooks:   []admissionv1.ValidatingWebhook{{Name: "validation.gatekeeper.sh", TimeoutSeconds: ptr.To[int32](3)}, {Name: "check-ignore-label.gatekeeper.sh", TimeoutSeconds: ptr.To[int32](1)}},
		},
		gated,
	)
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		review.Status.Allowed = review.Spec.ResourceAttributes.Resource != "secrets"
		return true, review, nil
	})
	provider := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "externaldata.gatekeeper.sh/v1beta1", "kind": "Provider", "metadata": map[string]any{"name": "archkeeper", "labels": map[string]any{"app.kubernetes.io/part-of": "archkeeper"}},
		"spec": map[string]any{"url": "https://provider.ns.svc:8443/v1/public", "timeout": int64(1), "caBundle": "QQ=="},
	}}
	assign := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "mutations.gatekeeper.sh/v1", "kind": "Assign", "metadata": map[string]any{"name": "gate"},
		"spec": map[string]any{
			"location": `spec.schedulingGates[name:"example.com/mine"]`, "applyTo": []any{map[string]any{"operations": []any{"CREATE"}}},
			"match": map[string]any{"labelSelector": map[string]any{"matchExpressions": []any{map[string]any{"key": "archkeeper.io/decided", "operator": "DoesNotExist"}}}},
		},
	}}
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		providersResource(): "ProviderList", assignResource(): "AssignList", crdResource(): "CustomResourceDefinitionList",
	}, provider)
	if err := objects.Tracker().Create(assignResource(), assign, ""); err != nil {
		t.Fatal(err)
	}
	s, err := Collect(t.Context(), Options{Client: client, Dynamic: objects, Namespace: "ns", GatekeeperNamespace: "gatekeeper-system", Now: now})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Unseen) > 0 {
		t.Errorf("unseen: %q", s.Unseen)
	}
	var checks []string
	for _, f := range Check(s) {
		checks = append(checks, f.Check+": "+f.Message)
	}
	// What is wrong with it: a mutating timeout of 1 s is no matter without a
	// pin; the CRD is not there; the caBundle is none; one right is missing; and
	// the pod has waited for an hour.
	for _, want := range []string{"gatekeeper-version", "gatekeeper-flags", "provider-ca", "rbac: may not get secrets in namespace shop", "gated-pods: 1 pods are gated for longer than the deadline of 5m"} {
		if !slices.ContainsFunc(checks, func(c string) bool { return strings.HasPrefix(c, want) }) {
			t.Errorf("no finding %q in %q", want, checks)
		}
	}
	for _, no := range []string{"webhook-", "controller", "deployments", "provider-timeout", "certificates", "gate-"} {
		if i := slices.IndexFunc(checks, func(c string) bool { return strings.HasPrefix(c, no) }); i >= 0 {
			t.Errorf("a finding that should not be: %s", checks[i])
		}
	}
}

func TestAReportIsOneObject(t *testing.T) {
	var b bytes.Buffer
	if err := (Report{}).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || got["findings"] == nil {
		t.Errorf("%s: %v", b.String(), err)
	}
}
