// Package mirrors runs the mirror controller and a node agent against a real
// API server with the CRDs for plain Kubernetes: objects are applied, the
// ConfigMap follows, and the node's file follows the ConfigMap.
package mirrors

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	mirrorcontroller "github.com/archkeeper/archkeeper/controllers/mirrors"
	"github.com/archkeeper/archkeeper/controllers/nodeagent"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) {
	os.Exit(controlplane.Main(m, controlplane.Options{}, func(_ context.Context, c *controlplane.Cluster) error {
		cluster = c
		return nil
	}))
}

const crds = "../../../deploy/crds"

// run starts a controller as the service account of the chart, until the test
// ends.
func run(t *testing.T, k *controlplane.Test) *record.FakeRecorder {
	t.Helper()
	rights, err := archkeeper.Rights(t.Context(), k.Namespace, "nodeAgent.enabled=true")
	if err != nil {
		t.Fatal(err)
	}
	k.ApplyForTest(rights)
	kubeconfig, err := cluster.KubeconfigForServiceAccount(t.Context(), k.Namespace, k.Namespace+"-controllers")
	if err != nil {
		t.Fatal(err)
	}
	config, err := cluster.ConfigFor(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	recorder := record.NewFakeRecorder(100)
	c, err := mirrorcontroller.New(mirrorcontroller.Options{
		Dynamic: dynamic.NewForConfigOrDie(config), Discovery: client.Discovery(), Client: client,
		Namespace: k.Namespace, Name: k.Namespace + "-registries", Recorder: recorder, Quiet: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	start(t, c.Start)
	return recorder
}

// start runs something until the test ends.
func start(t *testing.T, work func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := work(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}

// startAgent runs a node agent on a folder of its own.
func startAgent(t *testing.T, k *controlplane.Test) (root string) {
	t.Helper()
	kubeconfig, err := cluster.KubeconfigForServiceAccount(t.Context(), k.Namespace, k.Namespace+"-node-agent")
	if err != nil {
		t.Fatal(err)
	}
	config, err := cluster.ConfigFor(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	agent, err := nodeagent.New(nodeagent.Options{
		Client: kubernetes.NewForConfigOrDie(config), Namespace: k.Namespace, Name: k.Namespace + "-registries", Runtime: nodeagent.CRIO, Root: root,
	})
	if err != nil {
		t.Fatal(err)
	}
	start(t, agent.Start)
	return root
}

func conf(ctx context.Context, namespace string) (string, error) {
	cm, err := cluster.Client.CoreV1().ConfigMaps(namespace).Get(ctx, namespace+"-registries", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return cm.Data[mirrors.KeyConf], nil
}

func TestObjectsReachTheNode(t *testing.T) {
	k := cluster.Test(t)
	recorder := run(t, k)
	root := startAgent(t, k)
	k.Eventually("without CRDs the ConfigMap is empty", func(ctx context.Context) error {
		text, err := conf(ctx, k.Namespace)
		if err == nil && text != "" {
			err = fmt.Errorf("it holds %q", text)
		}
		return err
	})
	if err := cluster.ApplyFiles(t.Context(), "", crds); err != nil {
		t.Fatal(err)
	}
	k.ApplyForTest(`
apiVersion: config.openshift.io/v1
kind: ImageDigestMirrorSet
metadata: {name: digests}
spec:
  imageDigestMirrors:
  - {source: quay.io/org, mirrors: [mirror.example/org], mirrorSourcePolicy: NeverContactSource}
---
apiVersion: config.openshift.io/v1
kind: ImageTagMirrorSet
metadata: {name: tags}
spec:
  imageTagMirrors:
  - {source: quay.io, mirrors: ["mirror.example:5000/quay"]}
---
apiVersion: operator.openshift.io/v1alpha1
kind: ImageContentSourcePolicy
metadata: {name: contents}
spec:
  repositoryDigestMirrors:
  - {source: docker.io, mirrors: [mirror.example/hub]}
---
apiVersion: config.openshift.io/v1
kind: Image
metadata: {name: cluster}
spec:
  registrySources: {insecureRegistries: ["mirror.example:5000"]}
`)
	const want = `[[registry]]
location = "docker.io"

[[registry.mirror]]
location = "mirror.example/hub"
pull-from-mirror = "digest-only"

[[registry]]
location = "quay.io/org"
blocked = true

[[registry.mirror]]
location = "mirror.example/org"
pull-from-mirror = "digest-only"

[[registry.mirror]]
location = "mirror.example:5000/quay/org"
insecure = true
pull-from-mirror = "tag-only"

[[registry]]
location = "quay.io"

[[registry.mirror]]
location = "mirror.example:5000/quay"
insecure = true
pull-from-mirror = "tag-only"

[[registry]]
location = "mirror.example:5000"
insecure = true
`
	file := filepath.Join(root, "etc/containers/registries.conf.d/60-archkeeper.conf")
	holds := func(want string) func(context.Context) error {
		return func(ctx context.Context) error {
			text, err := conf(ctx, k.Namespace)
			if err != nil {
				return err
			}
			if text != want {
				return fmt.Errorf("the ConfigMap holds %s", text)
			}
			data, err := os.ReadFile(file)
			if want == "" {
				if err == nil {
					return fmt.Errorf("the node holds %s", data)
				}
				return nil
			}
			if err == nil && !strings.HasSuffix(string(data), "\n"+want) {
				err = fmt.Errorf("the node holds %s", data)
			}
			return err
		}
	}
	k.Eventually("all four kinds reach the ConfigMap and the node", holds(want))

	for name, object := range map[string]string{
		"a path with capitals":    "source: quay.io/Org, mirrors: [mirror.example]",
		"a host of one word":      "source: quay.io, mirrors: [freezer/a]",
		"a tag":                   "source: 'quay.io/org:v1', mirrors: [mirror.example]",
		"a policy that is no one": "source: quay.io, mirrors: [mirror.example], mirrorSourcePolicy: Sometimes",
	} {
		if _, err := k.TryCreate("apiVersion: config.openshift.io/v1\nkind: ImageDigestMirrorSet\nmetadata: {name: bad}\nspec: {imageDigestMirrors: [{" + object + "}]}\n"); err == nil {
			t.Errorf("the API server takes %s", name)
		}
	}
	if _, err := k.TryCreate("apiVersion: config.openshift.io/v1\nkind: Image\nmetadata: {name: other}\nspec: {}\n"); err == nil {
		t.Error("the API server takes an Image of another name")
	}

	k.Apply("apiVersion: config.openshift.io/v1\nkind: ImageDigestMirrorSet\nmetadata: {name: conflict}\nspec:\n  imageDigestMirrors:\n  - {source: quay.io/org, mirrors: [mirror.example/org], mirrorSourcePolicy: AllowContactingSource}\n")
	k.Eventually("a conflict shows in the status", func(ctx context.Context) error {
		cm, err := cluster.Client.CoreV1().ConfigMaps(k.Namespace).Get(ctx, k.Namespace+"-registries-status", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var status mirrorcontroller.Status
		if err := json.Unmarshal([]byte(cm.Data["status"]), &status); err != nil {
			return controlplane.Final(err)
		}
		for _, o := range status.Objects {
			if o.Name == "conflict" && len(o.Conflicts) == 1 && !o.Accepted {
				return nil
			}
		}
		return fmt.Errorf("status %s", cm.Data["status"])
	})
	select {
	case event := <-recorder.Events:
		if !strings.HasPrefix(event, "Warning PolicyConflict") {
			t.Errorf("event %q", event)
		}
	case <-time.After(10 * time.Second):
		t.Error("no event")
	}
	if err := cluster.Delete(t.Context(), "", "apiVersion: config.openshift.io/v1\nkind: ImageDigestMirrorSet\nmetadata: {name: conflict}\n"); err != nil {
		t.Fatal(err)
	}

	k.Eventually("the file is whole before the CRDs go", holds(want))
	for _, name := range []string{"imagedigestmirrorsets.config.openshift.io", "imagetagmirrorsets.config.openshift.io", "images.config.openshift.io", "imagecontentsourcepolicies.operator.openshift.io"} {
		if err := cluster.Delete(t.Context(), "", "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: "+name+"}\n"); err != nil {
			t.Fatal(err)
		}
	}
	k.Eventually("no CRD, no rule, no file", holds(""))
}
