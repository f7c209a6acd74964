package credentials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
)

// The test binary is the plugin: NewPlugins runs links to it, and TestMain does
// as ARCHKEEPER_TEST_PLUGIN says. Each run leaves a line in the file "runs".
func TestMain(m *testing.M) {
	if behaviour := os.Getenv("ARCHKEEPER_TEST_PLUGIN"); behaviour != "" {
		os.Exit(behave(behaviour))
	}
	os.Exit(m.Run())
}

func behave(behaviour string) int {
	dir := filepath.Dir(os.Args[0])
	var request struct {
		APIVersion, Kind, Image string
	}
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		return 9
	}
	runs, err := os.OpenFile(dir+"/runs", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 9
	}
	fmt.Fprintln(runs, request.Kind, request.APIVersion, request.Image, strings.Join(os.Args[1:], ","), os.Getenv("REGION"), os.Getenv("BASE"), os.Getenv("HOME"))
	runs.Close()
	fmt.Fprintln(os.Stderr, "hunter2 on standard error")
	respond := func(fields string) {
		fmt.Printf(`{"apiVersion":%q,"kind":"CredentialProviderResponse",%s}`, request.APIVersion, fields)
	}
	auth := func(location string) string {
		return `"auth":{"` + location + `":{"username":"plugin","password":"p"}}`
	}
	registry, _, _ := strings.Cut(request.Image, "/")
	switch behaviour {
	case "image", "registry", "global":
		respond(`"cacheKeyType":"` + strings.ToUpper(behaviour[:1]) + behaviour[1:] + `","cacheDuration":"10m",` + auth(registry))
	case "default":
		respond(`"cacheKeyType":"Registry",` + auth(registry))
	case "uncached":
		respond(`"cacheKeyType":"Registry","cacheDuration":"0s",` + auth(registry))
	case "several":
		respond(`"cacheKeyType":"Image","auth":{"*.example":{"username":"glob"},"a.example":{"username":"host"},"a.example/team":{"username":"path"},"other.example":{"username":"other"}}`)
	case "nothing":
		respond(`"cacheKeyType":"Image","auth":null`)
	case "badkey":
		respond(`"cacheKeyType":"hunter2",` + auth(registry))
	case "badversion":
		fmt.Print(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v9","kind":"CredentialProviderResponse","cacheKeyType":"Image"}`)
	case "text":
		fmt.Print("hunter2 is no JSON")
	case "fail":
		fmt.Print("hunter2")
		return 3
	case "endless":
		for {
			if _, err := os.Stdout.Write(bytes.Repeat([]byte("hunter2 "), 1024)); err != nil {
				return 1
			}
		}
	case "hang":
		<-time.After(time.Minute)
	}
	return 0
}

// pluginWorld is a directory of plugins and a configuration that names them.
type pluginWorld struct {
	t      *testing.T
	dir    string
	logged *bytes.Buffer
	clock  *testclock.FakePassiveClock
}

func newPluginWorld(t *testing.T, binaries ...string) *pluginWorld {
	t.Helper()
	w := &pluginWorld{t: t, dir: t.TempDir(), logged: &bytes.Buffer{}, clock: testclock.NewFakePassiveClock(time.Now())}
	for _, name := range binaries {
		w.install(name)
	}
	return w
}

func (w *pluginWorld) install(name string) {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(w.dir, name)); err != nil {
		w.t.Fatal(err)
	}
}

// provider writes one entry of a configuration.
func providerYAML(name, behaviour string, more string) string {
	return fmt.Sprintf(`
- name: %s
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.example"]
  defaultCacheDuration: 5m
  args: [get, credentials]
  env: [{name: ARCHKEEPER_TEST_PLUGIN, value: %s}, {name: REGION, value: eu}]
%s`, name, behaviour, more)
}

func (w *pluginWorld) keychain(timeout time.Duration, providers ...string) *Plugins {
	w.t.Helper()
	config, err := ParsePluginConfig([]byte("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:" + strings.Join(providers, "")))
	if err != nil {
		w.t.Fatal(err)
	}
	return NewPlugins(config, PluginsOptions{
		BinDir: w.dir, Timeout: timeout, Clock: w.clock, Environ: func() []string { return []string{"BASE=node", "REGION=us"} },
		Logger: slog.New(slog.NewTextHandler(w.logged, nil)),
	})
}

func (w *pluginWorld) runs() []string {
	data, err := os.ReadFile(w.dir + "/runs")
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

func TestPluginProtocol(t *testing.T) {
	w := newPluginWorld(t, "ecr")
	found, err := w.keychain(0, providerYAML("ecr", "image", "")).Lookup(t.Context(), provider.Scope{}, "a.example/team/app")
	if names(found) != "plugin" || err != nil {
		t.Fatalf("found %q, %v", names(found), err)
	}
	if got := found[0].Source(); got != "plugin ecr" {
		t.Errorf("source is %q", got)
	}
	// The request, the arguments, the provider's variables over the node's, and
	// nothing else of our own environment (HOME).
	want := "CredentialProviderRequest credentialprovider.kubelet.k8s.io/v1 a.example/team/app get,credentials eu node "
	if got := w.runs(); len(got) != 1 || strings.TrimSpace(got[0]) != strings.TrimSpace(want) {
		t.Errorf("the plugin saw %q, want %q", got, want)
	}
}

func TestPluginCache(t *testing.T) {
	for name, test := range map[string]struct {
		behaviour string
		images    string // asked for one after the other
		after     time.Duration
		want      int // runs
	}{
		"Image: the same image once":                     {"image", "a.example/x a.example/x", 0, 1},
		"Image: each image":                              {"image", "a.example/x a.example/y", 0, 2},
		"Registry: every image of a registry once":       {"registry", "a.example/x a.example/y/z", 0, 1},
		"Registry: each registry":                        {"registry", "a.example/x b.example/x", 0, 2},
		"Global: once for all":                           {"global", "a.example/x b.example/y", 0, 1},
		"until the duration that it gave has gone":       {"image", "a.example/x a.example/x", 10*time.Minute - time.Second, 1},
		"not longer":                                     {"image", "a.example/x a.example/x", 10 * time.Minute, 2},
		"the default duration when it gives none":        {"default", "a.example/x a.example/y", 5*time.Minute - time.Second, 1},
		"not longer than the default":                    {"default", "a.example/x a.example/y", 5 * time.Minute, 2},
		"zero means not at all":                          {"uncached", "a.example/x a.example/x a.example/x", 0, 3},
		"an answer without credentials is an answer too": {"nothing", "a.example/x a.example/x", 0, 1},
		"a failure, for a moment":                        {"fail", "a.example/x a.example/x", failedFor - time.Second, 1},
		"a failure, not longer":                          {"fail", "a.example/x a.example/x", failedFor, 2},
		"images that do not match ask nobody":            {"global", "example/x a.b.example/x a.example:5000/x docker.io/library/x", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPluginWorld(t, "p")
			keychain := w.keychain(0, providerYAML("p", test.behaviour, ""))
			for i, image := range strings.Fields(test.images) {
				if i == 1 {
					w.clock.SetTime(w.clock.Now().Add(test.after))
				}
				_, _ = keychain.Lookup(t.Context(), provider.Scope{}, image)
			}
			if got := len(w.runs()); got != test.want {
				t.Errorf("%d runs, want %d: %q", got, test.want, w.runs())
			}
		})
	}
}

func TestPluginFaults(t *testing.T) {
	for name, test := range map[string]struct {
		behaviour string
		timeout   time.Duration
		want      string
	}{
		"an exit status":          {"fail", 0, "credential provider plugin p: ended with exit status 3"},
		"no JSON":                 {"text", 0, "credential provider plugin p: did not print a CredentialProviderResponse"},
		"another version":         {"badversion", 0, "did not print a CredentialProviderResponse of credentialprovider.kubelet.k8s.io/v1"},
		"an unknown cacheKeyType": {"badkey", 0, "gave a cacheKeyType that is none of Image, Registry, Global"},
		"endless output":          {"endless", 0, "printed more than 1048576 bytes"},
		"one that never ends":     {"hang", 300 * time.Millisecond, "did not end within 300ms"},
		"one without an answer":   {"silent", 0, "did not print a CredentialProviderResponse"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPluginWorld(t, "p", "good")
			keychain := w.keychain(test.timeout, providerYAML("p", test.behaviour, ""), providerYAML("good", "image", ""))
			if test.timeout > 0 {
				keychain.plugins[1].options.Timeout = DefaultPluginTimeout
			}
			found, err := keychain.Lookup(t.Context(), provider.Scope{}, "a.example/x")
			if names(found) != "plugin" {
				t.Errorf("found %q: another plugin's answer is lost", names(found))
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %s", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") || strings.Contains(w.logged.String(), "hunter2") {
				t.Errorf("what the plugin printed is repeated: %v %s", err, w.logged)
			}
		})
	}
}

func TestPluginOutlivesItsCaller(t *testing.T) {
	w := newPluginWorld(t, "p")
	keychain := w.keychain(0, providerYAML("p", "image", ""))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := keychain.Lookup(gone, provider.Scope{}, "a.example/x"); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	found, err := keychain.Lookup(t.Context(), provider.Scope{}, "a.example/x")
	if names(found) != "plugin" || err != nil || len(w.runs()) != 1 {
		t.Errorf("found %q, %v in %d runs; want the answer of the first run", names(found), err, len(w.runs()))
	}
}

func TestPluginRunsAreShared(t *testing.T) {
	w := newPluginWorld(t, "p")
	keychain := w.keychain(0, providerYAML("p", "image", ""))
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			if found, err := keychain.Lookup(t.Context(), provider.Scope{}, "a.example/x"); names(found) != "plugin" || err != nil {
				t.Errorf("found %q, %v", names(found), err)
			}
		})
	}
	running.Wait()
	if got := len(w.runs()); got != 1 {
		t.Errorf("%d runs for one image, want 1", got)
	}
}

func TestPluginOrder(t *testing.T) {
	w := newPluginWorld(t, "p")
	found, err := w.keychain(0, providerYAML("p", "several", "")).Lookup(t.Context(), provider.Scope{}, "a.example/team/app")
	if got := names(found); got != "path host glob" || err != nil {
		t.Errorf("found %q, %v", got, err)
	}
}

func TestMissingPlugin(t *testing.T) {
	w := newPluginWorld(t)
	keychain := w.keychain(0, providerYAML("ecr", "image", ""))
	for range 3 {
		if found, err := keychain.Lookup(t.Context(), provider.Scope{}, "a.example/x"); found != nil || err != nil {
			t.Errorf("found %v, %v", found, err)
		}
	}
	if got := strings.Count(w.logged.String(), "plugin=ecr"); got != 1 {
		t.Errorf("reported %d times, want once: %s", got, w.logged)
	}
	w.install("ecr")
	if found, err := keychain.Lookup(t.Context(), provider.Scope{}, "a.example/x"); names(found) != "plugin" || err != nil {
		t.Errorf("installed later: found %q, %v", names(found), err)
	}
}

func TestPluginThatWantsAToken(t *testing.T) {
	w := newPluginWorld(t, "p")
	keychain := w.keychain(0, providerYAML("p", "image", "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true}\n"))
	if found, err := keychain.Lookup(t.Context(), provider.Scope{}, "a.example/x"); found != nil || err != nil || len(w.runs()) != 0 {
		t.Errorf("found %v, %v in %d runs", found, err, len(w.runs()))
	}
	if !strings.Contains(w.logged.String(), "service account token") {
		t.Errorf("not reported: %s", w.logged)
	}
}

func TestPluginConfig(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n"
	good := func(change ...string) string {
		text := "providers:\n- name: ecr\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: [\"*.dkr.ecr.*.amazonaws.com\"]\n  defaultCacheDuration: 12h\n"
		return head + strings.NewReplacer(change...).Replace(text)
	}
	for name, test := range map[string]struct{ data, want string }{
		"a good one":                  {good(), ""},
		"in JSON":                     {`{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"CredentialProviderConfig","providers":[{"name":"gcr","apiVersion":"credentialprovider.kubelet.k8s.io/v1alpha1","matchImages":["gcr.io"],"defaultCacheDuration":"1m"}]}`, ""},
		"an empty file":               {" \n", "empty"},
		"another kind":                {strings.Replace(good(), "CredentialProviderConfig", "KubeletConfiguration", 1), "KubeletConfiguration"},
		"another group":               {strings.Replace(good(), "kubelet.config", "config", 1), "config.k8s.io/v1"},
		"another version":             {strings.Replace(good(), "k8s.io/v1\n", "k8s.io/v7\n", 1), "v7"},
		"no providers":                {head + "providers: []", "providers: at least one"},
		"an unknown field":            {good("matchImages", "matchimage"), "matchimage"},
		"no name":                     {good("name: ecr", "name: \"\""), "providers[0].name"},
		"a name that is a path":       {good("name: ecr", "name: ../ecr"), "providers[0].name"},
		"an unknown request version":  {good("credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v2"), "providers[0].apiVersion"},
		"no images":                   {good("\"*.dkr.ecr.*.amazonaws.com\"", ""), "providers[0].matchImages"},
		"an image that is none":       {good("*.dkr.ecr.*.amazonaws.com", "a b%zz"), "providers[0].matchImages[0]"},
		"no duration":                 {good("  defaultCacheDuration: 12h\n", ""), "providers[0].defaultCacheDuration"},
		"a negative duration":         {good("12h", "-1s"), "providers[0].defaultCacheDuration"},
		"a name twice":                {good() + strings.TrimPrefix(good(), head+"providers:\n"), "\"ecr\" is there twice"},
		"larger than a secret can be": {good() + strings.Repeat("#", maxConfigBytes), "larger"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParsePluginConfig([]byte(test.data))
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
		})
	}
	t.Run("a directory is merged by name", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir+"/20.yaml", good("name: ecr", "name: second"))
		write(t, dir+"/10.json", strings.Replace(`{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[{"name":"first","apiVersion":"credentialprovider.kubelet.k8s.io/v1","matchImages":["gcr.io"],"defaultCacheDuration":"1m"}]}`, "\n", "", -1))
		write(t, dir+"/README", "no configuration")
		config, err := ReadPluginConfig(dir)
		if err != nil || len(config.providers) != 2 || config.providers[0].Name != "first" {
			t.Errorf("read %d providers, %v", len(config.providers), err)
		}
		write(t, dir+"/30.yml", good("name: ecr", "name: first"))
		if _, err := ReadPluginConfig(dir); err == nil || !strings.Contains(err.Error(), "first") {
			t.Errorf("a name in two files: %v", err)
		}
		write(t, dir+"/30.yml", "kind: [")
		if _, err := ReadPluginConfig(dir); err == nil || !strings.Contains(err.Error(), "30.yml") {
			t.Errorf("a broken file: %v", err)
		}
		if _, err := ReadPluginConfig(t.TempDir()); err == nil {
			t.Error("an empty directory was taken")
		}
		if _, err := ReadPluginConfig(dir + "/missing"); err == nil || !strings.Contains(err.Error(), "missing is not there") {
			t.Errorf("a missing file: %v", err)
		}
	})
}

func FuzzParsePluginConfig(f *testing.F) {
	f.Add([]byte("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: ecr\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: [\"*.dkr.ecr.*.amazonaws.com\"]\n  defaultCacheDuration: 12h\n"))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := ParsePluginConfig(data)
		if err != nil {
			return
		}
		for _, p := range config.providers {
			if p.Name == "" || strings.Contains(p.Name, "/") || len(p.MatchImages) == 0 || p.DefaultCacheDuration == nil {
				t.Errorf("took %+v", p)
			}
		}
	})
}
