package chart_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// applyForeignCRDs applies the definitions of cert-manager and the Prometheus
// operator whose objects the chart renders, from the versions in tools/crds.
func applyForeignCRDs(ctx context.Context, c *controlplane.Cluster) error {
	for module, files := range map[string][]string{
		"github.com/cert-manager/cert-manager": {"deploy/crds/cert-manager.io_certificates.yaml"},
		"github.com/prometheus-operator/prometheus-operator": {
			"example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
			"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
		},
	} {
		download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
		download.Dir = filepath.Join(archkeeper.Root(), "tools", "crds")
		var stderr bytes.Buffer
		download.Stderr = &stderr
		out, err := download.Output()
		if err != nil {
			return fmt.Errorf("download %s: %w\n%s%s", module, err, stderr.String(), out)
		}
		var found struct{ Dir string }
		if err := json.Unmarshal(out, &found); err != nil {
			return fmt.Errorf("download %s: %w", module, err)
		}
		for _, file := range files {
			if err := c.ApplyFiles(ctx, "", filepath.Join(found.Dir, file)); err != nil {
				return err
			}
		}
	}
	return nil
}
