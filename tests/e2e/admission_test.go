package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestTheAdmissionWebhookPlacesAPodWhereItsImagesRun(t *testing.T) {
	k := cluster.Test(t)
	webhook := func(url string) string {
		return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mutate.%[1]s.archkeeper.io}
webhooks:
  - name: mutate.archkeeper.io
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    timeoutSeconds: 10
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
    clientConfig: {url: %[2]q, caBundle: %[3]s}
`, k.Namespace, url, base64.StdEncoding.EncodeToString(provider.CA.CertPEM))
	}
	k.ApplyForTest(webhook(provider.AdmissionURL))

	// A configuration is in force once the API server has seen it: until then
	// pods come out as they went in.
	var created *corev1.Pod
	k.Eventually("pods go through the webhook", func(context.Context) error {
		var err error
		created, err = k.TryCreatePod(strings.Replace(pod("x", image("shop/multi:1"), image("shop/arm:1")), "name: x", "generateName: x-", 1))
		if err != nil {
			return err
		}
		if created.Spec.Affinity == nil {
			return errors.New("the pod has no affinity")
		}
		return nil
	})
	terms := created.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	want := "kubernetes.io/arch In [arm64]"
	for _, term := range terms {
		var have []string
		for _, e := range term.MatchExpressions {
			have = append(have, fmt.Sprintf("%s %s %s", e.Key, e.Operator, e.Values))
		}
		if !strings.Contains(strings.Join(have, ", "), want) {
			t.Errorf("a term asks for %s, expected %s", have, want)
		}
	}
	if len(terms) == 0 {
		t.Error("the required affinity has no terms")
	}
	if node := k.WaitRunning(created.Name).Spec.NodeName; !strings.HasPrefix(node, "arm64-") {
		t.Errorf("the pod runs on %s", node)
	}

	// A caller without the secret part of the path is told nothing.
	k.Apply(webhook(provider.AdmissionURL + "x"))
	k.Eventually("the API server calls the wrong path", func(context.Context) error {
		_, err := k.TryCreatePod(strings.Replace(pod("y", image("shop/arm:1")), "name: y", "generateName: y-", 1))
		if err == nil {
			return errors.New("the pod was admitted")
		}
		if strings.Contains(err.Error(), "arm64") {
			t.Errorf("the refusal tells what the image supports: %v", err)
		}
		return nil
	})
}
