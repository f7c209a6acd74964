// Package chart_test installs the chart on a real API server with a real
// Gatekeeper: what Helm renders is applied as it is, and the containers run as
// processes with the rendered arguments, the rendered service accounts, and
// folders in the place of mounted Secrets and ConfigMaps. Three things are
// rewritten, because nothing routes between pods here: names of Services in
// URLs, ports, and the paths of mounts.
package chart_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// installation is a release that runs here.
type installation struct {
	cluster   *controlplane.Cluster
	release   string
	namespace string
	// objects are what Helm applies, and hooks what it applies before removal.
	objects, hooks []*unstructured.Unstructured
	address        string         // of this machine, not loopback
	revision       string         // tells two that run side by side apart; empty for the only one
	binary         string         // the program; empty for the one of this checkout
	ports          map[string]int // by container and rendered port: "provider 8443"

	stop    context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex
	started map[string]*controlplane.Process
}

// render gives an installation of the chart with values, which is YAML.
func render(ctx context.Context, c *controlplane.Cluster, release, namespace, values string) (*installation, error) {
	return renderChart(ctx, c, archkeeper.Chart(), release, namespace, values)
}

func renderChart(ctx context.Context, c *controlplane.Cluster, chart, release, namespace, values string) (*installation, error) {
	file := filepath.Join(c.StateDir(), release+"-values.yaml")
	if err := controlplane.WriteFile(file, []byte(values)); err != nil {
		return nil, err
	}
	manifests, err := archkeeper.Helm(ctx, "template", release, chart, "--namespace", namespace, "--values", file, "--kube-version", "1.36.3")
	if err != nil {
		return nil, err
	}
	all, err := controlplane.Decode(manifests)
	if err != nil {
		return nil, err
	}
	i := &installation{cluster: c, release: release, namespace: namespace, ports: map[string]int{}, started: map[string]*controlplane.Process{}}
	for _, object := range all {
		if object.GetAnnotations()["helm.sh/hook"] != "" {
			i.hooks = append(i.hooks, object)
		} else {
			i.objects = append(i.objects, object)
		}
	}
	if i.address, err = ownAddress(); err != nil {
		return nil, err
	}
	for _, component := range []string{"provider", "controllers"} {
		for _, port := range []string{"8443", "8444", "9090"} {
			if i.ports[component+" "+port], err = controlplane.FreePort(); err != nil {
				return nil, err
			}
		}
	}
	return i, nil
}

// ownAddress is an address of this machine that an endpoint may have.
func ownAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("addresses of this machine: %w", err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no address but loopback")
}

func (i *installation) object(kind, suffix string) *unstructured.Unstructured {
	for _, o := range slices.Concat(i.objects, i.hooks) {
		if o.GetKind() == kind && strings.HasSuffix(o.GetName(), suffix) {
			return o
		}
	}
	return nil
}

// providerName is the provider's Service.
func (i *installation) providerName() string { return i.object("Service", "-provider").GetName() }

// route rewrites what needs a cluster's network: URLs of the provider's Service.
func (i *installation) route(text string) string {
	return strings.ReplaceAll(text, fmt.Sprintf("https://%s.%s.svc:8443", i.providerName(), i.namespace),
		"https://"+net.JoinHostPort(i.address, strconv.Itoa(i.ports["provider 8443"])))
}

// install applies the objects and starts the processes; ctx bounds the waiting.
// What runs goes on until remove, or until ctx of the package ends.
func (i *installation) install(ctx context.Context) error {
	if err := i.apply(ctx); err != nil {
		return err
	}
	return i.run(ctx)
}

// run starts the processes of what was applied.
func (i *installation) run(ctx context.Context) error {
	if err := i.endpoints(ctx); err != nil {
		return err
	}
	// As in a cluster, the order is nobody's: each container starts when its
	// volumes are there.
	running, stop := context.WithCancel(context.Background())
	i.stop = stop
	for _, component := range []string{"controllers", "provider"} {
		if i.object("Deployment", "-"+component) == nil {
			continue // all in one
		}
		if err := i.start(ctx, running, component); err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) apply(ctx context.Context) error {
	namespace := fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {pod-security.kubernetes.io/enforce: restricted}}}`, i.namespace)
	if err := i.cluster.Apply(ctx, "", namespace); err != nil {
		return err
	}
	certificates := i.object("ConfigMap", "-certificates")
	text, _, err := unstructured.NestedString(certificates.Object, "data", "certificates.yaml")
	if err != nil {
		return err
	}
	// The address of this machine becomes one of the provider's names.
	if text = i.route(text); !strings.Contains(text, "- "+i.address+"\n") {
		text = strings.Replace(text, "    hosts:\n", "    hosts:\n      - "+i.address+"\n", 1)
	}
	if err := unstructured.SetNestedField(certificates.Object, text, "data", "certificates.yaml"); err != nil {
		return err
	}
	return i.cluster.ApplyObjects(ctx, i.namespace, i.objects...)
}

// endpoints lead the provider's Service to this machine, in the place of a
// cluster's endpoint controller: the API server calls the webhook through it.
func (i *installation) endpoints(ctx context.Context) error {
	return i.cluster.Apply(ctx, i.namespace, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-here%[5]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
endpoints: [{addresses: [%[2]q], conditions: {ready: true, serving: true}}]
ports: [{name: https, port: %[3]d, protocol: TCP}, {name: admission, port: %[4]d, protocol: TCP}]
`, i.providerName(), i.address, i.ports["provider 8443"], i.ports["provider 8444"], i.revision))
}

// podSpec of a rendered Deployment or Job.
func podSpec(o *unstructured.Unstructured) (corev1.PodSpec, error) {
	var spec corev1.PodSpec
	found, _, err := unstructured.NestedMap(o.Object, "spec", "template", "spec")
	if err != nil {
		return spec, err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(found, &spec)
	return spec, err
}

// root is where a component's file system is imitated.
func (i *installation) root(component string) string {
	return filepath.Join(i.cluster.StateDir(), "pods", i.release+i.revision+"-"+component)
}

// command gives the arguments and environment of a pod's container as the kubelet
// would, with paths of mounts and ports rewritten.
func (i *installation) command(component string, spec *corev1.PodSpec) (arguments, environment []string) {
	c := spec.Containers[0]
	expand := map[string]string{}
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			switch e.ValueFrom.FieldRef.FieldPath {
			case "metadata.namespace":
				value = i.namespace
			case "metadata.name":
				value = i.release + "-" + component
			}
		}
		if e.ValueFrom != nil && e.ValueFrom.ResourceFieldRef != nil {
			continue // GOMEMLIMIT: of a container, not of this machine
		}
		expand["$("+e.Name+")"] = value
		environment = append(environment, e.Name+"="+value)
	}
	for _, a := range c.Args {
		for from, to := range expand {
			a = strings.ReplaceAll(a, from, to)
		}
		a = i.route(a)
		for _, m := range c.VolumeMounts {
			if name, value, ok := strings.Cut(a, "="); ok && (value == m.MountPath || strings.HasPrefix(value, m.MountPath+"/")) {
				a = name + "=" + i.root(component) + value
			}
		}
		for key, port := range i.ports {
			of, rendered, _ := strings.Cut(key, " ")
			if of == component && strings.HasSuffix(a, "listen=:"+rendered) {
				a = strings.TrimSuffix(a, rendered) + strconv.Itoa(port)
			}
		}
		arguments = append(arguments, a)
	}
	return arguments, environment
}

// start imitates the kubelet for one Deployment: volumes are kept in step, the
// container starts when those that are not optional are there, and it ends when
// the Deployment is deleted.
func (i *installation) start(ctx, running context.Context, component string) error {
	deployment := i.object("Deployment", "-"+component)
	spec, err := podSpec(deployment)
	if err != nil {
		return err
	}
	kubeconfig, err := i.cluster.KubeconfigForServiceAccount(ctx, i.namespace, spec.ServiceAccountName)
	if err != nil {
		return err
	}
	binary := i.binary
	if binary == "" {
		if binary, err = archkeeper.Binary(ctx, os.Stderr); err != nil {
			return err
		}
	}
	i.running.Go(func() {
		for running.Err() == nil {
			_ = i.mount(running, component, &spec) // what is missing comes later
			select {
			case <-running.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	err = controlplane.WaitFor(ctx, "the volumes of "+component+" are there", func(ctx context.Context) error {
		return i.mount(ctx, component, &spec)
	})
	if err != nil {
		return err
	}
	arguments, environment := i.command(component, &spec)
	probe := fmt.Sprintf("http://127.0.0.1:%d/readyz", i.ports[component+" 9090"])
	process, err := i.cluster.Run(ctx, controlplane.Program{
		Name: i.release + i.revision + "-" + component, Path: binary, Args: arguments, Env: append(environment, "KUBECONFIG="+kubeconfig),
		Ready: func(ctx context.Context) error { return expect(ctx, probe) },
	})
	if err != nil {
		return err
	}
	i.mu.Lock()
	i.started[component] = process
	i.mu.Unlock()
	i.running.Go(func() {
		for running.Err() == nil {
			_, err := i.cluster.Client.AppsV1().Deployments(i.namespace).Get(running, deployment.GetName(), metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_ = process.Stop()
				return
			}
			select {
			case <-running.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	return nil
}

// mount writes the pod's volumes, each atomically, as the kubelet does: files
// are links into a folder that is swapped.
func (i *installation) mount(ctx context.Context, component string, spec *corev1.PodSpec) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, m := range spec.Containers[0].VolumeMounts {
		at := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		v, dir := spec.Volumes[at], filepath.Join(i.root(component), m.MountPath)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		files := map[string][]byte{}
		switch {
		case v.Secret != nil:
			secret, err := i.cluster.Client.CoreV1().Secrets(i.namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
			if apierrors.IsNotFound(err) && v.Secret.Optional != nil && *v.Secret.Optional {
				continue
			}
			if err != nil {
				return err
			}
			files = secret.Data
		case v.ConfigMap != nil:
			configMap, err := i.cluster.Client.CoreV1().ConfigMaps(i.namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) && v.ConfigMap.Optional != nil && *v.ConfigMap.Optional {
				continue
			}
			if err != nil {
				return err
			}
			for name, text := range configMap.Data {
				files[name] = []byte(text)
			}
		default:
			continue // an empty folder
		}
		if err := swap(dir, files); err != nil {
			return err
		}
	}
	return nil
}

// swap brings a folder to hold files.
func swap(dir string, files map[string][]byte) error {
	same := true
	for name, content := range files {
		had, err := os.ReadFile(filepath.Join(dir, name))
		same = same && err == nil && bytes.Equal(had, content)
	}
	if same {
		return nil
	}
	next, err := os.MkdirTemp(dir, "..")
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(next, name), content, 0o600); err != nil {
			return err
		}
	}
	link := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(next), link); err != nil {
		return err
	}
	if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
		return err
	}
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// runHook applies the hooks of removal, runs the Job's container with its
// service account, and deletes them again, as Helm does.
func (i *installation) runHook(ctx context.Context) (output string, err error) {
	job := i.object("Job", "-uninstall")
	var others []*unstructured.Unstructured
	for _, h := range i.hooks {
		if h != job {
			others = append(others, h)
		}
	}
	if err := i.cluster.ApplyObjects(ctx, i.namespace, others...); err != nil {
		return "", err
	}
	spec, err := podSpec(job)
	if err != nil {
		return "", err
	}
	kubeconfig, err := i.cluster.KubeconfigForServiceAccount(ctx, i.namespace, spec.ServiceAccountName)
	if err != nil {
		return "", err
	}
	binary, err := archkeeper.Binary(ctx, os.Stderr)
	if err != nil {
		return "", err
	}
	arguments, environment := i.command("uninstall", &spec)
	cmd := exec.CommandContext(ctx, binary, arguments...)
	cmd.Env = append(environment, "KUBECONFIG="+kubeconfig, "PATH="+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("the hook: %w\n%s", err, out)
	}
	return string(out), i.deleteObjects(ctx, others)
}

// deleteObjects deletes and waits until they are gone.
func (i *installation) deleteObjects(ctx context.Context, objects []*unstructured.Unstructured) error {
	text, err := manifest(objects)
	if err != nil {
		return err
	}
	_, err = i.cluster.KubectlInput(ctx, text, "delete", "--ignore-not-found", "--timeout=90s", "-f", "-")
	return err
}

func manifest(objects []*unstructured.Unstructured) (string, error) {
	var b strings.Builder
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return "", err
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.String(), nil
}

// end stops what imitates the kubelet.
func (i *installation) end() {
	if i.stop != nil {
		i.stop()
	}
	i.running.Wait()
}

func expect(ctx context.Context, url string) error {
	text, err := get(ctx, url)
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 4<<20))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(url + " answers " + answer.Status)
	}
	return string(body), err
}
