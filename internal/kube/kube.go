// Package kube finds the Kubernetes API server that a service talks to.
package kube

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Requests that a service may send: client-go's own limit, 5 a second, is made
// for one controller and would queue the reviews of a burst of callers.
const (
	qps   = 100
	burst = 200
)

// Config gives the configuration for the API server: that of the file, when
// one is named; else of the files of the environment variable KUBECONFIG; else
// of the pod that we run in. It is nil without an error when there is none of
// these. A person's ~/.kube/config is not looked at: a service that is started
// by hand does not act on whatever cluster came last.
func Config(file string, getenv func(string) string, userAgent string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	list := filepath.SplitList(getenv("KUBECONFIG"))
	switch {
	case file != "":
		config, err = load(clientcmd.ClientConfigLoadingRules{ExplicitPath: file})
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
		}
	case len(list) > 0:
		config, err = load(clientcmd.ClientConfigLoadingRules{Precedence: list})
		if err != nil {
			return nil, fmt.Errorf("KUBECONFIG: %w", err)
		}
	case getenv("KUBERNETES_SERVICE_HOST") != "":
		config, err = rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("the pod's own access to the API server: %w", err)
		}
	default:
		return nil, nil //nolint:nilnil // running without an API server is no fault
	}
	config.QPS, config.Burst, config.UserAgent = qps, burst, userAgent
	return config, nil
}

// PersonConfig is Config for a command that a person runs: when nothing else
// names a cluster, it is the one of ~/.kube/config, as for kubectl.
func PersonConfig(file string, getenv func(string) string, userAgent string) (*rest.Config, error) {
	own := filepath.Join(getenv("HOME"), ".kube", "config")
	if file == "" && getenv("KUBECONFIG") == "" && getenv("KUBERNETES_SERVICE_HOST") == "" && getenv("HOME") != "" {
		if info, err := os.Stat(own); err == nil && info.Mode().IsRegular() {
			file = own
		}
	}
	return Config(file, getenv, userAgent)
}

func load(rules clientcmd.ClientConfigLoadingRules) (*rest.Config, error) {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&rules, &clientcmd.ConfigOverrides{}).ClientConfig()
}
