package credentials

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	kubeletconfig "k8s.io/kubelet/config/v1"
	"sigs.k8s.io/yaml"
)

// PluginConfig is a checked CredentialProviderConfig.
type PluginConfig struct {
	providers []kubeletconfig.CredentialProvider
}

const (
	pluginConfigGroup  = "kubelet.config.k8s.io/"
	pluginRequestGroup = "credentialprovider.kubelet.k8s.io/"
)

// pluginVersion tells whether v is a version of the two plugin APIs. The three
// have the same fields, but for those of service account tokens.
func pluginVersion(v string) bool {
	return slices.Contains([]string{"v1", "v1beta1", "v1alpha1"}, v)
}

// ReadPluginConfig reads what the kubelet's --image-credential-provider-config
// names: a file, or a directory whose *.json, *.yaml and *.yml files are merged
// in the order of their names. Errors name the file.
func ReadPluginConfig(path string) (PluginConfig, error) {
	files := []string{path}
	info, err := os.Stat(path)
	if err != nil {
		return PluginConfig{}, fmt.Errorf("credential provider configuration %s %w", path, reason(err))
	}
	if info.IsDir() {
		files = nil
		entries, err := os.ReadDir(path) // sorted by name
		if err != nil {
			return PluginConfig{}, fmt.Errorf("credential provider configuration %s %w", path, reason(err))
		}
		for _, entry := range entries {
			if !entry.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(entry.Name())) {
				files = append(files, filepath.Join(path, entry.Name()))
			}
		}
		if len(files) == 0 {
			return PluginConfig{}, fmt.Errorf("credential provider configuration %s holds no *.json, *.yaml or *.yml", path)
		}
	}
	var merged PluginConfig
	for _, file := range files {
		data, err := readBounded(file)
		if err != nil {
			return PluginConfig{}, fmt.Errorf("credential provider configuration %s %w", file, err)
		}
		config, err := ParsePluginConfig(data)
		if err != nil {
			return PluginConfig{}, fmt.Errorf("credential provider configuration %s: %w", file, err)
		}
		merged.providers = append(merged.providers, config.providers...)
	}
	return merged, merged.unique()
}

// ParsePluginConfig reads and checks a CredentialProviderConfig in YAML or JSON,
// by the kubelet's rules. Unknown fields are errors. Several documents in one
// file are not allowed, as in the kubelet.
func ParsePluginConfig(data []byte) (PluginConfig, error) {
	if len(data) > maxConfigBytes {
		return PluginConfig{}, fmt.Errorf("larger than %d bytes", maxConfigBytes)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return PluginConfig{}, errors.New("empty")
	}
	var config kubeletconfig.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(data, &config); err != nil {
		return PluginConfig{}, fmt.Errorf("not a CredentialProviderConfig: %w", err)
	}
	version, ok := strings.CutPrefix(config.APIVersion, pluginConfigGroup)
	if !ok || !pluginVersion(version) || config.Kind != "CredentialProviderConfig" {
		return PluginConfig{}, fmt.Errorf("apiVersion %q and kind %q are not those of a CredentialProviderConfig", config.APIVersion, config.Kind)
	}
	if len(config.Providers) == 0 {
		return PluginConfig{}, errors.New("providers: at least one is needed")
	}
	for i, provider := range config.Providers {
		if err := checkPlugin(provider); err != nil {
			return PluginConfig{}, fmt.Errorf("providers[%d].%w", i, err)
		}
	}
	checked := PluginConfig{providers: config.Providers}
	return checked, checked.unique()
}

func checkPlugin(provider kubeletconfig.CredentialProvider) error {
	if name := provider.Name; name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/ ") {
		return fmt.Errorf("name: %q is not a file's name", name)
	}
	if version, ok := strings.CutPrefix(provider.APIVersion, pluginRequestGroup); !ok || !pluginVersion(version) {
		return fmt.Errorf("apiVersion: %q is not supported", provider.APIVersion)
	}
	if len(provider.MatchImages) == 0 {
		return errors.New("matchImages: at least one is needed")
	}
	for j, image := range provider.MatchImages {
		if _, err := parsePattern(image); err != nil {
			return fmt.Errorf("matchImages[%d]: %q %w", j, image, err)
		}
	}
	if provider.DefaultCacheDuration == nil || provider.DefaultCacheDuration.Duration < 0 {
		return errors.New("defaultCacheDuration: a duration of 0 or more is needed")
	}
	return nil
}

func (c PluginConfig) unique() error {
	seen := map[string]bool{}
	for _, provider := range c.providers {
		if seen[provider.Name] {
			return fmt.Errorf("providers: name %q is there twice", provider.Name)
		}
		seen[provider.Name] = true
	}
	return nil
}
