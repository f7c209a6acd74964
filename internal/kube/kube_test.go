package kube_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/internal/kube"
)

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	write := func(name, server string) string {
		file := filepath.Join(dir, name)
		content := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + server + "}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n"
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	one, two := write("one", "https://one"), write("two", "https://two")
	for name, tc := range map[string]struct {
		file string
		env  map[string]string
		host string // "" for none
		err  string
	}{
		"nothing is there":                        {"", nil, "", ""},
		"a person's own configuration is left be": {"", map[string]string{"HOME": dir}, "", ""},
		"a named file":                            {one, nil, "https://one", ""},
		"a named file goes before KUBECONFIG":     {one, map[string]string{"KUBECONFIG": two}, "https://one", ""},
		"KUBECONFIG":                              {"", map[string]string{"KUBECONFIG": two, "KUBERNETES_SERVICE_HOST": "h"}, "https://two", ""},
		"a named file that is missing":            {filepath.Join(dir, "none"), nil, "", "none"},
		"a KUBECONFIG that is missing":            {"", map[string]string{"KUBECONFIG": filepath.Join(dir, "none")}, "", "KUBECONFIG"},
		"a pod without a token":                   {"", map[string]string{"KUBERNETES_SERVICE_HOST": "h"}, "", "the pod's own access"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := kube.Config(tc.file, func(key string) string { return tc.env[key] }, "agent")
			if (err == nil) != (tc.err == "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			if (config == nil) != (tc.host == "") || (config != nil && (config.Host != tc.host || config.UserAgent != "agent")) {
				t.Errorf("config %v, want host %q", config, tc.host)
			}
		})
	}
}
