package controlplane

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// KubeconfigForUser issues a client certificate for a user and its groups and
// returns the path of a kubeconfig that uses it. RBAC decides what it may do.
func (c *Cluster) KubeconfigForUser(user string, groups ...string) (string, error) {
	pair, err := c.CA.Issue(Leaf{CommonName: user, Organizations: groups, Client: true})
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig(user, map[string]any{
		"client-certificate-data": base64.StdEncoding.EncodeToString(pair.CertPEM),
		"client-key-data":         base64.StdEncoding.EncodeToString(pair.KeyPEM),
	})
}

// Token asks the API server for a token of a service account, as "kubectl
// create token" does; it is valid for an hour. No audience means the API
// server's own.
func (c *Cluster) Token(ctx context.Context, namespace, serviceAccount string, audiences ...string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	answer, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceAccount, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking for a token of service account %s/%s: %w", namespace, serviceAccount, err)
	}
	return answer.Status.Token, nil
}

// KubeconfigForServiceAccount returns the path of a kubeconfig with a token of
// the service account, valid for an hour: what a pod of it would be.
func (c *Cluster) KubeconfigForServiceAccount(ctx context.Context, namespace, serviceAccount string) (string, error) {
	token, err := c.Token(ctx, namespace, serviceAccount)
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig("system:serviceaccount:"+namespace+":"+serviceAccount, map[string]any{"token": token})
}

// ConfigFor returns the REST configuration in a kubeconfig, without
// client-side rate limits.
func (c *Cluster) ConfigFor(kubeconfig string) (*rest.Config, error) { return configFrom(kubeconfig) }

func configFrom(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", kubeconfig, err)
	}
	config.QPS = -1
	return config, nil
}

func (c *Cluster) writeKubeconfig(user string, credentials map[string]any) (string, error) {
	content, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []any{map[string]any{"name": "local", "cluster": map[string]any{
			"server":                     c.server,
			"certificate-authority-data": base64.StdEncoding.EncodeToString(c.CA.CertPEM),
		}}},
		"users":           []any{map[string]any{"name": user, "user": credentials}},
		"contexts":        []any{map[string]any{"name": "local", "context": map[string]any{"cluster": "local", "user": user}}},
		"current-context": "local",
	})
	if err != nil {
		return "", fmt.Errorf("encoding the kubeconfig of %s: %w", user, err)
	}
	path := c.path("kubeconfigs", strings.NewReplacer(":", "-", "/", "-").Replace(user))
	return path, WriteFile(path, content)
}
