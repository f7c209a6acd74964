// Package credentials reads pull secrets through a real API server: its field
// selectors, its watches and its RBAC.
package credentials

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/tests/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) {
	options := controlplane.Options{Nodes: []controlplane.Node{}}
	os.Exit(controlplane.Main(m, options, func(_ context.Context, c *controlplane.Cluster) error {
		cluster = c
		return nil
	}))
}

func TestSecretsOfARealAPIServer(t *testing.T) {
	for _, test := range []struct {
		name, verbs string
		onDemand    bool
		synced      bool
	}{
		{"watched", "get, list, watch", false, true},
		{"on demand, with get alone", "get", true, true},
		{"meant to be watched, but get is all that is granted", "get", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := t.Context()
			namespace := fmt.Sprintf("pull-%d", time.Now().UnixNano())
			manifest := strings.NewReplacer("NS", namespace, "VERBS", test.verbs).Replace(`
apiVersion: v1
kind: Namespace
metadata: {name: NS}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: provider, namespace: NS}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NS}
rules:
  - {apiGroups: [""], resources: [secrets, serviceaccounts], verbs: [VERBS]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NS}
subjects: [{kind: ServiceAccount, name: provider, namespace: NS}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: NS}
imagePullSecrets: [{name: one}, {name: older}]
---
apiVersion: v1
kind: Secret
metadata: {name: one, namespace: NS}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths":{"quay.io":{"username":"one"}}}'}
---
apiVersion: v1
kind: Secret
metadata: {name: older, namespace: NS}
type: kubernetes.io/dockercfg
stringData: {.dockercfg: '{"quay.io/team":{"username":"older"}}'}
---
apiVersion: v1
kind: Secret
metadata: {name: opaque, namespace: NS}
stringData: {key: value}
`)
			if _, err := cluster.KubectlInput(ctx, manifest, "apply", "-f", "-"); err != nil {
				t.Fatal(err)
			}
			kubeconfig, err := cluster.KubeconfigForServiceAccount(ctx, namespace, "provider")
			if err != nil {
				t.Fatal(err)
			}
			config, err := cluster.ConfigFor(kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			secrets, err := credentials.NewSecrets(credentials.SecretsOptions{Client: client.CoreV1(), OnDemand: test.onDemand})
			if err != nil {
				t.Fatal(err)
			}
			running, stop := context.WithCancel(context.Background())
			var done sync.WaitGroup
			done.Go(func() { _ = secrets.Run(running) })
			t.Cleanup(func() { stop(); done.Wait() })

			users := func(names ...string) string {
				scope := provider.Scope{Namespace: namespace, ImagePullSecrets: names}
				found, err := secrets.Lookup(ctx, scope, "quay.io/team/app")
				text := fmt.Sprint(err)
				for _, credential := range found {
					text = credential.AuthConfig().Username + " " + text
				}
				return text
			}
			expect := func(what, want string, names ...string) {
				t.Helper()
				deadline := time.Now().Add(30 * time.Second)
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for got := users(names...); got != want; got = users(names...) {
					if time.Now().After(deadline) {
						t.Fatalf("%s: %q, want %q", what, got, want)
					}
					<-tick.C
				}
			}
			expect("the service account's secrets", "one older <nil>")
			expect("the pod's secret", "one <nil>", "one")
			expect("another type", "secret "+namespace+"/opaque is not of a pull secret's type", "opaque")
			if test.synced {
				expectSynced(t, secrets)
			} else if secrets.Synced() {
				t.Error("in step without the right to list")
			}

			changed := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: namespace}, Type: corev1.SecretTypeDockerConfigJson,
				Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"quay.io":{"username":"changed"}}}`)},
			}
			if _, err := cluster.Client.CoreV1().Secrets(namespace).Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			expect("a change", "changed <nil>", "one")
			if err := cluster.Client.CoreV1().Secrets(namespace).Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			expect("a deletion", "secret "+namespace+"/one is not there", "one")
		})
	}
}

func expectSynced(t *testing.T, secrets *credentials.Secrets) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !secrets.Synced() {
		if time.Now().After(deadline) {
			t.Fatal("the watches are not in step")
		}
		<-tick.C
	}
}
