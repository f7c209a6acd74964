package nodeagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

const oneMirror = "[[registry]]\nlocation = \"s.io\"\n\n[[registry.mirror]]\nlocation = \"m.io\"\npull-from-mirror = \"digest-only\"\n"

func handed(conf string, delivery mirrors.Delivery) *corev1.ConfigMap {
	sum := sha256.Sum256([]byte(conf))
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "archkeeper", Name: "mirrors"},
		Data:       map[string]string{mirrors.KeyConf: conf, mirrors.KeySHA256: hex.EncodeToString(sum[:]), mirrors.KeyDelivery: string(delivery)},
	}
}

func put(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tree lists the files below root with their text.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, root+"/")] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func agent(t *testing.T, root string, runtime Runtime, change func(*Options)) *Agent {
	t.Helper()
	o := Options{Client: fake.NewClientset(), Namespace: "archkeeper", Name: "mirrors", Runtime: runtime, Root: root}
	if change != nil {
		change(&o)
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

const dropIn = "etc/containers/registries.conf.d/60-archkeeper.conf"

func TestDropIn(t *testing.T) {
	other := "[[registry]]\nlocation = \"o.io\"\nblocked = true\n"
	for name, tc := range map[string]struct {
		before  map[string]string
		conf    string
		deliver mirrors.Delivery
		version string
		after   string // of our file; empty: not there
		refused string
		report  string
	}{
		"written":                        {conf: oneMirror, after: header + oneMirror},
		"written beside files of others": {before: map[string]string{"etc/containers/registries.conf": "unqualified-search-registries = [\"q.io\"]\n", "etc/containers/registries.conf.d/50-x.conf": other}, conf: oneMirror, after: header + oneMirror},
		"replaced":                       {before: map[string]string{dropIn: header + other}, conf: oneMirror, after: header + oneMirror},
		"removed when no rule remains":   {before: map[string]string{dropIn: header + other}, conf: ""},
		"removed where delivery is for the inspector":                 {before: map[string]string{dropIn: header + other}, conf: oneMirror, deliver: mirrors.DeliveryInspector, report: "delivery is inspector"},
		"a file of others under our name is respected":                {before: map[string]string{dropIn: other}, conf: oneMirror, after: other, refused: "was not written by us"},
		"another file owns the same prefix":                           {before: map[string]string{"etc/containers/registries.conf.d/50-x.conf": "[[registry]]\nlocation = \"s.io\"\n"}, conf: oneMirror, refused: "50-x.conf has an entry for s.io already"},
		"the main file owns the same prefix":                          {before: map[string]string{"etc/containers/registries.conf": "[[registry]]\nlocation = \"s.io\"\n", dropIn: header + other}, conf: oneMirror, after: header + other, refused: "registries.conf has an entry for s.io already"},
		"a broken file of others":                                     {before: map[string]string{"etc/containers/registries.conf.d/.hidden.conf": "[[broken"}, conf: oneMirror, refused: ".hidden.conf"},
		"what would not load is never written":                        {before: map[string]string{dropIn: header + other}, conf: "[[registry]]\nblocked = true\n", after: header + other, refused: "neither prefix nor location"},
		"a CRI-O that does not know pull-from-mirror gets no mirrors": {conf: oneMirror + "\n[[registry]]\nlocation = \"b.io\"\nblocked = true\n", version: "cri-o://1.23.5", after: header + "[[registry]]\nlocation = \"b.io\"\nblocked = true\n", report: "cri-o://1.23.5 does not know pull-from-mirror"},
		"a CRI-O that knows it":                                       {conf: oneMirror, version: "cri-o://1.24.0", after: header + oneMirror},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range tc.before {
				put(t, root, path, text)
			}
			if tc.deliver == "" {
				tc.deliver = mirrors.DeliveryNodes
			}
			reloads := 0
			a := agent(t, root, CRIO, func(o *Options) { o.Reload = func(context.Context) error { reloads++; return nil } })
			a.version, a.pending = tc.version, false // not its first look
			a.once(t.Context(), handed(tc.conf, tc.deliver))
			got := tree(t, root)
			if diff := cmp.Diff(tc.after, got[dropIn]); diff != "" {
				t.Error(diff)
			}
			for path, text := range tc.before {
				if path != dropIn && got[path] != text {
					t.Errorf("%s was changed: %s", path, got[path])
				}
			}
			r := a.Current()
			if !strings.Contains(strings.Join(r.Refused, "\n"), tc.refused) || (tc.refused == "") != (len(r.Refused) == 0) {
				t.Errorf("refused %q, want %q", r.Refused, tc.refused)
			}
			if !strings.Contains(strings.Join(r.Unsupported, "\n"), tc.report) || (tc.report == "") != (len(r.Unsupported) == 0) {
				t.Errorf("reports %q, want %q", r.Unsupported, tc.report)
			}
			want := 0
			if tc.after != tc.before[dropIn] {
				want = 1
			}
			if reloads != want {
				t.Errorf("%d reloads, want %d", reloads, want)
			}
			a.once(t.Context(), handed(tc.conf, tc.deliver))
			if reloads != want {
				t.Errorf("a second look reloads again")
			}
		})
	}
}

// A predecessor may have been killed between its write and the signal.
func TestTheFirstLookOfAnAgentReloadsOnce(t *testing.T) {
	for name, before := range map[string]string{"the file is as it should be": header + oneMirror, "the file has been removed": ""} {
		t.Run(name, func(t *testing.T) {
			root, conf := t.TempDir(), ""
			if before != "" {
				put(t, root, dropIn, before)
				conf = oneMirror
			}
			reloads := 0
			a := agent(t, root, CRIO, func(o *Options) { o.Reload = func(context.Context) error { reloads++; return nil } })
			for range 3 {
				a.once(t.Context(), handed(conf, mirrors.DeliveryNodes))
			}
			if reloads != 1 {
				t.Errorf("%d reloads, want 1", reloads)
			}
		})
	}
}

func TestAReloadThatFailedIsTriedAgain(t *testing.T) {
	fail, reloads := true, 0
	a := agent(t, t.TempDir(), CRIO, func(o *Options) {
		o.Reload = func(context.Context) error {
			reloads++
			if fail {
				return errors.New("no such process")
			}
			return nil
		}
	})
	a.once(t.Context(), handed(oneMirror, mirrors.DeliveryNodes))
	if !strings.Contains(a.Current().Error, "no such process") {
		t.Errorf("%+v", a.Current())
	}
	fail = false
	a.once(t.Context(), handed(oneMirror, mirrors.DeliveryNodes))
	a.once(t.Context(), handed(oneMirror, mirrors.DeliveryNodes))
	if reloads != 2 || a.Current().Error != "" {
		t.Errorf("%d reloads, %+v", reloads, a.Current())
	}
}

func TestAConfigMapThatWasTamperedWithIsNotUsed(t *testing.T) {
	root := t.TempDir()
	a := agent(t, root, CRIO, nil)
	cm := handed(oneMirror, mirrors.DeliveryNodes)
	cm.Data[mirrors.KeyConf] += "# edited\n"
	a.once(t.Context(), cm)
	if len(tree(t, root)) != 0 || a.Current().Error == "" {
		t.Errorf("%v %+v", tree(t, root), a.Current())
	}
}

func TestHosts(t *testing.T) {
	root := t.TempDir()
	put(t, root, "etc/containerd/certs.d/foreign.io/hosts.toml", "server = \"https://x\"\n")
	put(t, root, "etc/containerd/certs.d/p.io_5000_/hosts.toml", "server = \"https://y\"\n")
	put(t, root, "etc/containerd/certs.d/old.io/hosts.toml", header+"server = \"https://old.io\"\n")
	put(t, root, "etc/containerd/certs.d/old.io/ca.crt", "a certificate")
	put(t, root, "etc/containerd/config.toml", "version = 2\n")
	conf := strings.ReplaceAll(oneMirror, "s.io", "foreign.io") + strings.ReplaceAll(oneMirror, "s.io", "p.io:5000") + oneMirror + "[[registry]]\nlocation = \"b.io\"\nblocked = true\n"
	put(t, root, "etc/containerd/certs.d/README", "a file where folders are")
	reload := func(context.Context) error { t.Error("a signal to containerd"); return nil }
	a := agent(t, root, Containerd, func(o *Options) { o.Reload = reload })
	a.once(t.Context(), handed(conf, mirrors.DeliveryNodes))
	want := map[string]string{
		"etc/containerd/config.toml":                   "version = 2\n",
		"etc/containerd/certs.d/foreign.io/hosts.toml": "server = \"https://x\"\n",
		"etc/containerd/certs.d/p.io_5000_/hosts.toml": "server = \"https://y\"\n",
		"etc/containerd/certs.d/old.io/ca.crt":         "a certificate",
		"etc/containerd/certs.d/README":                "a file where folders are",
		"etc/containerd/certs.d/s.io/hosts.toml":       header + "server = \"https://s.io\"\n\n[host.\"https://m.io\"]\ncapabilities = [\"pull\"]\n",
	}
	if diff := cmp.Diff(want, tree(t, root)); diff != "" {
		t.Error(diff)
	}
	r := a.Current()
	if diff := cmp.Diff([]string{
		"/etc/containerd/certs.d/foreign.io/hosts.toml: hosts.toml is there and was not written by us",
		"/etc/containerd/certs.d/p.io_5000_/hosts.toml: hosts.toml is there and was not written by us",
	}, r.Refused); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{
		"b.io: containerd cannot block a registry; it is contacted after its mirrors",
		"containerd's config.toml names no config_path with certs.d: it reads none of these files",
	}, r.Unsupported); diff != "" {
		t.Error(diff)
	}
	a.once(t.Context(), handed("", mirrors.DeliveryNodes))
	if _, there := tree(t, root)["etc/containerd/certs.d/s.io/hosts.toml"]; there {
		t.Error("it stays when no rule remains")
	}
}

// A kill at any step leaves a folder that loads: the old file or the new one.
func TestAKillAtAnyStepLeavesTheOldFileOrTheNewOne(t *testing.T) {
	var steps []string
	a := agent(t, t.TempDir(), CRIO, nil)
	a.files.step = func(name string) error { steps = append(steps, name); return nil }
	a.once(t.Context(), handed(oneMirror, mirrors.DeliveryNodes))
	if len(steps) < 7 {
		t.Fatalf("steps %v", steps)
	}
	before, after := header+"[[registry]]\nlocation = \"old.io\"\ninsecure = true\n", header+oneMirror
	for _, kill := range steps {
		t.Run("killed before: "+kill, func(t *testing.T) {
			root := t.TempDir()
			put(t, root, dropIn, before)
			a := agent(t, root, CRIO, nil)
			a.files.step = func(name string) error {
				if name == kill {
					return errors.New("killed")
				}
				return nil
			}
			a.once(t.Context(), handed(oneMirror, mirrors.DeliveryNodes))
			if got := tree(t, root)[dropIn]; got != before && got != after {
				t.Errorf("a third thing: %s", got)
			}
			read, err := mirrors.ReadFiles(os.DirFS(root), "", "etc/containers/registries.conf.d")
			if err != nil {
				t.Fatal(err)
			}
			if len(read) != 1 {
				t.Errorf("a runtime would read %d files", len(read))
			}
			if _, err := mirrors.ParseRegistriesConf(read...); err != nil {
				t.Error(err)
			}
			b := agent(t, root, CRIO, nil)
			b.once(t.Context(), handed(oneMirror, mirrors.DeliveryNodes))
			got := tree(t, root)
			if got[dropIn] != after {
				t.Errorf("the next agent does not mend it: %s", got[dropIn])
			}
			leftovers := slices.ContainsFunc(keys(got), func(p string) bool { return strings.HasSuffix(p, tempSuffix) })
			if leftovers && kill != "sync the folder" {
				t.Errorf("left behind: %v", keys(got))
			}
		})
	}
}

func keys(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

func TestMirrorsWithoutCredentialsAreReported(t *testing.T) {
	root := t.TempDir()
	put(t, root, "auth.json", `{"auths": {"known.io": {"auth": "YTpi"}}}`)
	conf := strings.ReplaceAll(oneMirror, "m.io", "known.io") +
		strings.ReplaceAll(strings.ReplaceAll(oneMirror, "s.io", "t.io"), "m.io", "plain.io") +
		strings.ReplaceAll(strings.ReplaceAll(oneMirror, "\"s.io\"", "\"never.io\"\nblocked = true"), "m.io", "loud.io")
	a := agent(t, root, CRIO, func(o *Options) { o.Keychain = credentials.NewFiles(filepath.Join(root, "auth.json")) })
	a.once(t.Context(), handed(conf, mirrors.DeliveryNodes))
	got := a.Current().Credentials
	if len(got) != 2 || !strings.HasPrefix(got[0], "loud.io: the source never.io is never contacted") || got[1] != "plain.io" {
		t.Errorf("%q", got)
	}
}

func TestCredentialsThatCannotBeReadAreReported(t *testing.T) {
	root := t.TempDir()
	put(t, root, "auth.json", `{"auths": {"m.io": {"auth": "?"}}}`)
	a := agent(t, root, CRIO, func(o *Options) { o.Keychain = credentials.NewFiles(filepath.Join(root, "auth.json")) })
	a.once(t.Context(), handed(oneMirror, mirrors.DeliveryNodes))
	got := a.Current().Credentials
	if len(got) != 1 || !strings.HasPrefix(got[0], "m.io: the node's credentials cannot be read: ") {
		t.Errorf("%q", got)
	}
}

func TestTheAgentFollowsTheConfigMap(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	root := t.TempDir()
	client := fake.NewClientset(handed(oneMirror, mirrors.DeliveryNodes), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: "cri-o://1.30.0"}},
	})
	a := agent(t, root, CRIO, func(o *Options) { o.Client, o.Node = client, "n" })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Start(ctx) }()
	wait := func(want string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			if data, err := os.ReadFile(filepath.Join(root, dropIn)); err == nil && string(data) == want {
				return
			}
			select {
			case <-deadline:
				t.Fatalf("the file never became %q; report %+v", want, a.Current())
			case <-tick.C:
			}
		}
	}
	wait(header + oneMirror)
	next := strings.ReplaceAll(oneMirror, "m.io", "n.io")
	if _, err := client.CoreV1().ConfigMaps("archkeeper").Update(t.Context(), handed(next, mirrors.DeliveryNodes), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait(header + next)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if a.Current().Version != "cri-o://1.30.0" {
		t.Errorf("%+v", a.Current())
	}
}
