package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/archkeeper/archkeeper/controllers/admission"
	certificatekeeper "github.com/archkeeper/archkeeper/controllers/certificates"
	"github.com/archkeeper/archkeeper/controllers/importmode"
	"github.com/archkeeper/archkeeper/controllers/mirrors"
	"github.com/archkeeper/archkeeper/controllers/placement"
	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/internal/probes"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/client"
	"github.com/archkeeper/archkeeper/provider/imageref"
	mirrorfiles "github.com/archkeeper/archkeeper/provider/mirrors"
)

// The controllers of --enable.
const (
	enablePlacement    = "placement"
	enableMirrors      = "mirrors"
	enableImportMode   = "importmode"
	enableCertificates = "certificates"
)

// controllingFlags say which controllers run, and how.
type controllingFlags struct {
	enable        []string
	namespace     string
	lease         string
	leaseDuration time.Duration

	workers    int
	gatekeeper string

	certificates    string
	mirrorsConfig   string
	delivery        string
	pools           []string
	maxDisruption   string
	mirrorsPolicy   bool
	protected       []string
	hosted          string
	importModeMode  string
	versionsMissing string
}

func (f *controllingFlags) add(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.enable, "enable", []string{enablePlacement}, "`CONTROLLERS` to run: placement, mirrors, importmode, certificates")
	flags.StringVar(&f.namespace, "namespace", "archkeeper-system", "`NAMESPACE` that we run in: of the Lease and of what the controllers keep")
	flags.StringVar(&f.lease, "lease", "archkeeper-controllers", "`NAME` of the Lease by which one replica leads, and by which admission knows that gated pods will be freed")
	flags.DurationVar(&f.leaseDuration, "lease-duration", 15*time.Second, "time after which a leader that is gone is replaced")

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

func (f *controllingFlags) enabled(name string) bool { return slices.Contains(f.enable, name) }

// check finds what cannot be meant.
func (f *controllingFlags) check() error {
	all := []string{enablePlacement, enableMirrors, enableImportMode, enableCertificates}
	for _, name := range f.enable {
		if !slices.Contains(all, name) {
			return fmt.Errorf("--enable %q is none of %v", name, all)
		}
	}
	switch {
	case len(f.enable) == 0:
		return errors.New("--enable names no controller")
	case f.enabled(enableCertificates) && f.certificates == "":
		return errors.New("certificates needs --certificates")
	case f.versionsMissing != "Hold" && f.versionsMissing != "Legacy":
		return fmt.Errorf("--when-clusterversion-missing %q is none of Hold, Legacy", f.versionsMissing)
	case f.leaseDuration < 3*time.Second:
		return fmt.Errorf("--lease-duration %s is shorter than 3s", f.leaseDuration)
	}
	return nil
}

// askingFlags say how the provider is asked.
type askingFlags struct {
	provider, providerCA         string
	certFile, keyFile, tokenFile string
}

func (f *askingFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.provider, "provider", "", "`URL` of the provider's data port, such as https://archkeeper-provider.archkeeper-system.svc:8443")
	flags.StringVar(&f.providerCA, "provider-ca", "", "PEM `FILE` of the authorities of the provider's certificate")
	flags.StringVar(&f.certFile, "tls-cert", "", "PEM `FILE` with the client certificate that is shown to the provider; it may come later")
	flags.StringVar(&f.keyFile, "tls-key", "", "PEM `FILE` with the key of --tls-cert")
	flags.StringVar(&f.tokenFile, "provider-token-file", "", "`FILE` with a bearer token for the provider, instead of a certificate")
}

// asking is how placement learns about images.
type asking struct {
	inspector  provider.Inspector
	pin        func(ctx context.Context, images []string) map[string]string
	generation func(context.Context) (provider.Generation, error)
	run        []func(context.Context)
}

func (f *askingFlags) open(s *service) *asking {
	asks := client.NewDeferred(client.Options{
		URL: f.provider, CAFile: f.providerCA, CertFile: f.certFile, KeyFile: f.keyFile, TokenFile: f.tokenFile, Log: s.log,
	})
	return &asking{inspector: asks, pin: asks.Pin, generation: asks.Generation, run: []func(context.Context){asks.Run}}
}

// controllersFlags are those of `archkeeper controllers`.
type controllersFlags struct {
	service     serviceFlags
	controlling controllingFlags
	placement   placementFlags
	asking      askingFlags
}

func (f *controllersFlags) add(flags *pflag.FlagSet) {
	f.service.add(flags, "everything")
	f.controlling.add(flags)
	f.placement.add(flags)
	f.asking.add(flags)
}

// check finds what cannot be meant.
func (f *controllersFlags) check() error {
	switch {
	case f.controlling.enabled(enablePlacement) && (f.asking.provider == "" || f.asking.providerCA == ""):
		return errors.New("placement needs --provider and --provider-ca")
	case (f.asking.certFile == "") != (f.asking.keyFile == ""):
		return errors.New("--tls-cert and --tls-key belong together")
	}
	return f.controlling.check()
}

func newControllersCommand(std streams) *cobra.Command {
	var f controllersFlags
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "Act in a cluster: free gated pods, merge mirrors, keep the import mode",
		Long: `Controllers runs the controllers of a cluster. Several replicas may run: one leads,
and another takes over within the lease duration, or at once when the leader ends
in an orderly way. When the leader is silent for a third of the lease duration,
the others free gated pods already.

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
				return fmt.Errorf("controllers: %w", err)
			}
			return f.run(cmd.Context(), std)
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// run makes the manager and the controllers, and serves until ctx ends.
func (f *controllersFlags) run(ctx context.Context, std streams) error {
	s, err := f.service.open(std, ctrlmetrics.Registry, "archkeeper")
	if err != nil {
		return err
	}
	c, err := f.controlling.open(s)
	if err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	if f.controlling.enabled(enablePlacement) {
		place, err := f.placement.open(ctx, s, []string{f.controlling.namespace, f.controlling.gatekeeper}, func() { c.again(ctx) })
		if err != nil {
			return err
		}
		if err := f.controlling.addPlacement(c, place, f.asking.open(s)); err != nil { //nolint:contextcheck // the manager gives its own
			return err
		}
	}
	if err := f.controlling.addOthers(c); err != nil {
		return err
	}
	probing, stop := context.WithCancel(context.WithoutCancel(ctx)) // the port tells to the end
	var probe errgroup.Group
	probe.Go(func() error { return probes.Serve(probing, s.probe, s.probes(c.ready.Unmet)) })
	s.log.Info("starting", f.controlling.said(s)...)
	err = c.manager.Start(ctx)
	stop()
	return errors.Join(err, probe.Wait())
}

// controllers are a manager and what every controller is made with.
type controllers struct {
	*service
	manager manager.Manager
	client  kubernetes.Interface
	dynamic dynamic.Interface
	ready   probes.Conditions

	placement *placement.Reconciler // nil without placement
}

// again looks again at every gated pod.
func (c *controllers) again(ctx context.Context) {
	if c.placement == nil {
		return
	}
	if err := c.placement.Reevaluate(ctx); err != nil {
		c.log.Error("could not look again at gated pods", "error", err)
	}
}

// everywhere adds what runs in every replica, whoever leads.
func (c *controllers) everywhere(all ...func(context.Context)) error {
	for _, run := range all {
		if err := c.manager.Add(everywhere(run)); err != nil {
			return err
		}
	}
	return nil
}

// open makes the manager.
func (f *controllingFlags) open(s *service) (*controllers, error) {
	log.SetLogger(logr.FromSlogHandler(s.log.Handler()))
	if s.cluster == nil {
		return nil, errors.New("no API server: run in a cluster, or name one with --kubeconfig or KUBECONFIG")
	}
	cluster := rest.CopyConfig(s.cluster)
	cluster.QPS, cluster.Burst = -1, -1 // the API server's priority and fairness decides
	var filled atomic.Bool
	c := &controllers{service: s, ready: probes.Conditions{"controllers": notYet(filled.Load)}}
	var err error
	if c.manager, err = manager.New(cluster, f.managerOptions(s, cluster)); err != nil {
		return nil, err
	}
	if c.client, err = kubernetes.NewForConfig(cluster); err != nil {
		return nil, err
	}
	if c.dynamic, err = dynamic.NewForConfig(cluster); err != nil {
		return nil, err
	}
	// The manager starts what needs no leader once the caches are filled.
	return c, c.everywhere(func(ctx context.Context) {
		filled.Store(true)
		<-ctx.Done()
		filled.Store(false)
	})
}

func (f *controllingFlags) managerOptions(s *service, cluster *rest.Config) manager.Options {
	// A connection of its own: a burst of patches must not keep the Lease from being
	// renewed. Transports are shared unless something differs.
	election := rest.CopyConfig(cluster)
	election.Dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	// The other replicas look at the Lease every second, by default: the one that
	// takes over does so little later than it may.
	duration, renew, retry := f.leaseDuration, f.leaseDuration*2/3, f.leaseDuration/15
	shutdown := 10 * time.Second
	options := manager.Options{
		Scheme:                        clientgoscheme.Scheme,
		Logger:                        logr.FromSlogHandler(s.log.Handler()),
		LeaderElection:                true,
		LeaderElectionConfig:          election,
		LeaderElectionID:              f.lease,
		LeaderElectionNamespace:       f.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &duration,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
		GracefulShutdownTimeout:       &shutdown,
		Controller:                    ctrlconfig.Controller{},
		// The probe port is ours.
		HealthProbeBindAddress: "0",
		Metrics:                metricsserver.Options{BindAddress: "0"},
	}
	if f.enabled(enablePlacement) {
		options.Cache = placement.CacheOptions()
	}
	return options
}

// said is what the log says of controllers that begin.
func (f *controllingFlags) said(s *service) []any {
	return []any{"version", version, "controllers", f.enable, "lease", f.namespace + "/" + f.lease, "probe", s.probe.Addr().String()}
}

// addPlacement adds the controller that frees gated pods: in the replica that leads,
// and in one that has not seen the Lease renewed for a third of its duration, in which
// the leader renews it five times. It cannot lead yet, but it can free pods.
func (f *controllingFlags) addPlacement(c *controllers, place *placing, asks *asking) error {
	leader := admission.NewInterlock(admission.InterlockOptions{
		Client: c.client.CoordinationV1(), Namespace: f.namespace, Name: f.lease, Duration: f.leaseDuration / 3, Interval: f.leaseDuration / 15,
	})
	if err := c.everywhere(func(ctx context.Context) { _ = leader.Run(ctx) }); err != nil {
		return err
	}
	acts := func() bool {
		select {
		case <-c.manager.Elected():
			return true
		default:
			return leader.Settled() && !leader.Alive()
		}
	}
	c.placement = placement.New(placement.Options{
		Acts:   acts,
		Reader: c.manager.GetClient(), Live: c.manager.GetAPIReader(), Writer: c.manager.GetClient(),
		Inspector: asks.inspector, Evaluator: place.evaluator, Placement: place.settings, Pin: asks.pin, Cluster: place.cluster,
		Recorder: c.manager.GetEventRecorder("archkeeper-placement"), Workers: f.workers,
		Metrics: placement.NewMetrics(c.metrics), Log: c.log,
	})
	if err := c.placement.SetupWithManager(c.manager); err != nil {
		return fmt.Errorf("placement: %w", err)
	}
	if err := c.everywhere(place.run...); err != nil {
		return err
	}
	if err := c.everywhere(asks.run...); err != nil {
		return err
	}
	return c.everywhere(func(ctx context.Context) {
		c.placement.FollowDuty(ctx, clock.RealClock{})
	}, func(ctx context.Context) {
		c.placement.FollowGeneration(ctx, clock.RealClock{}, asks.generation)
	})
}

// addOthers adds the controllers that are enabled beside placement.
func (f *controllingFlags) addOthers(c *controllers) error {
	for _, each := range []struct {
		name string
		add  func(*controllers) error
	}{
		{enableCertificates, f.addCertificates},
		{enableMirrors, f.addMirrors},
		{enableImportMode, f.addImportMode},
	} {
		if !f.enabled(each.name) {
			continue
		}
		if err := each.add(c); err != nil {
			return err
		}
	}
	return nil
}

// addMirrors adds the controller that merges mirror objects.
func (f *controllingFlags) addMirrors(c *controllers) error {
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
	keeper, err := mirrors.New(mirrors.Options{
		Dynamic: c.dynamic, Discovery: c.client.Discovery(), Client: c.client,
		Namespace: f.namespace, Name: f.mirrorsConfig,
		Delivery: delivery, Pools: f.pools, MaxDisruption: worst, Policy: f.mirrorsPolicy, Protected: protected,
		Recorder: c.manager.GetEventRecorderFor("archkeeper-mirrors"), //nolint:staticcheck // SA1019: it takes the older recorder
		Metrics:  c.metrics, Log: c.log,
	})
	if err != nil {
		return err
	}
	return c.manager.Add(keeper)
}

// addImportMode adds the controller that keeps the import mode.
func (f *controllingFlags) addImportMode(c *controllers) error {
	policy, err := importmode.ParsePolicy(f.importModeMode)
	if err != nil {
		return fmt.Errorf("--importmode-mode: %w", err)
	}
	missing := importmode.Unset
	if f.versionsMissing == "Legacy" {
		missing = importmode.Legacy
	}
	governed, there := c.dynamic, c.client
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
	keeper, err := importmode.New(importmode.Options{
		Governed: governed, Discovery: there.Discovery(), Own: c.client, Hosted: f.hosted != "",
		Namespace: f.namespace, Name: "archkeeper-importmode", Policy: policy, WhenMissing: missing,
		Recorder: c.manager.GetEventRecorderFor("archkeeper-importmode"), //nolint:staticcheck // SA1019: it takes the older recorder
		Metrics:  c.metrics, Log: c.log,
	})
	if err != nil {
		return err
	}
	return c.manager.Add(keeper)
}

// addCertificates adds the controller that keeps our certificates.
func (f *controllingFlags) addCertificates(c *controllers) error {
	text, err := os.ReadFile(f.certificates)
	if err != nil {
		return err
	}
	file, err := certificatekeeper.ParseFile(text)
	if err != nil {
		return fmt.Errorf("%s: %w", f.certificates, err)
	}
	options := file.Options()
	options.Client, options.Dynamic, options.Namespace = c.client, c.dynamic, f.namespace
	options.Metrics, options.Log = c.metrics, c.log
	keeper, err := certificatekeeper.New(options)
	if err != nil {
		return err
	}
	return c.manager.Add(keeper)
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
