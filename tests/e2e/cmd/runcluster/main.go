// Command runcluster shows Archkeeper at work on a real control plane: a
// kube-apiserver with Gatekeeper and two nodes that kwok plays, the provider,
// the policies, and a registry with images of several shapes. It creates two
// pods, prints what became of them and what to try by hand, and stays until
// it is interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

func main() {
	once := flag.Bool("once", false, "end after the pods were shown instead of staying")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Stderr, *once)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// shown are the images, by repository and tag.
var shown = []struct {
	repository string
	platforms  []string
}{
	{"shop/web:1", []string{"linux/amd64", "linux/arm64"}},
	{"shop/amd-only:1", []string{"linux/amd64"}},
	{"shop/arm-only:1", []string{"linux/arm64"}},
	{"shop/windows:1", []string{"windows/amd64:10.0.17763.1"}},
}

const namespace = "shop"

func run(ctx context.Context, out, progress io.Writer, once bool) error {
	cluster, err := controlplane.Start(ctx, controlplane.Options{Gatekeeper: &controlplane.GatekeeperOptions{}, Log: progress})
	if err != nil {
		return err
	}
	defer cluster.Stop()
	images, err := archkeeper.ServeImages()
	if err != nil {
		return err
	}
	defer images.Close()
	for _, image := range shown {
		if _, err := images.Push(ctx, image.repository, image.platforms...); err != nil {
			return err
		}
	}
	provider, err := archkeeper.StartProvider(ctx, cluster, progress, archkeeper.ProviderOptions{PlainHTTPHosts: []string{images.Host}})
	if err != nil {
		return err
	}
	if err := install(ctx, cluster, provider); err != nil {
		return err
	}
	if err := show(ctx, out, cluster, images); err != nil {
		return err
	}
	if err := explain(out, cluster, provider, images); err != nil {
		return err
	}
	if once {
		return nil
	}
	<-ctx.Done()
	fmt.Fprintln(progress, "ending")
	return nil
}

// install applies what an administrator would: the Provider objects, the
// constraint, the gate, and who may ask by hand.
func install(ctx context.Context, cluster *controlplane.Cluster, provider *archkeeper.Provider) error {
	for name, path := range map[string]string{"archkeeper": "/v1/public", "archkeeper-pin": "/v1/pin"} {
		if err := provider.Register(ctx, name, path); err != nil {
			return err
		}
	}
	policies := filepath.Join(archkeeper.Root(), "policies")
	constraint := filepath.Join(policies, "constraints", "image-architectures")
	if err := cluster.ApplyFiles(ctx, "", filepath.Join(constraint, "template.yaml"), filepath.Join(constraint, "samples", "constraint.yaml"),
		filepath.Join(policies, "mutations", "scheduling-gate", "mutation.yaml")); err != nil {
		return err
	}
	if err := cluster.Gatekeeper.WaitConstraint(ctx, "ImageArchitectures", "images-run-somewhere"); err != nil {
		return err
	}
	if err := cluster.Gatekeeper.WaitMutator(ctx, "Assign", "archkeeper-scheduling-gate"); err != nil {
		return err
	}
	if err := cluster.Apply(ctx, "", access); err != nil {
		return err
	}
	return controlplane.WaitFor(ctx, "the namespace is ready", func(ctx context.Context) error {
		_, err := cluster.Get(ctx, "ServiceAccount.v1", namespace, "default")
		return err
	})
}

// access lets the service account shop/reader ask the provider about images.
const access = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader, namespace: shop}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: image-reader}
rules: [{nonResourceURLs: [/v1/images], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: image-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: image-reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: shop}]
`

// show creates two pods and says what became of them.
func show(ctx context.Context, out io.Writer, cluster *controlplane.Cluster, images *archkeeper.Registry) error {
	fmt.Fprintf(out, "\nImages at %s, a registry on this machine:\n", images.Host)
	for _, image := range shown {
		fmt.Fprintf(out, "  %-16s %s\n", image.repository, strings.Join(image.platforms, ", "))
	}

	good := pod("good", images.Host+"/shop/web:1", images.Host+"/shop/arm-only:1")
	fmt.Fprintf(out, "\nPod good: shop/web:1 and shop/arm-only:1\n")
	created, err := cluster.Create(ctx, namespace, good)
	if err != nil {
		return fmt.Errorf("the pod that can run was refused: %w", err)
	}
	gates, ok := created[0].Object["spec"].(map[string]any)["schedulingGates"]
	if !ok {
		return errors.New("the pod that can run was admitted without the scheduling gate")
	}
	fmt.Fprintf(out, "  admitted; Gatekeeper has put the gate on it: %v\n", gates)
	fmt.Fprintln(out, "  (it stays gated: the placement controller, which takes the gate off, does not run here)")

	bad := pod("bad", images.Host+"/shop/amd-only:1", images.Host+"/shop/arm-only:1")
	fmt.Fprintf(out, "\nPod bad: shop/amd-only:1 and shop/arm-only:1\n")
	_, err = cluster.Create(ctx, namespace, bad)
	if err == nil {
		return errors.New("the pod that can run nowhere was admitted")
	}
	fmt.Fprintf(out, "  refused:\n    %s\n", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "\n    "))
	return nil
}

func pod(name, first, second string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"containers": [{"name": "web", "image": %q}, {"name": "helper", "image": %q}]}}`,
		name, first, second)
}

// explain prints lines to copy and paste.
func explain(out io.Writer, cluster *controlplane.Cluster, provider *archkeeper.Provider, images *archkeeper.Registry) error {
	ca := filepath.Join(cluster.StateDir(), "provider-ca.crt")
	if err := controlplane.WriteFile(ca, provider.CA.CertPEM); err != nil {
		return err
	}
	kubectl := cluster.Bin.Path("kubectl")
	fmt.Fprintf(out, `
Try it, in another terminal:

  export KUBECONFIG=%[1]s
  alias kubectl=%[2]s

  kubectl get nodes -L kubernetes.io/arch
  kubectl -n %[3]s get pods -o wide
  kubectl -n %[3]s run p --image=%[4]s/shop/windows:1 --overrides='{"spec":{"nodeSelector":{"kubernetes.io/os":"linux"}}}'

  # the provider, asked as an administrator does
  curl -sS --cacert %[5]s -H "Authorization: Bearer $(%[2]s -n %[3]s create token reader)" '%[6]s/v1/images?image=%[4]s/shop/web:1'

  # the logs of every process
  ls %[7]s

Ctrl-C ends all of it.
`, cluster.Kubeconfig, kubectl, namespace, images.Host, ca, provider.URL, filepath.Join(cluster.StateDir(), "logs"))
	return nil
}
