// Package archkeeper runs the programs of Archkeeper beside a control plane of
// tests/controlplane: the real binary, built from this checkout, and a
// registry with images for it to look at.
package archkeeper

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/archkeeper/archkeeper/tests/controlplane"
)

// Namespace and ServiceAccount of the provider in the cluster.
const (
	Namespace      = "archkeeper-system"
	ServiceAccount = "archkeeper-provider"
)

const readTimeout = 10 * time.Second

var nothing = log.New(io.Discard, "", 0)

// BinaryVariable of the environment names an archkeeper to test instead of
// building one.
const BinaryVariable = "ARCHKEEPER_BINARY"

// Binary builds cmd/archkeeper of this checkout and returns its path.
func Binary(ctx context.Context, log io.Writer) (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		return filepath.Abs(path)
	}
	return controlplane.BuildProgram(ctx, log, Root(), "./cmd/archkeeper")
}

// Root is the folder of the checkout.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// ProviderOptions say how to run the provider.
type ProviderOptions struct {
	// Name of the process, and of the Provider objects' prefix; "archkeeper"
	// when empty.
	Name string
	// PlainHTTPHosts are registries without TLS, HOST:PORT.
	PlainHTTPHosts []string
	// Deadline of a request; 5 s when zero, so that a busy machine changes no
	// result.
	Deadline time.Duration
	// Admission opens the admission port, for Provider.AdmissionURL.
	Admission bool
	// Flags after the others. They win.
	Flags []string

	command, account string // of StartAllInOne
}

// Provider is `archkeeper provider` as a process.
type Provider struct {
	// Process can be stopped, killed, frozen and started again.
	Process *controlplane.Process
	// URL of the data port, https://127.0.0.1:PORT, and of the probe port.
	URL, ProbeURL string
	// AdmissionURL is what a webhook configuration calls, with the secret part
	// of its path; CA is its caBundle. Empty without ProviderOptions.Admission.
	AdmissionURL string
	// CA of its serving certificate.
	CA *controlplane.CA
	// Name that ProviderOptions gave.
	Name string
	// CertDir holds tls.crt and tls.key, which it reads again when they change.
	CertDir string
	// CallerDir holds ca.crt, tls.crt and tls.key: the provider's authority and a
	// client certificate that it accepts, as our controllers have.
	CallerDir string
	// Kubeconfig with which it talks to the API server.
	Kubeconfig string

	cluster  *controlplane.Cluster
	deadline time.Duration
}

// access is what the provider may do: ask whose token it was given and what
// its owner may, read what the kubelet reads to pull an image, and what the
// placement policy is told of the cluster.
const access = `
{apiVersion: v1, kind: Namespace, metadata: {name: archkeeper-system}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: archkeeper-provider, namespace: archkeeper-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: archkeeper-provider}
rules:
  - {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
  - {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
  - {apiGroups: [""], resources: [secrets, serviceaccounts, nodes, namespaces], verbs: [get, list, watch]}
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: archkeeper-provider}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: archkeeper-provider}
subjects: [{kind: ServiceAccount, name: archkeeper-provider, namespace: archkeeper-system}]
`

// CallerSAN is the name in our controllers' client certificate.
const CallerSAN = "archkeeper-controllers.archkeeper-system.svc"

// StartProvider starts the provider with a certificate of its own authority;
// callers are proven by a client certificate, Gatekeeper's (when the cluster
// has Gatekeeper) or that in CallerDir, or by a token of the cluster.
func StartProvider(ctx context.Context, c *controlplane.Cluster, log io.Writer, o ProviderOptions) (*Provider, error) {
	if o.Name == "" {
		o.Name = "archkeeper"
	}
	if o.Deadline == 0 {
		o.Deadline = 5 * time.Second
	}
	if o.command == "" {
		o.command, o.account = "provider", ServiceAccount
	}
	binary, err := Binary(ctx, log)
	if err != nil {
		return nil, err
	}
	if err := c.Apply(ctx, "", access); err != nil {
		return nil, err
	}
	p := &Provider{
		Name: o.Name, cluster: c, deadline: o.Deadline,
		CertDir:   filepath.Join(c.StateDir(), "pki", o.Name),
		CallerDir: filepath.Join(c.StateDir(), "pki", o.Name+"-caller"),
	}
	if p.Kubeconfig, err = c.KubeconfigForServiceAccount(ctx, Namespace, o.account); err != nil {
		return nil, err
	}
	if err := p.issue(); err != nil {
		return nil, err
	}
	var ports [3]string
	for i := range ports {
		port, err := controlplane.FreePort()
		if err != nil {
			return nil, err
		}
		ports[i] = "127.0.0.1:" + strconv.Itoa(port)
	}
	p.URL, p.ProbeURL = "https://"+ports[0], "http://"+ports[2]
	args := []string{
		o.command, "--listen=" + ports[0], "--admission-listen=" + ports[1], "--probe-listen=" + ports[2],
		"--tls-cert=" + filepath.Join(p.CertDir, "tls.crt"), "--tls-key=" + filepath.Join(p.CertDir, "tls.key"),
		"--deadline=" + o.Deadline.String(), "--shutdown-delay=0s",
		"--client-ca=" + filepath.Join(p.CallerDir, "ca.crt"), "--client-san=" + CallerSAN,
	}
	if c.Gatekeeper != nil {
		args = append(args, "--client-ca="+c.Gatekeeper.CAFile, "--client-san="+controlplane.GatekeeperSAN)
	}
	if o.Admission {
		token := rand.Text()
		file := filepath.Join(c.StateDir(), "pki", o.Name+"-admission-token")
		if err := controlplane.WriteFile(file, []byte(token)); err != nil {
			return nil, err
		}
		p.AdmissionURL = "https://" + ports[1] + "/v1/admit/" + token
		args = append(args, "--admission-token-file="+file)
	}
	for _, host := range o.PlainHTTPHosts {
		args = append(args, "--plain-http-host="+host)
	}
	p.Process, err = c.Run(ctx, controlplane.Program{
		Name: o.Name,
		Path: binary,
		Args: append(args, o.Flags...),
		Env:  []string{"KUBECONFIG=" + p.Kubeconfig},
		Ready: func(ctx context.Context) error {
			return expectOK(ctx, p.ProbeURL+"/readyz")
		},
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// issue makes the authority, the serving certificate and a caller's.
func (p *Provider) issue() error {
	ca, err := controlplane.NewCA(p.Name + "-ca")
	if err != nil {
		return err
	}
	host := p.Name + "." + Namespace + ".svc"
	leaf, err := ca.Issue(controlplane.Leaf{
		CommonName: host, DNSNames: []string{host}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true,
	})
	if err != nil {
		return err
	}
	caller, err := ca.Issue(controlplane.Leaf{CommonName: CallerSAN, DNSNames: []string{CallerSAN}, Client: true})
	if err != nil {
		return err
	}
	p.CA = ca
	return errors.Join(leaf.Write(p.CertDir), caller.Write(p.CallerDir),
		controlplane.WriteFile(filepath.Join(p.CallerDir, "ca.crt"), ca.CertPEM))
}

// Register applies a Provider object of Gatekeeper for a path, such as
// "/v1/public".
func (p *Provider) Register(ctx context.Context, name, path string) error {
	object := map[string]any{
		"apiVersion": "externaldata.gatekeeper.sh/v1beta1",
		"kind":       "Provider",
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{
			"url":      p.URL + path,
			"timeout":  int(p.deadline.Seconds()) + 1,
			"caBundle": base64.StdEncoding.EncodeToString(p.CA.CertPEM),
		},
	}
	content, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encoding Provider %s: %w", name, err)
	}
	return p.cluster.Apply(ctx, "", string(content))
}

// HTTPClient trusts the provider's certificate and presents the given client
// certificate, if any. Each request makes a new connection.
func (p *Provider) HTTPClient(certificates ...tls.Certificate) *http.Client {
	return &http.Client{Timeout: readTimeout, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			RootCAs: p.CA.Pool(), MinVersion: tls.VersionTLS13, Certificates: certificates,
		},
		DisableKeepAlives: true,
	}}
}

// Image asks for one image as a person does: GET /v1/images. A token is sent
// unless it is empty. It returns status and body.
func (p *Provider) Image(ctx context.Context, client *http.Client, token, image string) (int, string, error) {
	return p.do(ctx, client, http.MethodGet, "/v1/images?image="+url.QueryEscape(image), token, "")
}

// Ask posts a ProviderRequest, as Gatekeeper does. It returns status and body.
func (p *Provider) Ask(ctx context.Context, client *http.Client, path, token string, keys ...string) (int, string, error) {
	request, err := json.Marshal(map[string]any{
		"apiVersion": "externaldata.gatekeeper.sh/v1beta1", "kind": "ProviderRequest",
		"request": map[string]any{"keys": keys},
	})
	if err != nil {
		return 0, "", fmt.Errorf("encoding a request: %w", err)
	}
	return p.do(ctx, client, http.MethodPost, path, token, string(request))
}

func (p *Provider) do(ctx context.Context, client *http.Client, method, path, token, body string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, method, p.URL+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, "", fmt.Errorf("asking the provider: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", fmt.Errorf("asking the provider: %w", err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return 0, "", fmt.Errorf("reading the provider's answer: %w", err)
	}
	return answer.StatusCode, string(content), nil
}

func expectOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(url + " answers " + answer.Status)
	}
	return nil
}
