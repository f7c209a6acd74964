package clusterimages_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/internal/clusterimages"
)

const cluster = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d}
spec: {replicas: 1, template: {spec: {containers: [{name: c, image: web:2}]}}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-2, namespace: shop, uid: r2, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: d, controller: true}]}
spec: {replicas: 1, template: {spec: {containers: [{name: c, image: web:2}]}}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-1, namespace: shop, uid: r1, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: d, controller: true}]}
spec: {replicas: 0, template: {spec: {containers: [{name: c, image: web:1}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2-x, namespace: shop, uid: p, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-2, uid: r2, controller: true}]}
spec: {containers: [{name: c, image: web:2}, {name: injected, image: sidecar}]}
---
apiVersion: v1
kind: Pod
metadata: {name: canary, namespace: shop, uid: q, ownerReferences: [{apiVersion: argoproj.io/v1alpha1, kind: Rollout, name: canary, uid: z, controller: true}]}
spec: {containers: [{name: c, image: canary}]}
---
apiVersion: v1
kind: Pod
metadata: {name: etcd-node1, namespace: kube-system, uid: e, ownerReferences: [{apiVersion: v1, kind: Node, name: node1, uid: n, controller: true}]}
spec: {containers: [{name: c, image: etcd}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop, uid: c}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: c, image: backup}]}}}}}
`

func newCluster(t *testing.T) *fake.FakeDynamicClient {
	t.Helper()
	var objects []runtime.Object
	for _, text := range strings.Split(cluster, "\n---\n") {
		var object unstructured.Unstructured
		data, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := object.UnmarshalJSON(data); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, &object)
	}
	kinds := map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "pods"}:                        "PodList",
		{Version: "v1", Resource: "replicationcontrollers"}:      "ReplicationControllerList",
		{Group: "apps", Version: "v1", Resource: "deployments"}:  "DeploymentList",
		{Group: "apps", Version: "v1", Resource: "replicasets"}:  "ReplicaSetList",
		{Group: "apps", Version: "v1", Resource: "statefulsets"}: "StatefulSetList",
		{Group: "apps", Version: "v1", Resource: "daemonsets"}:   "DaemonSetList",
		{Group: "batch", Version: "v1", Resource: "jobs"}:        "JobList",
		{Group: "batch", Version: "v1", Resource: "cronjobs"}:    "CronJobList",
	}
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
}

func found(t *testing.T, client *fake.FakeDynamicClient, namespace string) (uses, missing []string) {
	t.Helper()
	list, missing, err := clusterimages.List(t.Context(), client, namespace)
	if err != nil {
		t.Fatal(err)
	}
	for _, use := range list {
		uses = append(uses, use.Image+"@"+use.Workload.String())
	}
	slices.Sort(uses)
	return slices.Compact(uses), missing
}

func TestList(t *testing.T) {
	shop := []string{"backup@CronJob/shop/nightly", "canary@Rollout/shop/canary", "sidecar@Deployment/shop/web", "web:2@Deployment/shop/web"}
	for sentence, row := range map[string]struct {
		namespace string
		want      []string
	}{
		"a namespace":  {"shop", shop},
		"all of them":  {"", slices.Insert(slices.Clone(shop), 2, "etcd@Pod/kube-system/etcd-node1")},
		"an empty one": {"nothing", nil},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, missing := found(t, newCluster(t), row.namespace)
			if diff := cmp.Diff(row.want, got); diff != "" || len(missing) > 0 {
				t.Errorf("missing %q; want -, got +:\n%s", missing, diff)
			}
		})
	}
}

func forbid(client *fake.FakeDynamicClient, resource string) {
	client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
	})
}

func TestWhatMayNotBeListed(t *testing.T) {
	client := newCluster(t)
	forbid(client, "cronjobs")
	got, missing := found(t, client, "shop")
	if slices.Contains(got, "backup@CronJob/shop/nightly") || len(got) != 3 || len(missing) != 1 || !strings.Contains(missing[0], "CronJob") {
		t.Errorf("got %q, missing %q", got, missing)
	}
	forbid(client, "pods")
	if _, _, err := clusterimages.List(t.Context(), client, "shop"); err == nil || !strings.Contains(err.Error(), "pods") {
		t.Errorf("pods that may not be listed: %v", err)
	}
}
