package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registriesconf"
	"github.com/archkeeper/archkeeper/provider/registry"
)

// registryFlags say how registries are reached. Every command that looks at
// images has the same ones.
type registryFlags struct {
	registriesConf    string
	registriesConfDir string
	signaturePolicy   string
	authFiles         []string
	caFiles           []string
	certsDirs         []string
	plainHTTPHosts    []string
	allowRegistries   []string
	denyRegistries    []string

	guard guardFlags
}

// guardFlags are the provider's alone: tools that a person runs refuse nothing.
type guardFlags struct {
	denyPrivate    bool
	allowAddresses []string
	denyAddresses  []string
}

func (f *registryFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.registriesConf, "registries-conf", "", "`FILE` with the mirror configuration, in the format of registries.conf, version 2")
	flags.StringVar(&f.registriesConfDir, "registries-conf-dir", "", "`DIR` of drop-ins, *.conf, that are read after --registries-conf")
	flags.StringVar(&f.signaturePolicy, "signature-policy", "", "`FILE` with a containers policy.json: what it rejects is blocked before any contact; signatures are not checked")
	flags.StringArrayVar(&f.authFiles, "authfile", nil, "`FILE` with credentials as docker login or podman login write it; may be repeated")
	flags.StringArrayVar(&f.caFiles, "ca-file", nil, "`FILE` of authorities, in PEM, that are trusted beside the system's; may be repeated")
	flags.StringArrayVar(&f.certsDirs, "certs-dir", nil, "`DIR` with certificates by host, as in /etc/containers/certs.d; may be repeated")
	flags.StringArrayVar(&f.plainHTTPHosts, "plain-http-host", nil, "`HOST[:PORT]` that is spoken to by plain HTTP; may be repeated")
	flags.StringSliceVar(&f.allowRegistries, "allow-registry", nil, "`HOST[:PORT]` or *.domain; when given, no other registry is asked; may be repeated")
	flags.StringSliceVar(&f.denyRegistries, "deny-registry", nil, "`HOST[:PORT]` or *.domain that is never asked; may be repeated")
}

// addGuard adds the flags of a service that connects on behalf of others: it
// refuses loopback, link-local and metadata addresses.
func (f *registryFlags) addGuard(flags *pflag.FlagSet) {
	f.guard.denyPrivate = true
	flags.StringSliceVar(&f.guard.allowAddresses, "allow-address", nil, "`CIDR` whose addresses may be connected to although they are refused otherwise; may be repeated")
	flags.StringSliceVar(&f.guard.denyAddresses, "deny-address", nil, "`CIDR` that is refused when connecting, beside loopback, link-local and metadata addresses; may be repeated")
}

// openReach makes the connections' side. Files that are missing or broken are
// named in the error.
func (f *registryFlags) openReach(log *slog.Logger) (*reach.Reach, error) {
	allow, err := prefixes("--allow-address", f.guard.allowAddresses)
	if err != nil {
		return nil, err
	}
	deny, err := prefixes("--deny-address", f.guard.denyAddresses)
	if err != nil {
		return nil, err
	}
	return reach.New(reach.Config{
		CAFiles: f.caFiles, CertsDirs: f.certsDirs, PlainHTTPHosts: f.plainHTTPHosts,
		DenyPrivate: f.guard.denyPrivate, DenyCIDRs: deny, AllowCIDRs: allow,
		AllowRegistries: f.allowRegistries, DenyRegistries: f.denyRegistries,
		Proxy: reach.ProxyFromEnvironment(os.Getenv), Logger: log,
	})
}

// openMirrors reads the mirror configuration and follows its files. changed is
// called when it is another; nil for none.
func (f *registryFlags) openMirrors(log *slog.Logger, changed func()) (*registriesconf.Source, error) {
	return registriesconf.Open(registriesconf.Options{
		File: f.registriesConf, Dir: f.registriesConfDir, Policy: f.signaturePolicy, Log: log, OnChange: changed,
	})
}

// openKeychain gives the credentials of the named files, each of which must be
// there and be readable now.
func (f *registryFlags) openKeychain(ctx context.Context, files []string) (credentials.Keychain, error) {
	if len(files) == 0 {
		return nil, nil //nolint:nilnil // nil is a Keychain: none
	}
	keychain := credentials.NewFiles(files...)
	if _, err := keychain.Lookup(ctx, provider.Scope{}, "docker.io/library/busybox"); err != nil {
		return nil, err
	}
	return keychain, nil
}

// openInspector makes the inspector of a command that a person runs. Without
// --authfile it uses the person's own credentials, where they are.
func (f *registryFlags) openInspector(ctx context.Context, log *slog.Logger) (*registry.Inspector, error) {
	files := f.authFiles
	if len(files) == 0 {
		files = ownAuthFile(os.Getenv)
	}
	keychain, err := f.openKeychain(ctx, files)
	if err != nil {
		return nil, err
	}
	mirrors, err := f.openMirrors(log, nil)
	if err != nil {
		return nil, err
	}
	connections, err := f.openReach(log)
	if err != nil {
		return nil, err
	}
	return registry.New(registry.Options{
		Keychain: keychain, Reach: connections, Mirrors: mirrors.Current, Log: log, UserAgent: "archkeeper/" + version,
	})
}

// ownAuthFile gives the first file that a login has left: podman's, Docker's.
func ownAuthFile(getenv func(string) string) []string {
	var candidates []string
	add := func(base string, rest ...string) {
		if base != "" {
			candidates = append(candidates, filepath.Join(append([]string{base}, rest...)...))
		}
	}
	add(getenv("REGISTRY_AUTH_FILE"))
	add(getenv("XDG_RUNTIME_DIR"), "containers", "auth.json")
	add(getenv("DOCKER_CONFIG"), "config.json")
	add(getenv("HOME"), ".docker", "config.json")
	for _, candidate := range candidates {
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() {
			return []string{candidate}
		}
	}
	return nil
}

func prefixes(flag string, texts []string) ([]netip.Prefix, error) {
	var result []netip.Prefix
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s %q is no CIDR, such as 10.0.0.0/8", flag, text)
		}
		result = append(result, prefix)
	}
	return result, nil
}
