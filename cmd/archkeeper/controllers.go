package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	certificatekeeper "github.com/archkeeper/archkeeper/controllers/certificates"
	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/controllers/importmode"
	"github.com/archkeeper/archkeeper/controllers/mirrors"
	"github.com/archkeeper/archkeeper/controllers/placement"
	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/provider/client"
	"github.com/archkeeper/archkeeper/provider/imageref"
	mirrorfiles "github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/reload"
	"github.com/archkeeper/archkeeper/rego"
)

// The controllers of --enable.
const (
	enablePlacement    = "placement"
	enableMirrors      = "mirrors"
	enableImportMode   = "importmode"
	enableCertificates = "certificates"
)

// controllersFlags are those of `archkeeper controllers`.
type controllersFlags struct {
	enable     []string
	namespace  string
	lease      string
	probe      string
	kubeconfig string
	log        logFlags

	config          string
	policyDir       string
	provider        string
	providerCA      string
	certFile        string
	keyFile         string
	tokenFile       string
	workers         int
	gatekeeper      string
	leaseDuration   time.Duration
	certificates    string
	mirrorsConfig   string
	importModeMode  string
	hosted          string
	delivery        string
	pools           []string
	maxDisruption   string
	mirrorsPolicy   bool
	protected       []string
	versionsMissing string
}

func (f *controllersFlags) add(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.enable, "enable", []string{enablePlacement}, "`CONTROLLERS` to run: placement, mirrors, importmode, certificates")
	flags.StringVar(&f.namespace, "namespace", "archkeeper-system", "`NAMESPACE` that we run in: of the Lease and of what the controllers keep")
	flags.StringVar(&f.lease, "lease", "archkeeper-controllers", "`NAME` of the Lease by which one replica leads, and by which admission knows that gated pods will be freed")
	flags.DurationVar(&f.leaseDuration, "lease-duration", 15*time.Second, "time after which a leader that is gone is replaced")
	flags.StringVar(&f.probe, "probe-listen", ":9090", "`ADDRESS` of health, readiness and metrics, without TLS")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server; else KUBECONFIG, else the pod's own access")
	f.log.add(flags)

	flags.StringVar(&f.config, "config", "", "`FILE` with the Configuration; its defaults when not given; followed when it changes, like all files")
	flags.StringVar(&f.policyDir, "policy-dir", "", "`DIR` of Rego files, or an OPA bundle, that extends or replaces the placement policy")
	flags.StringVar(&f.provider, "provider", "", "`URL` of the provider's data port, such as https://archkeeper-provider.archkeeper-system.svc:8443")
	flags.StringVar(&f.providerCA, "provider-ca", "", "PEM `FILE` of the authorities of the provider's certificate")
	flags.StringVar(&f.certFile, "tls-cert", "", "PEM `FILE` with the client certificate that is shown to the provider; it may come later")
	flags.StringVar(&f.keyFile, "tls-key", "", "PEM `FILE` with the key of --tls-cert")
	flags.StringVar(&f.tokenFile, "provider-token-file", "", "`FILE` with a bearer token for the provider, instead of a certificate")
	flags.IntVar(&f.workers, "placement-workers", placement.DefaultWorkers, "pods that are worked on at the same time")
	flags.StringVar(&f.gatekeeper, "gatekeeper-namespace", "gatekeeper-system", "`NAMESPACE` of Gatekeeper, whose pods are never placed")

	flags.StringVar(&f.certificates, "certificates", "", "`FILE` that says which certificates to keep")
	flags.StringVar(&f.mirrorsConfig, "mirrors-configmap", "archkeeper-mirrors", "`NAME` of the ConfigMap with the merged registries.conf")
	flags.StringVar(&f.delivery, "mirrors-delivery", string(mirrorfiles.DeliveryAuto), "who takes the merged file to nodes: auto, inspector (nobody), nodes (the node agent) or machineconfig")
	flags.StringSliceVar(&f.pools, "mirrors-pool", nil, "`POOL` of nodes that gets a MachineConfig; master and worker when not given; may be repeated")
	flags.StringVar(&f.maxDisruption, "mirrors-max-disruption", mirrorfiles.DisruptionReload.String(), "the worst that a MachineConfig may do to nodes: reload, drain or reboot; a worse change waits")
	flags.BoolVar(&f.mirrorsPolicy, "mirrors-policy", false, "write policy.json too")
	flags.StringSliceVar(&f.protected, "mirrors-protect", nil, "`IMAGE` that stays reachable whatever is blocked; may be repeated")
	flags.StringVar(&f.hosted, "hosted-kubeconfig", "", "`FILE` that reaches the hosted cluster whose import mode is kept, for a hosted control plane")
	flags.StringVar(&f.importModeMode, "importmode-mode", string(importmode.Auto), "auto, enforce or observe")
	flags.StringVar(&f.versionsMissing, "when-clusterversion-missing", "Hold", "without a ClusterVersion: Hold or Legacy")
}

func (f *controllersFlags) enabled(name string) bool { return slices.Contains(f.enable, name) }

// check finds what cannot be meant.
func (f *controllersFlags) check() error {
	all := []string{enablePlacement, enableMirrors, enableImportMode, enableCertificates}
	for _, name := range f.enable {
		if !slices.Contains(all, name) {
			return fmt.Errorf("controllers: --enable %q is none of %v", name, all)
		}
	}
	switch {
	case len(f.enable) == 0:
		return errors.New("controllers: --enable names no controller")
	case f.enabled(enablePlacement) && (f.provider == "" || f.providerCA == ""):
		return errors.New("controllers: placement needs --provider and --provider-ca")
	case (f.certFile == "") != (f.keyFile == ""):
		return errors.New("controllers: --tls-cert and --tls-key belong together")
	case f.enabled(enableCertificates) && f.certificates == "":
		return errors.New("controllers: certificates needs --certificates")
	case f.versionsMissing != "Hold" && f.versionsMissing != "Legacy":
		return fmt.Errorf("controllers: --when-clusterversion-missing %q is none of Hold, Legacy", f.versionsMissing)
	case f.leaseDuration < 3*time.Second:
		return fmt.Errorf("controllers: --lease-duration %s is shorter than 3s", f.leaseDuration)
	}
	return nil
}

func newControllersCommand(std streams) *cobra.Command {
	var f controllersFlags
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "Act in a cluster: free gated pods, merge mirrors, keep the import mode",
		Long: `Controllers runs the controllers of a cluster. Several replicas may run: one leads,
and another takes over within the lease duration, or at once when the leader ends
in an orderly way.

placement frees pods that wait on our scheduling gate. It asks the provider about
their images, and holds no credentials itself. mirrors merges the cluster's mirror
objects into a registries.conf. importmode keeps status.imageStreamImportMode
(OpenShift). certificates keeps the certificates of this installation.`,
		Example: `  archkeeper controllers --enable placement,mirrors \
    --provider https://archkeeper-provider.archkeeper-system.svc:8443 --provider-ca ca.crt \
    --tls-cert tls.crt --tls-key tls.key --config configuration.yaml`,
		GroupID: groupServe,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return f.run(cmd.Context(), std)
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// controllersParts are what every controller is made with.
type controllersParts struct {
	manager   manager.Manager
	cluster   *rest.Config
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	metrics   prometheus.Registerer
	log       *slog.Logger
	placement func(ctx context.Context) error // looks at every gated pod again; nil without placement
}

// run makes the manager and the controllers, and serves until ctx ends.
func (f *controllersFlags) run(ctx context.Context, std streams) error {
	logger, _, err := f.log.open(std.err)
	if err != nil {
		return err
	}
	log.SetLogger(logr.FromSlogHandler(logger.Handler()))
	cluster, err := kube.Config(f.kubeconfig, os.Getenv, "archkeeper/"+version)
	if err != nil {
		return err
	}
	if cluster == nil {
		return errors.New("controllers: no API server: run in a cluster, or name one with --kubeconfig or KUBECONFIG")
	}
	cluster.QPS, cluster.Burst = -1, -1 // the API server's priority and fairness decides

	parts := controllersParts{cluster: cluster, metrics: ctrlmetrics.Registry, log: logger}
	var ready atomic.Bool
	if parts.manager, err = manager.New(cluster, f.managerOptions(logger, cluster, &ready)); err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	if parts.client, err = kubernetes.NewForConfig(cluster); err != nil {
		return err
	}
	if parts.dynamic, err = dynamic.NewForConfig(cluster); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		add  func(context.Context, *controllersParts) error
	}{
		{enableCertificates, f.addCertificates},
		{enablePlacement, f.addPlacement},
		{enableMirrors, f.addMirrors},
		{enableImportMode, f.addImportMode},
	} {
		if !f.enabled(c.name) {
			continue
		}
		if err := c.add(ctx, &parts); err != nil {
			return err
		}
	}
	// The manager starts what needs no leader once the caches are filled.
	if err := parts.manager.Add(everywhere(func(ctx context.Context) {
		ready.Store(true)
		<-ctx.Done()
		ready.Store(false)
	})); err != nil {
		return err
	}
	logger.Info("starting", "version", version, "controllers", f.enable, "lease", f.namespace+"/"+f.lease, "probe", f.probe)
	return parts.manager.Start(ctx)
}

func (f *controllersFlags) managerOptions(logger *slog.Logger, cluster *rest.Config, ready *atomic.Bool) manager.Options {
	// A connection of its own: a burst of patches must not keep the Lease from being
	// renewed. Transports are shared unless something differs.
	election := rest.CopyConfig(cluster)
	election.Dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	duration, renew, retry := f.leaseDuration, f.leaseDuration*2/3, f.leaseDuration*2/15
	shutdown := 10 * time.Second
	options := manager.Options{
		Scheme:                        clientgoscheme.Scheme,
		Logger:                        logr.FromSlogHandler(logger.Handler()),
		LeaderElection:                true,
		LeaderElectionConfig:          election,
		LeaderElectionID:              f.lease,
		LeaderElectionNamespace:       f.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &duration,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
		GracefulShutdownTimeout:       &shutdown,
		HealthProbeBindAddress:        "0",
		Controller:                    ctrlconfig.Controller{},
		Metrics: metricsserver.Options{BindAddress: f.probe, ExtraHandlers: map[string]http.Handler{
			"/healthz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }),
			"/readyz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if !ready.Load() {
					http.Error(w, "not ready", http.StatusServiceUnavailable)
					return
				}
				fmt.Fprintln(w, "ok")
			}),
		}},
	}
	if f.enabled(enablePlacement) {
		options.Cache = placement.CacheOptions()
	}
	return options
}

// addPlacement adds the controller that frees gated pods.
func (f *controllersFlags) addPlacement(ctx context.Context, parts *controllersParts) error {
	asks := client.NewDeferred(client.Options{
		URL: f.provider, CAFile: f.providerCA, CertFile: f.certFile, KeyFile: f.keyFile, TokenFile: f.tokenFile, Log: parts.log,
	})
	evaluator, err := rego.New(ctx, rego.Options{UserPolicy: f.policyDir, Log: parts.log, Metrics: rego.NewMetrics(parts.metrics)})
	if err != nil {
		return err
	}
	var again atomic.Pointer[func()] // set once there is a controller to tell
	settings, follow, err := f.openPlacement(parts.log, func() {
		if tell := again.Load(); tell != nil {
			(*tell)()
		}
	})
	if err != nil {
		return err
	}
	nodes, err := kube.NewNodes(parts.client.CoreV1())
	if err != nil {
		return err
	}
	reconciler := placement.New(placement.Options{
		Reader: parts.manager.GetClient(), Live: parts.manager.GetAPIReader(), Writer: parts.manager.GetClient(),
		Inspector: asks, Evaluator: evaluator, Placement: settings, Pin: asks.Pin,
		Cluster: func() (known rego.Cluster) {
			known.Architectures, known.OperatingSystems = nodes.Kinds()
			return known
		},
		Recorder: parts.manager.GetEventRecorder("archkeeper-placement"), Workers: f.workers,
		Metrics: placement.NewMetrics(parts.metrics), Log: parts.log,
	})
	if err := reconciler.SetupWithManager(parts.manager); err != nil {
		return fmt.Errorf("placement: %w", err)
	}
	tell := func() {
		if err := reconciler.Reevaluate(ctx); err != nil {
			parts.log.Error("could not look again at gated pods", "error", err)
		}
	}
	again.Store(&tell)
	for _, run := range []func(context.Context){asks.Run, follow, nodes.Run, func(ctx context.Context) { _ = evaluator.Run(ctx) }} {
		if err := parts.manager.Add(everywhere(run)); err != nil {
			return err
		}
	}
	return nil
}

// openPlacement gives the configuration in force, and what follows its file.
func (f *controllersFlags) openPlacement(logger *slog.Logger, changed func()) (func() config.Placement, func(context.Context), error) {
	if f.config == "" {
		settings := config.Default().Placement.Excluding(f.namespace, f.gatekeeper)
		return func() config.Placement { return settings }, func(ctx context.Context) { <-ctx.Done() }, nil
	}
	value, err := reload.New([]string{f.config}, func(contents [][]byte) (config.Placement, error) {
		parsed, err := config.Parse(contents[0])
		return parsed.Placement.Excluding(f.namespace, f.gatekeeper), err
	}, reload.Options{Log: logger.With("file", "configuration"), OnChange: changed})
	if err != nil {
		return nil, nil, err
	}
	return value.Get, value.Run, nil
}

// addMirrors adds the controller that merges mirror objects.
func (f *controllersFlags) addMirrors(_ context.Context, parts *controllersParts) error {
	worst, ok := mirrorfiles.ParseDisruption(f.maxDisruption)
	if !ok {
		return fmt.Errorf("--mirrors-max-disruption %q is none of reload, drain, reboot", f.maxDisruption)
	}
	delivery := mirrorfiles.Delivery(f.delivery)
	if !slices.Contains([]mirrorfiles.Delivery{mirrorfiles.DeliveryAuto, mirrorfiles.DeliveryInspector, mirrorfiles.DeliveryNodes, mirrorfiles.DeliveryMachineConfig}, delivery) {
		return fmt.Errorf("--mirrors-delivery %q is none of auto, inspector, nodes, machineconfig", f.delivery)
	}
	var protected []imageref.Reference
	for _, image := range f.protected {
		ref, err := imageref.Parse(image)
		if err != nil {
			return fmt.Errorf("--mirrors-protect: %w", err)
		}
		protected = append(protected, ref)
	}
	c, err := mirrors.New(mirrors.Options{
		Dynamic: parts.dynamic, Discovery: parts.client.Discovery(), Client: parts.client,
		Namespace: f.namespace, Name: f.mirrorsConfig,
		Delivery: delivery, Pools: f.pools, MaxDisruption: worst, Policy: f.mirrorsPolicy, Protected: protected,
		Recorder: parts.manager.GetEventRecorderFor("archkeeper-mirrors"), //nolint:staticcheck // SA1019: it takes the older recorder
		Metrics:  parts.metrics, Log: parts.log,
	})
	if err != nil {
		return err
	}
	return parts.manager.Add(c)
}

// addImportMode adds the controller that keeps the import mode.
func (f *controllersFlags) addImportMode(_ context.Context, parts *controllersParts) error {
	policy, err := importmode.ParsePolicy(f.importModeMode)
	if err != nil {
		return fmt.Errorf("--importmode-mode: %w", err)
	}
	missing := importmode.Unset
	if f.versionsMissing == "Legacy" {
		missing = importmode.Legacy
	}
	governed, there := parts.dynamic, parts.client
	if f.hosted != "" {
		hosted, err := kube.Config(f.hosted, os.Getenv, "archkeeper/"+version)
		if err != nil {
			return fmt.Errorf("--hosted-kubeconfig: %w", err)
		}
		if governed, err = dynamic.NewForConfig(hosted); err != nil {
			return fmt.Errorf("--hosted-kubeconfig: %w", err)
		}
		if there, err = kubernetes.NewForConfig(hosted); err != nil {
			return fmt.Errorf("--hosted-kubeconfig: %w", err)
		}
	}
	c, err := importmode.New(importmode.Options{
		Governed: governed, Discovery: there.Discovery(), Own: parts.client, Hosted: f.hosted != "",
		Namespace: f.namespace, Name: "archkeeper-importmode", Policy: policy, WhenMissing: missing,
		Recorder: parts.manager.GetEventRecorderFor("archkeeper-importmode"), //nolint:staticcheck // SA1019: it takes the older recorder
		Metrics:  parts.metrics, Log: parts.log,
	})
	if err != nil {
		return err
	}
	return parts.manager.Add(c)
}

// addCertificates adds the controller that keeps our certificates.
func (f *controllersFlags) addCertificates(_ context.Context, parts *controllersParts) error {
	text, err := os.ReadFile(f.certificates)
	if err != nil {
		return err
	}
	file, err := certificatekeeper.ParseFile(text)
	if err != nil {
		return fmt.Errorf("%s: %w", f.certificates, err)
	}
	options := file.Options()
	options.Client, options.Dynamic, options.Namespace = parts.client, parts.dynamic, f.namespace
	options.Metrics, options.Log = parts.metrics, parts.log
	c, err := certificatekeeper.New(options)
	if err != nil {
		return err
	}
	return parts.manager.Add(c)
}

// everywhere runs in every replica, whoever leads.
type everywhere func(context.Context)

// Start implements manager.Runnable.
func (e everywhere) Start(ctx context.Context) error {
	e(ctx)
	return nil
}

// NeedLeaderElection tells the manager that it does not.
func (e everywhere) NeedLeaderElection() bool { return false }
