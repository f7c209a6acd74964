package controlplane

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// Options of a cluster. The zero value is a cluster with one amd64 and one
// arm64 node and without Gatekeeper.
type Options struct {
	// Nodes are kwok's, Ready when Start returns. Nil: one linux/amd64 and one
	// linux/arm64. An empty slice: none.
	Nodes []Node
	// Gatekeeper is nil for none.
	Gatekeeper *GatekeeperOptions
	// More flags for the programs, after those of the harness. They win.
	APIServerFlags, ControllerManagerFlags, SchedulerFlags []string
	// AuditLevel of the API server's audit log for all requests: None,
	// Metadata, Request or RequestResponse. Metadata when empty.
	AuditLevel string
	// Log takes progress, a few lines; os.Stderr when nil.
	Log io.Writer
}

// Cluster is a running control plane. All its methods may be called at once
// from several tests.
type Cluster struct {
	// Config is an administrator's, without client-side rate limits.
	Config *rest.Config
	// Client is a typed client of the administrator.
	Client kubernetes.Interface
	// Dynamic is an untyped client of the administrator.
	Dynamic dynamic.Interface
	// CA of the cluster: it has signed the API server and every client.
	CA *CA
	// Kubeconfig is the path of the administrator's.
	Kubeconfig string
	// Gatekeeper is nil when Options.Gatekeeper was.
	Gatekeeper *Gatekeeper
	// Bin is where the programs stand: kubectl, gator.
	Bin Binaries

	log      io.Writer
	options  Options
	stateDir string
	server   string
	etcd     string
	mapper   *restmapper.DeferredDiscoveryRESTMapper
	starter  *starter

	mu        sync.Mutex
	processes []*Process
	nodes     int
}

// startAttempts is how often Start tries: another process may take a free
// port between its choice and its use.
const startAttempts = 3

// Start builds what is missing and starts a cluster; everything is ready when
// it returns: about 10 s with Gatekeeper on two cores. ctx bounds the start
// alone. Stop ends the cluster. On an error nothing is left running, and the
// error ends with the logs.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Log == nil {
		o.Log = os.Stderr
	}
	if o.Nodes == nil {
		o.Nodes = []Node{{Arch: "amd64"}, {Arch: "arm64"}}
	}
	if o.AuditLevel == "" {
		o.AuditLevel = "Metadata"
	}
	bin, err := Build(ctx, o.Log)
	if err != nil {
		return nil, err
	}
	var attempts []error
	for range startAttempts {
		c, err := start(ctx, o, bin)
		if err == nil {
			return c, nil
		}
		logs := c.Logs()
		c.Stop()
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, fmt.Errorf("starting a cluster: %w", ctx.Err())
		}
		attempts = append(attempts, fmt.Errorf("starting a cluster: %w\n%s", err, logs))
		if ctx.Err() != nil || !strings.Contains(logs, "address already in use") {
			break
		}
	}
	return nil, errors.Join(attempts...)
}

// start returns a cluster also beside an error, for its logs and its end.
func start(ctx context.Context, o Options, bin Binaries) (*Cluster, error) {
	c := &Cluster{options: o, Bin: bin, log: o.Log, starter: newStarter()}
	began := time.Now()
	steps := []struct {
		what string
		do   func(context.Context) error
	}{
		{"making the state folder", c.makeState},
		{"starting etcd and kube-apiserver", c.startAPIServer},
		{"starting controllers and scheduler", c.startControllers},
		{"adding nodes", c.addNodes},
		{"starting Gatekeeper", c.startGatekeeper},
		{"waiting for the nodes", c.waitNodes},
	}
	for _, step := range steps {
		if err := step.do(ctx); err != nil {
			return c, fmt.Errorf("%s: %w", step.what, err)
		}
	}
	fmt.Fprintf(o.Log, "controlplane: up in %s, KUBECONFIG=%s\n", time.Since(began).Round(100*time.Millisecond), c.Kubeconfig)
	return c, nil
}

// Stop ends every process, the last started first, and removes the state
// folder. What runs beside the cluster gets SIGTERM and its grace; the control
// plane's own state is thrown away, so it is killed.
func (c *Cluster) Stop() {
	c.end()
	if c.stateDir != "" {
		os.RemoveAll(c.stateDir)
	}
}

// end ends every process and keeps the state folder.
func (c *Cluster) end() {
	c.mu.Lock()
	processes := c.processes
	c.mu.Unlock()
	for i := len(processes) - 1; i >= 0; i-- {
		p := processes[i]
		if !p.running() {
			continue
		}
		end := p.Stop
		if own[p.program.Name] {
			end = p.Kill
		}
		if err := end(); err != nil && !errors.Is(err, errNotRunning) {
			fmt.Fprintln(c.log, "controlplane:", err)
		}
	}
	c.starter.close()
}

// own are the control plane's own processes.
var own = map[string]bool{
	"etcd": true, "kube-apiserver": true, "kube-controller-manager": true,
	"kube-scheduler": true, "kwok": true, "gatekeeper": true,
}

// StateDir is the folder of the cluster's files: logs/, pki/, audit.log. Tests
// may keep their own files there; it is removed with the cluster.
func (c *Cluster) StateDir() string { return c.stateDir }

// Server is the API server's URL.
func (c *Cluster) Server() string { return c.server }

// EtcdURL is where etcd serves its JSON API, http://127.0.0.1:PORT: for what would
// take too long through the API server.
func (c *Cluster) EtcdURL() string { return c.etcd }

// Logs returns the last lines of each process's log.
func (c *Cluster) Logs() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, p := range c.processes {
		b.WriteString(p.tail(0))
	}
	return b.String()
}

func (c *Cluster) makeState(context.Context) error {
	dir, err := os.MkdirTemp("", "archkeeper-cluster-*")
	if err != nil {
		return err
	}
	c.stateDir = dir
	for _, sub := range []string{"logs", "pki", "etcd"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	c.CA, err = NewCA("cluster")
	return err
}

// path of a file in the state folder.
func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.stateDir}, elements...)...)
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	etcdClient, etcdPeer, api := ports[0], ports[1], ports[2]
	c.server = "https://127.0.0.1:" + strconv.Itoa(api)
	if err := c.writeAPIServerFiles(); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	etcdURL := "http://127.0.0.1:" + strconv.Itoa(etcdClient)
	c.etcd = etcdURL
	peerURL := "http://127.0.0.1:" + strconv.Itoa(etcdPeer)
	if _, err := c.Run(ctx, Program{Name: "etcd", Path: c.Bin.Path("etcd"), Args: []string{
		"--data-dir=" + c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL,
		"--initial-cluster=default=" + peerURL,
	}}); err != nil {
		return err
	}
	_, err = c.Run(ctx, Program{Name: "kube-apiserver", Path: c.Bin.Path("kube-apiserver"), Args: append([]string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + strconv.Itoa(api),
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=" + c.path("pki", "apiserver", "tls.crt"), "--tls-private-key-file=" + c.path("pki", "apiserver", "tls.key"),
		"--client-ca-file=" + c.path("pki", "ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("pki", "sa.pub"), "--service-account-signing-key-file=" + c.path("pki", "sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged=true",
		"--audit-policy-file=" + c.path("audit-policy.yaml"), "--audit-log-path=" + c.path("audit.log"), "--audit-log-maxsize=100000",
	}, c.options.APIServerFlags...), Ready: c.ready})
	return err
}

// ready asks the API server; a 200 means that its start-up hooks have run.
func (c *Cluster) ready(ctx context.Context) error {
	return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

func (c *Cluster) writeAPIServerFiles() error {
	server, err := c.CA.Issue(Leaf{
		CommonName: "kube-apiserver", Server: true,
		DNSNames: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPs:      []net.IP{loopback, net.IPv4(10, 96, 0, 1)},
	})
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the key of service accounts: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encoding the public key of service accounts: %w", err)
	}
	audit := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: " + c.options.AuditLevel + "}]\n"
	return errors.Join(
		server.Write(c.path("pki", "apiserver")),
		WriteFile(c.path("pki", "ca.crt"), c.CA.CertPEM),
		WriteFile(c.path("pki", "sa.key"), keyPEM),
		WriteFile(c.path("pki", "sa.pub"), pemBlock("PUBLIC KEY", public)),
		WriteFile(c.path("audit-policy.yaml"), []byte(audit)),
	)
}

// connect makes the administrator's clients; nothing is asked yet.
func (c *Cluster) connect() error {
	var err error
	if c.Kubeconfig, err = c.KubeconfigForUser("admin", "system:masters"); err != nil {
		return err
	}
	if c.Config, err = configFrom(c.Kubeconfig); err != nil {
		return err
	}
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		return fmt.Errorf("making a dynamic client: %w", err)
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Client.Discovery()))
	return nil
}

func (c *Cluster) startControllers(ctx context.Context) error {
	kubeconfigs := map[string]string{}
	for _, user := range []string{"system:kube-controller-manager", "system:kube-scheduler"} {
		path, err := c.KubeconfigForUser(user)
		if err != nil {
			return err
		}
		kubeconfigs[user] = path
	}
	kwok, err := c.KubeconfigForUser("kwok", "system:masters")
	if err != nil {
		return err
	}
	stages, err := c.writeStages(ctx)
	if err != nil {
		return err
	}
	if _, err := c.Run(ctx, Program{Name: "kube-controller-manager", Path: c.Bin.Path("kube-controller-manager"), Args: append([]string{
		"--kubeconfig=" + kubeconfigs["system:kube-controller-manager"],
		"--use-service-account-credentials=true", "--service-account-private-key-file=" + c.path("pki", "sa.key"),
		"--root-ca-file=" + c.path("pki", "ca.crt"),
		"--allocate-node-cidrs=false", "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=200", "--kube-api-burst=400",
	}, c.options.ControllerManagerFlags...)}); err != nil {
		return err
	}
	if _, err := c.Run(ctx, Program{Name: "kube-scheduler", Path: c.Bin.Path("kube-scheduler"), Args: append([]string{
		"--kubeconfig=" + kubeconfigs["system:kube-scheduler"], "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=200", "--kube-api-burst=400",
	}, c.options.SchedulerFlags...)}); err != nil {
		return err
	}
	_, err = c.Run(ctx, Program{Name: "kwok", Path: c.Bin.Path("kwok"), Args: []string{
		"--kubeconfig=" + kwok, "--manage-all-nodes=true", "--config=" + stages,
	}})
	return err
}

// writeStages puts kwok's stages into one file: nodes become Ready and send
// heartbeats, pods bound to them become Running, those of a Job end.
func (c *Cluster) writeStages(ctx context.Context) (string, error) {
	module, err := ModuleDir(ctx, "sigs.k8s.io/kwok")
	if err != nil {
		return "", err
	}
	var all bytes.Buffer
	for _, pattern := range []string{"node/fast/node-*.yaml", "node/heartbeat-with-lease/node-*.yaml", "pod/fast/pod-*.yaml"} {
		files, err := filepath.Glob(filepath.Join(module, "kustomize", "stage", pattern))
		if err != nil || len(files) == 0 {
			return "", fmt.Errorf("kwok's stages %s in %s: none found (%w)", pattern, module, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return "", fmt.Errorf("reading a stage of kwok: %w", err)
			}
			all.WriteString("---\n")
			all.Write(content)
		}
	}
	path := c.path("kwok-stages.yaml")
	return path, WriteFile(path, all.Bytes())
}

// Kubectl runs the kubectl of the cluster's version as the administrator and
// returns what it wrote to stdout. An error holds what it wrote to stderr.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.KubectlInput(ctx, "", args...)
}

// KubectlInput is Kubectl with a standard input, for "apply -f -".
func (c *Cluster) KubectlInput(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.Bin.Path("kubectl"), args...)
	cmd.Env = []string{"KUBECONFIG=" + c.Kubeconfig, "HOME=" + c.stateDir, "PATH=" + os.Getenv("PATH"), "NO_COLOR=1"}
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// FreePort returns a port of 127.0.0.1 on which nothing listens.
func FreePort() (int, error) {
	ports, err := freePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

// freePorts draws ports below the range from which the kernel takes those of
// outgoing connections: nothing takes them but another drawing.
func freePorts(n int) ([]int, error) {
	const first, count, tries = 20000, 12000, 200
	var ports []int
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for range tries {
		if len(ports) == n {
			return ports, nil
		}
		draw, err := rand.Int(rand.Reader, big.NewInt(count))
		if err != nil {
			return nil, fmt.Errorf("drawing a port: %w", err)
		}
		port := first + int(draw.Int64())
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		held = append(held, l)
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("found %d free ports of %d in %d tries", len(ports), n, tries)
}
