package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/archkeeper/archkeeper/internal/probes"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/registriesconf"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/provider/reload"
	"github.com/archkeeper/archkeeper/provider/server"
)

// inspectingFlags say how a service learns about images: through which mirrors,
// with which credentials, and what it remembers.
type inspectingFlags struct {
	registries registryFlags
	cache      cacheFlags

	secrets          string
	secretNamespaces []string
	nodePullSecret   string
	pluginConfig     string
	pluginDir        string
}

// The values of --secrets.
const (
	secretsOnDemand = "on-demand"
	secretsCluster  = "cluster"
	secretsNone     = "none"
)

func (f *inspectingFlags) add(flags *pflag.FlagSet) {
	f.registries.add(flags)
	f.registries.addGuard(flags)
	f.cache.add(flags)
	flags.StringVar(&f.secrets, "secrets", secretsOnDemand, "how pull secrets are read: on-demand (needs get), cluster (watched; needs list and watch everywhere) or none")
	flags.StringArrayVar(&f.secretNamespaces, "secret-namespace", nil, "`NAMESPACE` whose pull secrets may be read; all of them when not given; may be repeated")
	flags.StringVar(&f.nodePullSecret, "node-pull-secret", "", "`NAMESPACE/NAME` of a pull secret that is used for every image, as a node's own credentials are, such as openshift-config/pull-secret; read as --secrets says, and on demand with none")
	flags.StringVar(&f.pluginConfig, "image-credential-provider-config", "", "the kubelet's CredentialProviderConfig `FILE`")
	flags.StringVar(&f.pluginDir, "image-credential-provider-bin-dir", "", "`DIR` with the plugins of --image-credential-provider-config")
}

// check finds what cannot be meant.
func (f *inspectingFlags) check() error {
	namespace, name, slash := strings.Cut(f.nodePullSecret, "/")
	switch {
	case f.secrets != secretsOnDemand && f.secrets != secretsCluster && f.secrets != secretsNone:
		return fmt.Errorf("--secrets %q is none of on-demand, cluster, none", f.secrets)
	case f.nodePullSecret != "" && (!slash || namespace == "" || name == "" || strings.Contains(name, "/")):
		return fmt.Errorf("--node-pull-secret %q is not NAMESPACE/NAME", f.nodePullSecret)
	case (f.pluginConfig == "") != (f.pluginDir == ""):
		return errors.New("--image-credential-provider-config and --image-credential-provider-bin-dir belong together")
	}
	return nil
}

// errNotYetRead is why what is watched is not ready.
var errNotYetRead = errors.New("not yet read")

// inspecting is the provider's side: what asks registries, what runs beside it
// until the context ends, and what must hold before it is ready.
type inspecting struct {
	inspector     *registry.Inspector
	hasTagMirrors func(imageref.Reference) bool
	generation    *server.Generation
	secrets       *credentials.Secrets // nil when none are read
	run           []func(context.Context)
	ready         probes.Conditions
	close         func() // when nobody asks any more
}

// open makes the parts, from credentials to the inspector.
func (f *inspectingFlags) open(ctx context.Context, s *service) (*inspecting, error) {
	i := &inspecting{ready: probes.Conditions{}}
	var mirrors *registriesconf.Source
	i.generation = server.NewGeneration(
		func(context.Context) { mirrors.Look() },
		func(ctx context.Context) {
			if i.secrets != nil {
				i.secrets.Recheck(ctx)
			}
		},
	)
	keychain, err := f.openKeychain(ctx, s, i)
	if err != nil {
		return nil, err
	}
	if mirrors, err = f.registries.openMirrors(s.log, i.generation.Changed); err != nil {
		return nil, err
	}
	i.hasTagMirrors = server.TagMirrors(mirrors.Current)
	connections, err := f.registries.openReach(s.log)
	if err != nil {
		return nil, err
	}
	answers, closeCache, err := f.cache.open(s.log, s.metrics) //nolint:contextcheck // what waits is written when ctx has ended
	if err != nil {
		return nil, err
	}
	i.inspector, err = registry.New(registry.Options{
		Keychain: keychain, Reach: connections, Mirrors: mirrors.Current, Cache: answers, Log: s.log, Metrics: s.metrics, UserAgent: "archkeeper/" + version,
	})
	if err != nil {
		closeCache()
		return nil, err
	}
	i.close = func() {
		i.inspector.Close()
		closeCache()
	}
	return i, nil
}

// directly is how placement learns about images in the same process.
func (i *inspecting) directly() *asking {
	return &asking{
		inspector: i.inspector, pin: server.Pinner(i.inspector, i.hasTagMirrors),
		generation: func(ctx context.Context) (provider.Generation, error) { return i.generation.Now(ctx), nil },
	}
}

// openKeychain gives the credentials in the kubelet's order: pull secrets, the
// node's files and secret, plugins.
func (f *inspectingFlags) openKeychain(ctx context.Context, s *service, i *inspecting) (keychain credentials.Chain, err error) {
	if err := f.openSecrets(s, i); err != nil {
		return nil, err
	}
	if i.secrets != nil && f.secrets != secretsNone {
		keychain = append(keychain, i.secrets)
	}
	files, err := f.registries.openKeychain(ctx, f.registries.authFiles)
	if err != nil {
		return nil, err
	}
	if files != nil {
		keychain = append(keychain, files)
		changes, err := reload.New(f.registries.authFiles, func([][]byte) (struct{}, error) { return struct{}{}, nil },
			reload.Options{Log: s.log.With("file", "credentials"), OnChange: i.generation.Changed})
		if err != nil {
			return nil, err
		}
		i.run = append(i.run, changes.Run)
	}
	if f.nodePullSecret != "" {
		namespace, name, _ := strings.Cut(f.nodePullSecret, "/")
		shared, err := i.secrets.Shared(types.NamespacedName{Namespace: namespace, Name: name})
		if err != nil {
			return nil, err
		}
		keychain = append(keychain, shared)
	}
	if i.secrets != nil { // after Shared, which adds a watch
		i.run = append(i.run, func(ctx context.Context) { _ = i.secrets.Run(ctx) })
		if f.secrets == secretsCluster {
			i.ready["pull secrets"] = i.secrets.Ready
		}
	}
	if f.pluginConfig != "" {
		config, err := credentials.ReadPluginConfig(f.pluginConfig)
		if err != nil {
			return nil, err
		}
		keychain = append(keychain, credentials.NewPlugins(config, credentials.PluginsOptions{BinDir: f.pluginDir, Environ: os.Environ, Logger: s.log}))
	}
	return keychain, nil
}

// openSecrets makes what reads pull secrets, if any are to be read.
func (f *inspectingFlags) openSecrets(s *service, i *inspecting) error {
	switch {
	case s.cluster == nil && f.nodePullSecret != "":
		return errors.New("--node-pull-secret needs an API server: run in a cluster, or name one with --kubeconfig or KUBECONFIG")
	case s.cluster == nil, f.secrets == secretsNone && f.nodePullSecret == "":
		return nil
	}
	client, err := coreclient.NewForConfig(s.cluster)
	if err != nil {
		return fmt.Errorf("pull secrets: %w", err)
	}
	i.secrets, err = credentials.NewSecrets(credentials.SecretsOptions{
		Client: client, Namespaces: f.secretNamespaces, OnDemand: f.secrets != secretsCluster, Logger: s.log, OnChange: i.generation.Changed,
	})
	return err
}
