package archkeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/tests/controlplane"
)

// Chart is the folder of the Helm chart.
func Chart() string { return filepath.Join(Root(), "deploy", "charts", "archkeeper") }

// Helm runs Helm, of the version that tools/helm names, and gives its stdout. It
// is built once, like the other tools: a minute or two of a machine's time.
func Helm(ctx context.Context, arguments ...string) (string, error) {
	program := filepath.Join(Root(), ".cache", "tools", "helm")
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		if err := buildHelm(ctx, program); err != nil {
			return "", fmt.Errorf("building Helm: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, program, arguments...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("helm %s: %w\n%s", strings.Join(arguments, " "), err, stderr.String())
	}
	return string(out), nil
}

// buildHelm builds beside the program and renames, since test packages that run at
// the same time may all want it.
func buildHelm(ctx context.Context, program string) error {
	if err := os.MkdirAll(filepath.Dir(program), 0o750); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(program), "helm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	built := filepath.Join(dir, "helm")
	build := exec.CommandContext(ctx, "go", "build", "-o", built, "helm.sh/helm/v4/cmd/helm")
	build.Dir = filepath.Join(Root(), "tools", "helm")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return os.Rename(built, program)
}

// Rights are the service accounts, roles and bindings of the chart as manifests,
// for a release with settings such as "nodeAgent.enabled=true". What the chart
// names is NAMESPACE-controllers, NAMESPACE-node-agent, NAMESPACE-registries.
func Rights(ctx context.Context, namespace string, settings ...string) (string, error) {
	arguments := []string{"template", namespace, Chart(), "--namespace", namespace, "--set", "fullnameOverride=" + namespace}
	for _, setting := range settings {
		arguments = append(arguments, "--set", setting)
	}
	rendered, err := Helm(ctx, arguments...)
	if err != nil {
		return "", err
	}
	objects, err := controlplane.Decode(rendered)
	if err != nil {
		return "", fmt.Errorf("reading the chart: %w", err)
	}
	var manifests strings.Builder
	for _, object := range objects {
		switch object.GetKind() {
		case "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding":
		default:
			continue
		}
		text, err := yaml.Marshal(object)
		if err != nil {
			return "", fmt.Errorf("encoding the chart's %s: %w", object.GetName(), err)
		}
		fmt.Fprintf(&manifests, "---\n%s", text)
	}
	return manifests.String(), nil
}
