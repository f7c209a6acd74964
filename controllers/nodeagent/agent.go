package nodeagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/internal/loop"
	"github.com/archkeeper/archkeeper/internal/register"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

const (
	// checkInterval is the time between two looks at the node's files.
	checkInterval = 30 * time.Second
	callTimeout   = 10 * time.Second
)

// Options of an Agent. Every field without a default is required.
type Options struct {
	Client kubernetes.Interface
	// Namespace and Name of the mirror controller's ConfigMap.
	Namespace, Name string
	// Node is the name of the node, for its runtime's version; empty: not asked.
	Node string
	// Runtime whose files are kept.
	Runtime Runtime
	// Root is where the node's file system is mounted; default /.
	Root string
	// Reload makes CRI-O read its files again, after a change and once at the
	// beginning; nil when it does so by itself (auto_reload_registries). It is
	// never called for containerd.
	Reload func(context.Context) error
	// Keychain is what the node itself has to offer to registries; nil: not
	// known, and missing credentials are not reported.
	Keychain credentials.Keychain
	// Clock; default the real one.
	Clock clock.WithTicker
	// Metrics registers the agent's metrics; nil for none.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Agent keeps the files of one node. Make one with New, run it once.
type Agent struct {
	Options
	files   files
	loop    *loop.Loop
	metrics *metrics
	version string // of the runtime
	asked   bool
	pending bool // CRI-O may not have read the files as they are

	mu     sync.Mutex
	report Report
	raw    string
}

// Report tells what an agent has done on its node.
type Report struct {
	Node    string  `json:"node"`
	Runtime Runtime `json:"runtime"`
	// Version is the runtime's, as the node tells it.
	Version string `json:"runtimeVersion,omitempty"`
	// SHA256 of the handed over file that was looked at; empty before the first.
	SHA256 string `json:"sha256"`
	// Files that are ours on the node now.
	Files []string `json:"files"`
	// Refused says what was not written, and why.
	Refused []string `json:"refused,omitempty"`
	// Unsupported is what the runtime cannot follow.
	Unsupported []string `json:"unsupported,omitempty"`
	// Credentials names mirrors that the node has no credentials for. A runtime
	// asks mirrors with those of the node alone, never with a pod's.
	Credentials []string `json:"mirrorsWithoutCredentials,omitempty"`
	// Error of the last look; empty when all went well.
	Error string `json:"error,omitempty"`
}

// New makes an Agent and registers its metrics.
func New(o Options) (*Agent, error) {
	if o.Client == nil || o.Namespace == "" || o.Name == "" {
		return nil, errors.New("nodeagent: the ConfigMap has no name, or there is no client")
	}
	if _, err := ParseRuntime(string(o.Runtime)); err != nil {
		return nil, fmt.Errorf("nodeagent: %w", err)
	}
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	return &Agent{
		Options: o, files: files{root: o.Root}, loop: loop.New(o.Clock), metrics: m,
		pending: true, // an agent before this one may have been killed between its write and the signal
		report:  Report{Node: o.Node, Runtime: o.Runtime},
	}, nil
}

// Start runs the agent until ctx ends, and is then nil. The error is that the
// ConfigMap cannot be followed at all.
func (a *Agent) Start(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(a.Client, 0, informers.WithNamespace(a.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", a.Name).String()
		}))
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { a.loop.Nudge() }, UpdateFunc: func(_, _ any) { a.loop.Nudge() }, DeleteFunc: func(any) { a.loop.Nudge() },
	}); err != nil {
		return fmt.Errorf("follow ConfigMap %s: %w", a.Name, err)
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	a.loop.Run(ctx, func(ctx context.Context) time.Duration {
		if obj, found, err := informer.GetStore().GetByKey(a.Namespace + "/" + a.Name); err == nil && found {
			if cm, ok := obj.(*corev1.ConfigMap); ok {
				a.once(ctx, cm)
			}
		}
		return checkInterval
	})
	return nil
}

// once brings the node to what the ConfigMap says. Without a ConfigMap nothing
// is done: what is there stays.
func (a *Agent) once(ctx context.Context, cm *corev1.ConfigMap) {
	want := Desired{Conf: []byte(cm.Data[mirrors.KeyConf]), Delivery: mirrors.Delivery(cm.Data[mirrors.KeyDelivery])}
	sum := sha256.Sum256(want.Conf)
	next := Report{Node: a.Node, Runtime: a.Runtime, SHA256: hex.EncodeToString(sum[:]), Files: []string{}}
	var err error
	if stated := cm.Data[mirrors.KeySHA256]; stated != next.SHA256 {
		err = fmt.Errorf("ConfigMap %s is not what the mirror controller wrote: its sum is %s, it says %q", a.Name, next.SHA256, stated)
	} else {
		a.askVersion(ctx)
		next.Version = a.version
		if a.Runtime == CRIO {
			err = a.crio(ctx, want, &next)
		} else {
			err = a.containerd(want, &next)
		}
		a.missingCredentials(ctx, want, &next)
	}
	if err != nil {
		next.Error = err.Error()
	}
	a.publish(ctx, next)
}

func (a *Agent) crio(ctx context.Context, want Desired, next *Report) error {
	node, err := a.files.containers()
	if err != nil {
		return err
	}
	d := DecideDropIn(want, node, a.version)
	next.Unsupported = d.Reports
	if d.Refused != "" {
		next.Refused = []string{mirrors.DropInPath + ": " + d.Refused}
	}
	folder := a.files.path("etc/containers/registries.conf.d")
	switch d.Action {
	case Write:
		err = a.files.write(folder, mirrors.DropInName, d.Data)
	case Remove:
		err = a.files.remove(folder, mirrors.DropInName)
	case Keep:
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", d.Action, mirrors.DropInPath, err)
	}
	if d.Action != Keep {
		a.metrics.changes.WithLabelValues(string(d.Action)).Inc()
		a.pending = true
	}
	if d.Action == Write || d.Action == Keep && ours(node.DropIn) {
		next.Files = []string{mirrors.DropInPath}
	}
	if !a.pending || a.Reload == nil {
		a.pending = false
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := a.Reload(ctx); err != nil {
		return fmt.Errorf("make CRI-O read its files again: %w", err)
	}
	a.pending = false
	return nil
}

func (a *Agent) containerd(want Desired, next *Report) error {
	node, err := a.files.hosts()
	if err != nil {
		return err
	}
	decisions, reports := DecideHosts(want, node)
	next.Unsupported = reports
	if set, known := a.files.configPath(); known && !set && len(decisions) > 0 {
		next.Unsupported = append(next.Unsupported, "containerd's config.toml names no config_path with certs.d: it reads none of these files")
	}
	var failures []error
	for _, d := range decisions {
		path := "/etc/containerd/certs.d/" + d.Folder + "/hosts.toml"
		folder := a.files.path("etc/containerd/certs.d", d.Folder)
		var err error
		switch d.Action {
		case Write:
			err = a.files.write(folder, "hosts.toml", d.Data)
		case Remove:
			err = a.files.remove(folder, "hosts.toml")
		case Keep:
		}
		switch {
		case err != nil:
			failures = append(failures, fmt.Errorf("%s %s: %w", d.Action, path, err))
			continue
		case d.Action != Keep:
			a.metrics.changes.WithLabelValues(string(d.Action)).Inc()
		}
		if d.Refused != "" {
			next.Refused = append(next.Refused, path+": "+d.Refused)
		} else if d.Action != Remove {
			next.Files = append(next.Files, path)
		}
	}
	return errors.Join(failures...)
}

// askVersion asks once for the runtime's version.
func (a *Agent) askVersion(ctx context.Context) {
	if a.asked || a.Node == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	node, err := a.Client.CoreV1().Nodes().Get(ctx, a.Node, metav1.GetOptions{})
	if err != nil {
		a.Log.Warn("the runtime's version is not known", "node", a.Node, "err", err)
		return
	}
	a.asked, a.version = true, node.Status.NodeInfo.ContainerRuntimeVersion
}

// missingCredentials names mirrors for which the node has no credentials. Most
// need none; those of a source that is never contacted come first, because
// nothing else is tried there.
func (a *Agent) missingCredentials(ctx context.Context, want Desired, next *Report) {
	if a.Keychain == nil || want.Delivery != mirrors.DeliveryNodes {
		return
	}
	config, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Data: want.Conf})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var loud, plain []string
	seen := map[string]bool{}
	for _, e := range config.Entries() {
		for _, m := range e.Mirrors {
			if seen[m.Location] {
				continue
			}
			seen[m.Location] = true
			found, err := a.Keychain.Lookup(ctx, provider.Scope{}, m.Location)
			switch {
			case len(found) > 0:
			case err != nil:
				loud = append(loud, m.Location+": the node's credentials cannot be read: "+err.Error())
			case e.Blocked:
				loud = append(loud, m.Location+": the source "+e.Prefix+" is never contacted, so pulls fail if this mirror wants credentials")
			default:
				plain = append(plain, m.Location)
			}
		}
	}
	next.Credentials = slices.Concat(loud, plain)
}

// publish keeps the report, and logs it when it changed.
func (a *Agent) publish(ctx context.Context, next Report) {
	raw, err := json.Marshal(next)
	if err != nil {
		return
	}
	a.metrics.describe(next)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.raw == string(raw) {
		return
	}
	a.report, a.raw = next, string(raw)
	level := slog.LevelInfo
	if next.Error != "" || len(next.Refused) > 0 {
		level = slog.LevelWarn
	}
	a.Log.Log(ctx, level, "mirrors on this node", "sha256", next.SHA256, "files", strings.Join(next.Files, " "),
		"refused", strings.Join(next.Refused, "; "), "unsupported", len(next.Unsupported),
		"mirrors without credentials", len(next.Credentials), "err", next.Error)
}

// Current gives the last report.
func (a *Agent) Current() Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.report
}

// ServeHTTP answers with the last report as JSON.
func (a *Agent) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(a.Current()); err != nil {
		a.Log.Debug("the report was not read to its end", "err", err)
	}
}

type metrics struct {
	changes *prometheus.CounterVec
	state   *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_nodeagent_changes_total", Help: "Changes of the node's files, by what was done: write, remove.",
		}, []string{"action"}),
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "archkeeper_nodeagent_state",
			Help: "How many things the agent's report holds, by their type: file, refused, unsupported, without_credentials, error.",
		}, []string{"type"}),
	}
	return m, register.Metrics(reg, "nodeagent", m.changes, m.state)
}

func (m *metrics) describe(r Report) {
	m.state.WithLabelValues("file").Set(float64(len(r.Files)))
	m.state.WithLabelValues("refused").Set(float64(len(r.Refused)))
	m.state.WithLabelValues("unsupported").Set(float64(len(r.Unsupported)))
	m.state.WithLabelValues("without_credentials").Set(float64(len(r.Credentials)))
	failed := 0.0
	if r.Error != "" {
		failed = 1
	}
	m.state.WithLabelValues("error").Set(failed)
}
