package credentials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider"
)

// Defaults and limits of plugins.
const (
	// DefaultPluginTimeout is the kubelet's, for one run of a plugin.
	DefaultPluginTimeout = time.Minute
	// maxPluginOutput bounds what one run may print; answers are a few KiB.
	maxPluginOutput = 1 << 20
	// maxPluginRuns bounds the runs of one plugin at a time.
	maxPluginRuns = 4
	// maxPluginCache bounds the answers kept of one plugin.
	maxPluginCache = 1024
	// failedFor is how long a failed run is not repeated for the same image.
	failedFor = 10 * time.Second
)

// PluginsOptions say how credential provider plugins are run.
type PluginsOptions struct {
	// BinDir holds the binaries, by the names of the providers.
	BinDir string
	// Environ gives the environment to which a provider's own variables are
	// added; nil for none. The kubelet gives its own.
	Environ func() []string
	// Timeout of one run; 0 for DefaultPluginTimeout. It is not cut by the
	// caller's deadline: a run under way is of use to the next caller.
	Timeout time.Duration
	// Clock by which answers expire; nil for the real one.
	Clock clock.PassiveClock
	// Logger hears of plugins that cannot be used, once each; nil for none.
	Logger *slog.Logger
}

// Plugins is the Keychain of the kubelet's credential provider plugins. All
// scopes may use them, as all pods of a node do.
// Rule: https://kubernetes.io/docs/tasks/administer-cluster/kubelet-credential-provider/,
// CredentialProviderResponse of k8s.io/kubelet.
//
// A plugin whose binary is missing is reported once, gives nothing, and is used
// as soon as it is there. A plugin that wants a token of the pod's service
// account is never run: the pod does not exist when its images are looked at.
type Plugins struct {
	plugins []*plugin
}

// NewPlugins makes the Keychain of a configuration; see ParsePluginConfig.
func NewPlugins(config PluginConfig, options PluginsOptions) *Plugins {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Timeout <= 0 {
		options.Timeout = DefaultPluginTimeout
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Plugins{}
	for _, configured := range config.providers {
		if configured.TokenAttributes != nil {
			options.Logger.Warn("credential provider plugin is not used: it wants a service account token of the pod", "plugin", configured.Name)
			continue
		}
		made := &plugin{
			config: configured, options: options,
			path:   filepath.Join(options.BinDir, configured.Name),
			cache:  map[string]pluginAnswer{},
			places: make(chan struct{}, maxPluginRuns),
		}
		for _, image := range configured.MatchImages {
			if parsed, err := parsePattern(image); err == nil { // the configuration was checked
				made.images = append(made.images, parsed)
			}
		}
		p.plugins = append(p.plugins, made)
		_ = made.present() // to report a missing binary at the start; it may come later
	}
	return p
}

// Lookup implements Keychain.
func (p *Plugins) Lookup(ctx context.Context, _ provider.Scope, name string) ([]Credential, error) {
	image, err := parseTarget(name)
	if err != nil {
		return nil, nil //nolint:nilerr // no plugin serves what is no image
	}
	var entries []entry
	var failed []error
	for _, plugin := range p.plugins {
		if !slices.ContainsFunc(plugin.images, func(pattern pattern) bool { return pattern.matches(image) }) {
			continue
		}
		found, err := plugin.provide(ctx, name)
		entries = append(entries, found...)
		if err != nil {
			failed = append(failed, fmt.Errorf("credential provider plugin %s: %w", plugin.config.Name, err))
		}
	}
	return selectFor(name, entries), errors.Join(failed...)
}

// plugin is one provider of the configuration.
type plugin struct {
	config  kubeletconfig.CredentialProvider
	options PluginsOptions
	images  []pattern
	path    string
	runs    singleflight.Group
	places  chan struct{}

	mu     sync.Mutex
	cache  map[string]pluginAnswer
	absent bool // reported as missing
}

// pluginAnswer is what one run gave, under the key that the plugin asked for.
type pluginAnswer struct {
	entries []entry
	err     error
	expires time.Time
}

// globalKey cannot be a registry or an image: both begin with a host name.
const globalKey = "/"

// provide gives the plugin's entries for an image, from the cache or a run.
// Equal runs are shared.
func (p *plugin) provide(ctx context.Context, image string) ([]entry, error) {
	registry, _, _ := strings.Cut(image, "/")
	if answer, ok := p.cached(image, registry, globalKey); ok {
		return answer.entries, answer.err
	}
	if !p.present() {
		return nil, nil
	}
	result := p.runs.DoChan(image, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.options.Timeout)
		defer cancel()
		select {
		case p.places <- struct{}{}:
			defer func() { <-p.places }()
		case <-ctx.Done():
			return pluginAnswer{err: errors.New("too many runs at a time")}, nil
		}
		if answer, ok := p.cached(image, registry, globalKey); ok {
			return answer, nil // another image's run has answered for this one
		}
		return p.run(ctx, image, registry), nil
	})
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("did not answer in time: %w", ctx.Err())
	case got := <-result:
		answer, _ := got.Val.(pluginAnswer)
		return answer.entries, answer.err
	}
}

// run runs the binary and keeps its answer as long and for as much as it says.
func (p *plugin) run(ctx context.Context, image, registry string) pluginAnswer {
	entries, key, duration, err := p.execute(ctx, image)
	answer := pluginAnswer{entries: entries, err: err}
	if err != nil {
		p.keep(image, answer, failedFor)
		return answer
	}
	switch key {
	case credentialprovider.ImagePluginCacheKeyType:
		p.keep(image, answer, duration)
	case credentialprovider.RegistryPluginCacheKeyType:
		p.keep(registry, answer, duration)
	case credentialprovider.GlobalPluginCacheKeyType:
		p.keep(globalKey, answer, duration)
	}
	return answer
}

// execute speaks the protocol: a CredentialProviderRequest on standard input, a
// CredentialProviderResponse of the same version on standard output. Nothing
// that the plugin prints is repeated in an error: it may be a secret.
func (p *plugin) execute(ctx context.Context, image string) ([]entry, credentialprovider.PluginCacheKeyType, time.Duration, error) {
	fail := func(reason string) ([]entry, credentialprovider.PluginCacheKeyType, time.Duration, error) {
		return nil, "", 0, errors.New(reason)
	}
	request, err := json.Marshal(credentialprovider.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: p.config.APIVersion, Kind: "CredentialProviderRequest"},
		Image:    image,
	})
	if err != nil {
		return fail("the request could not be written")
	}
	stdout := &limitedBuffer{limit: maxPluginOutput}
	command := exec.CommandContext(ctx, p.path, p.config.Args...) //nolint:gosec // the administrator names the plugin
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(request), stdout, io.Discard
	command.WaitDelay = time.Second // a child that keeps the pipes open does not keep us
	command.Env = []string{}        // not nil, which would mean our own environment
	if p.options.Environ != nil {
		command.Env = append(command.Env, p.options.Environ()...)
	}
	for _, variable := range p.config.Env {
		command.Env = append(command.Env, variable.Name+"="+variable.Value)
	}
	err = command.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fail(fmt.Sprintf("did not end within %s", p.options.Timeout))
	case stdout.exceeded:
		return fail(fmt.Sprintf("printed more than %d bytes", maxPluginOutput))
	case errors.As(err, &exit):
		return fail(fmt.Sprintf("ended with exit status %d", exit.ExitCode()))
	case err != nil:
		return fail("could not be run")
	}
	var response credentialprovider.CredentialProviderResponse
	if json.Unmarshal(stdout.data, &response) != nil {
		return fail("did not print a CredentialProviderResponse")
	}
	if response.Kind != "CredentialProviderResponse" || response.APIVersion != p.config.APIVersion {
		return fail("did not print a CredentialProviderResponse of " + p.config.APIVersion)
	}
	switch response.CacheKeyType {
	case credentialprovider.ImagePluginCacheKeyType, credentialprovider.RegistryPluginCacheKeyType, credentialprovider.GlobalPluginCacheKeyType:
	default:
		return fail("gave a cacheKeyType that is none of Image, Registry, Global")
	}
	duration := p.config.DefaultCacheDuration.Duration
	if response.CacheDuration != nil {
		duration = response.CacheDuration.Duration
	}
	var entries []entry
	for location, auth := range response.Auth {
		parsed, err := parseLocation(location)
		if err != nil {
			continue // as the kubelet does
		}
		credential := New("plugin "+p.config.Name, authn.AuthConfig{Username: auth.Username, Password: auth.Password})
		if !credential.Anonymous() {
			entries = append(entries, entry{pattern: parsed, credential: credential})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(b.pattern.key, a.pattern.key) })
	return entries, response.CacheKeyType, duration, nil
}

// cached gives the first answer under the keys that has not expired.
func (p *plugin) cached(keys ...string) (pluginAnswer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		answer, ok := p.cache[key]
		if !ok {
			continue
		}
		if p.options.Clock.Now().Before(answer.expires) {
			return answer, true
		}
		delete(p.cache, key)
	}
	return pluginAnswer{}, false
}

// keep remembers an answer for a time; for none when the time is not positive.
func (p *plugin) keep(key string, answer pluginAnswer, duration time.Duration) {
	if duration <= 0 {
		return
	}
	now := p.options.Clock.Now()
	answer.expires = now.Add(duration)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.cache) >= maxPluginCache {
		for old, kept := range p.cache {
			if !now.Before(kept.expires) {
				delete(p.cache, old)
			}
		}
		if len(p.cache) >= maxPluginCache {
			return
		}
	}
	p.cache[key] = answer
}

// present tells whether the binary can be run, and reports its absence once.
func (p *plugin) present() bool {
	_, err := exec.LookPath(p.path)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && !p.absent {
		p.options.Logger.Warn("credential provider plugin cannot be run; its registries are asked without it", "plugin", p.config.Name, "path", p.path)
	}
	p.absent = err != nil
	return err == nil
}

// limitedBuffer takes up to limit bytes, then refuses, which ends the writer.
// It embeds nothing: a promoted ReadFrom would pass by Write.
type limitedBuffer struct {
	data     []byte
	limit    int
	exceeded bool
}

func (b *limitedBuffer) Write(data []byte) (int, error) {
	if len(b.data)+len(data) > b.limit {
		b.exceeded = true
		return 0, errors.New("output limit")
	}
	b.data = append(b.data, data...)
	return len(data), nil
}
