package placement_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// mirrorsAccess is what the mirrors controller may do beside placement.
const mirrorsAccess = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: archkeeper-controllers-mirrors}
rules:
  - {apiGroups: [operator.openshift.io], resources: [imagecontentsourcepolicies], verbs: [get, list, watch]}
  - {apiGroups: [config.openshift.io], resources: [imagedigestmirrorsets, imagetagmirrorsets, images], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: archkeeper-controllers-mirrors}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: archkeeper-controllers-mirrors}
subjects: [{kind: ServiceAccount, name: archkeeper-controllers, namespace: archkeeper-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: archkeeper-controllers-mirrors, namespace: archkeeper-system}
rules:
  - {apiGroups: [""], resources: [configmaps], verbs: [create, get, list, watch, update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: archkeeper-controllers-mirrors, namespace: archkeeper-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: archkeeper-controllers-mirrors}
subjects: [{kind: ServiceAccount, name: archkeeper-controllers, namespace: archkeeper-system}]
`

// Provider and controllers are processes of their own here, with a gate of their own.
// What changes is seen by the one; the pods are held by the other, which asks again
// at once, whatever the pause.
func TestHeldPodsHearOfChangesAtTheProvider(t *testing.T) {
	t.Parallel()
	const own = "archkeeper.io/changes"
	k, f := test(t, ownWebhooks+"=none")
	// Each registry wants callers without credentials to wait.
	limited := func(repository, runs string) *archkeeper.Registry {
		t.Helper()
		r, err := archkeeper.ServeImages()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		if _, err := r.Push(t.Context(), repository, runs); err != nil {
			t.Fatal(err)
		}
		r.LimitAnonymous()
		return r
	}
	locked, mirrored := limited("shop/arm:1", "linux/arm64"), limited("store/z:1", "linux/s390x")

	dir := t.TempDir()
	settings, mirrors := filepath.Join(dir, "configuration.yaml"), filepath.Join(dir, "mirrors", "registries.conf")
	if err := os.WriteFile(settings, []byte(fmt.Sprintf(
		"{apiVersion: archkeeper.io/v1alpha1, kind: Configuration, placement: {gate: %s, holdDeadline: 5m}}\n", own)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Dir(mirrors), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mirrors, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cluster.ApplyFiles(t.Context(), "", "../../../deploy/crds"); err != nil {
		t.Fatal(err)
	}
	asked, err := archkeeper.StartProvider(t.Context(), cluster, os.Stderr, archkeeper.ProviderOptions{
		Name: "changes-provider", PlainHTTPHosts: []string{good.Host, locked.Host, mirrored.Host},
		Flags: []string{"--registries-conf=" + mirrors},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = asked.Process.Kill() })
	if err := cluster.Apply(t.Context(), "", mirrorsAccess); err != nil {
		t.Fatal(err)
	}
	const configMap = "changes-mirrors"
	asks, err := archkeeper.StartControllers(t.Context(), cluster, os.Stderr, archkeeper.ControllersOptions{
		Name: "changes-controllers", Provider: asked, Lease: "changes", Config: settings,
		Flags: []string{"--enable=mirrors", "--mirrors-configmap=" + configMap, "--mirrors-delivery=inspector"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = asks.Kill() })
	mount(t, configMap, "registries.conf", mirrors)

	ownGate := "schedulingGates: [{name: " + own + "}], "
	k.CreatePod(pod("secret", ownGate+"imagePullSecrets: [{name: late}], ", image(locked, "arm")))
	k.CreatePod(pod("mirror", ownGate, mirrored.Host+"/store/z:1"))
	// After so many questions about both, the next pause is one of eight seconds or more
	// unless something changes.
	k.Eventually("the pods have been held for a while", func(ctx context.Context) error {
		held, err := metric(ctx, asks.ProbeURL, "archkeeper_placement_held_pods")
		if err != nil {
			return err
		}
		questions, err := metric(ctx, asks.ProbeURL, "archkeeper_placement_step_seconds_count")
		if err == nil && (held != 2 || questions < 12) {
			err = fmt.Errorf("%v are, %v questions", held, questions)
		}
		return err
	})
	changed := time.Now()
	k.ApplyForTest(fmt.Sprintf(`
{apiVersion: v1, kind: Secret, metadata: {name: late}, type: kubernetes.io/dockerconfigjson, stringData: {.dockerconfigjson: '{"auths":{%q:{"auth":%q}}}'}}
---
{apiVersion: config.openshift.io/v1, kind: ImageTagMirrorSet, metadata: {name: changes}, spec: {imageTagMirrors: [{source: %q, mirrors: [%q]}]}}`,
		locked.Host, base64.StdEncoding.EncodeToString([]byte("somebody:anything")), mirrored.Host+"/store", good.Host+"/shop"))
	for name, node := range map[string]string{"secret": "arm64-", "mirror": "s390x-"} {
		p := f.run(name)
		if waited := f.of(name).bound.Sub(changed); waited > 6*time.Second {
			t.Errorf("after the change of the %s the pod waited for another %s", name, waited)
		}
		if !strings.HasPrefix(p.Spec.NodeName, node) {
			t.Errorf("the pod that waited for a %s is on %s", name, p.Spec.NodeName)
		}
	}
}

// mount keeps a file in step with a key of a ConfigMap of ours until the test ends,
// as a kubelet does.
func mount(t *testing.T, name, key, file string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for last := ""; ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			object, err := cluster.Client.CoreV1().ConfigMaps(archkeeper.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil || object.Data[key] == last {
				continue
			}
			last = object.Data[key]
			if err := os.WriteFile(file+".new", []byte(last), 0o600); err != nil {
				t.Error(err)
				return
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
}
