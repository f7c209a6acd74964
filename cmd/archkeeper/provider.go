package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/provider/server"
)

// providerFlags are those of `archkeeper provider`.
type providerFlags struct {
	registries registryFlags
	cache      cacheFlags

	admission admissionFlags

	listen, probeListen    string
	certFile, keyFile      string
	clientCAs, clientNames []string
	clientCAWebhook        string
	open                   bool
	deadline               time.Duration

	kubeconfig       string
	secrets          string
	secretNamespaces []string
	pluginConfig     string
	pluginDir        string

	shutdownDelay time.Duration
	log           logFlags
	pprof         bool
}

// The values of --secrets.
const (
	secretsOnDemand = "on-demand"
	secretsCluster  = "cluster"
	secretsNone     = "none"
)

func (f *providerFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.listen, "listen", ":8443", "`ADDRESS` of the HTTPS data port")
	flags.StringVar(&f.probeListen, "probe-listen", ":9090", "`ADDRESS` of health, readiness and metrics, without TLS")
	flags.StringVar(&f.certFile, "tls-cert", "", "PEM `FILE` with the serving certificate and its chain; followed when it changes, like all files")
	flags.StringVar(&f.keyFile, "tls-key", "", "PEM `FILE` with the key of --tls-cert")
	flags.StringArrayVar(&f.clientCAs, "client-ca", nil, "PEM `FILE` of an authority that signs callers' certificates, such as Gatekeeper's ca.crt; may be repeated")
	flags.StringVar(&f.clientCAWebhook, "client-ca-webhook", "", "`NAME` of the ValidatingWebhookConfiguration whose caBundle signs callers' certificates as well: Gatekeeper's, which shows its new certificate before a mounted file can follow")
	flags.StringArrayVar(&f.clientNames, "client-san", nil, "subject alternative `NAME` of a known caller, such as gatekeeper-webhook-service.gatekeeper-system.svc; a certificate needs one of them; may be repeated")
	flags.BoolVar(&f.open, "insecure-no-client-auth", false, "answer everybody who reaches the data port")
	flags.DurationVar(&f.deadline, "deadline", server.DefaultDeadline, "time after which a request is answered with what is known; below the timeout of the Provider object")
	f.admission.add(flags)
	f.registries.add(flags)
	f.registries.addGuard(flags)
	f.cache.add(flags)

	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server, for bearer tokens and pull secrets; else KUBECONFIG, else the pod's own access")
	flags.StringVar(&f.secrets, "secrets", secretsOnDemand, "how pull secrets are read: on-demand (needs get), cluster (watched; needs list and watch everywhere) or none")
	flags.StringArrayVar(&f.secretNamespaces, "secret-namespace", nil, "`NAMESPACE` whose pull secrets may be read; all of them when not given; may be repeated")
	flags.StringVar(&f.pluginConfig, "image-credential-provider-config", "", "the kubelet's CredentialProviderConfig `FILE`")
	flags.StringVar(&f.pluginDir, "image-credential-provider-bin-dir", "", "`DIR` with the plugins of --image-credential-provider-config")

	flags.DurationVar(&f.shutdownDelay, "shutdown-delay", 5*time.Second, "time between being told to end and taking no more requests, for the Service's endpoints to follow")
	f.log.add(flags)
	flags.BoolVar(&f.pprof, "pprof", false, "serve Go's profiles on the probe port")
}

// check finds what cannot be meant.
func (f *providerFlags) check() error {
	switch {
	case len(f.clientCAs) == 0 && f.clientCAWebhook == "" && !f.open:
		return errors.New("provider: name the authority of your callers with --client-ca, or answer everybody with --insecure-no-client-auth")
	case f.certFile == "" || f.keyFile == "":
		return errors.New("provider: --tls-cert and --tls-key are needed")
	case f.deadline <= 0:
		return fmt.Errorf("provider: --deadline %s is no time to answer in", f.deadline)
	case f.secrets != secretsOnDemand && f.secrets != secretsCluster && f.secrets != secretsNone:
		return fmt.Errorf("provider: --secrets %q is none of on-demand, cluster, none", f.secrets)
	case (f.pluginConfig == "") != (f.pluginDir == ""):
		return errors.New("provider: --image-credential-provider-config and --image-credential-provider-bin-dir belong together")
	}
	return f.admission.check()
}

func newProviderCommand(std streams) *cobra.Command {
	var f providerFlags
	cmd := &cobra.Command{
		Use:   "provider",
		Short: "Answer Gatekeeper, and people, over HTTPS",
		Long: `Provider is the external data provider: image references in, supported platforms
out. It is the only part of Archkeeper that speaks to registries and that reads
pull secrets.

Callers of the data port prove themselves by a client certificate, whose
authority and subject alternative name are both checked, or by a bearer token of
a user who may use the path as a non-resource URL.

It refuses to connect to loopback, link-local and metadata addresses, because
images name hosts and anybody may name an image; --plain-http-host and
--allow-address let through what you name.`,
		Example: `  # Beside Gatekeeper
  archkeeper provider --tls-cert tls.crt --tls-key tls.key --client-ca gatekeeper-ca.crt \
    --client-san gatekeeper-webhook-service.gatekeeper-system.svc

  # A person with a token of the cluster
  curl --cacert ca.crt -H "Authorization: Bearer $(kubectl create token me)" \
    'https://archkeeper-provider.archkeeper-system.svc:8443/v1/images?image=busybox'`,
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

// run makes the provider's parts, from the registries up to the ports, and
// serves until ctx ends.
func (f *providerFlags) run(ctx context.Context, std streams) error {
	log, level, err := f.log.open(std.err)
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	cluster, err := kube.Config(f.kubeconfig, os.Getenv, "archkeeper/"+version)
	if err != nil {
		return err
	}
	keychain, secrets, err := f.openKeychain(ctx, cluster, log)
	if err != nil {
		return err
	}
	mirrors, err := f.registries.openMirrors(log)
	if err != nil {
		return err
	}
	connections, err := f.registries.openReach(log)
	if err != nil {
		return err
	}
	answers, closeCache, err := f.cache.open(log)
	if err != nil {
		return err
	}
	defer closeCache()
	inspector, err := registry.New(registry.Options{
		Keychain: keychain, Reach: connections, Mirrors: mirrors.Current, Cache: answers, Log: log, Metrics: metrics, UserAgent: "archkeeper/" + version,
	})
	if err != nil {
		return err
	}
	defer inspector.Close()
	tokens, err := openTokens(cluster, log)
	if err != nil {
		return err
	}

	hasTagMirrors := server.TagMirrors(mirrors.Current)
	options := server.Options{
		Inspector: inspector, HasTagMirrors: hasTagMirrors,
		CertFile: f.certFile, KeyFile: f.keyFile,
		ClientCAFiles: f.clientCAs, ClientNames: f.clientNames, Tokens: tokens, Open: f.open,
		Deadline: f.deadline, DrainDelay: f.shutdownDelay,
		Registerer: metrics, Gatherer: metrics, LogLevel: level, Pprof: f.pprof, Log: log, Ready: map[string]func() error{},
	}
	var background []func(context.Context)
	if f.clientCAWebhook != "" {
		if cluster == nil {
			return errors.New("provider: --client-ca-webhook needs an API server: run in a cluster, or name one with --kubeconfig or KUBECONFIG")
		}
		webhooks, err := admissionclient.NewForConfig(cluster)
		if err != nil {
			return fmt.Errorf("--client-ca-webhook: %w", err)
		}
		options.LiveCAs = &server.LiveCAs{}
		background = append(background, func(ctx context.Context) {
			kube.FollowCABundle(ctx, webhooks, f.clientCAWebhook, options.LiveCAs.Set, log)
		})
	}
	if f.admission.tokenFile != "" {
		admission, err := f.admission.open(ctx, admissionParts{
			inspector: inspector, hasTagMirrors: hasTagMirrors, cluster: cluster, metrics: metrics, log: log,
		})
		if err != nil {
			return err
		}
		options.AdmissionHandler, options.AdmissionTokenFile = admission.handler, f.admission.tokenFile
		background = append(background, admission.run...)
		maps.Copy(options.Ready, admission.ready)
		if options.Admission, err = net.Listen("tcp", f.admission.listen); err != nil { //nolint:noctx // at the start
			return err
		}
	}
	if secrets != nil {
		background = append(background, func(ctx context.Context) { _ = secrets.Run(ctx) })
		if f.secrets == secretsCluster {
			options.Ready["pull secrets"] = notYet(secrets.Synced)
		}
	}
	if options.Data, err = net.Listen("tcp", f.listen); err != nil { //nolint:noctx // at the start
		return err
	}
	if options.Probe, err = net.Listen("tcp", f.probeListen); err != nil { //nolint:noctx // at the start
		return err
	}
	service, err := server.New(options)
	if err != nil {
		return err
	}
	if f.open {
		log.Warn("everybody who reaches the data port is answered")
	} else if len(f.clientNames) == 0 {
		log.Warn("every client certificate of the named authorities is taken: --client-san names the callers")
	}
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, run := range background {
		running.Go(func() { run(beside) })
	}
	said := []any{"version", version, "data", options.Data.Addr().String(), "probe", options.Probe.Addr().String()}
	if options.Admission != nil {
		said = append(said, "admission", options.Admission.Addr().String())
	}
	log.Info("serving", append(said, "deadline", f.deadline, "tokens", tokens != nil, "pullSecrets", secrets != nil)...)
	return service.Run(ctx)
}

// openKeychain gives the credentials in the kubelet's order: pull secrets,
// files, plugins. secrets is nil without an API server.
func (f *providerFlags) openKeychain(ctx context.Context, cluster *rest.Config, log *slog.Logger) (keychain credentials.Chain, secrets *credentials.Secrets, err error) {
	if cluster != nil && f.secrets != secretsNone {
		client, err := coreclient.NewForConfig(cluster)
		if err != nil {
			return nil, nil, fmt.Errorf("pull secrets: %w", err)
		}
		secrets, err = credentials.NewSecrets(credentials.SecretsOptions{
			Client: client, Namespaces: f.secretNamespaces, OnDemand: f.secrets == secretsOnDemand, Logger: log,
		})
		if err != nil {
			return nil, nil, err
		}
		keychain = append(keychain, secrets)
	}
	files, err := f.registries.openKeychain(ctx, f.registries.authFiles)
	if err != nil {
		return nil, nil, err
	}
	if files != nil {
		keychain = append(keychain, files)
	}
	if f.pluginConfig != "" {
		config, err := credentials.ReadPluginConfig(f.pluginConfig)
		if err != nil {
			return nil, nil, err
		}
		keychain = append(keychain, credentials.NewPlugins(config, credentials.PluginsOptions{BinDir: f.pluginDir, Environ: os.Environ, Logger: log}))
	}
	return keychain, secrets, nil
}

// openTokens gives what checks bearer tokens, nil without an API server.
func openTokens(cluster *rest.Config, log *slog.Logger) (*server.Tokens, error) {
	if cluster == nil {
		return nil, nil //nolint:nilnil // bearer tokens are then refused, with the reason
	}
	authentication, err := authenticationclient.NewForConfig(cluster)
	if err != nil {
		return nil, fmt.Errorf("bearer tokens: %w", err)
	}
	authorization, err := authorizationclient.NewForConfig(cluster)
	if err != nil {
		return nil, fmt.Errorf("bearer tokens: %w", err)
	}
	return server.NewTokens(server.TokenOptions{
		Reviews: authentication.TokenReviews(), Access: authorization.SubjectAccessReviews(), Log: log,
	}), nil
}
