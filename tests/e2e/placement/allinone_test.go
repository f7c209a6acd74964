package placement_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// One process of a gate of its own, beside the two replicas of the others: the fast
// path, the slow path, and whatever a held pod may wait for.
func TestAllInOne(t *testing.T) {
	t.Parallel()
	const own = "archkeeper.io/all-in-one"
	ownGated := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == own })
	}
	k, f := test(t, ownWebhooks+"=all-in-one")
	limited, err := archkeeper.ServeImages()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = limited.Close() })
	if _, err := limited.Push(t.Context(), "shop/arm:1", "linux/arm64"); err != nil {
		t.Fatal(err)
	}
	limited.LimitAnonymous()

	dir := t.TempDir()
	file := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	settings := func(deadline string) string {
		return file("configuration.yaml", fmt.Sprintf(
			"{apiVersion: archkeeper.io/v1alpha1, kind: Configuration, placement: {gate: %s, holdDeadline: %s}}", own, deadline))
	}
	const extension = "package archkeeper.extension\n\nexempt contains \"chosen\" if input.pod.metadata.name == %q\n"
	file("policies/extension.rego", fmt.Sprintf(extension, "nobody"))
	file("registries/10-none.conf", "")
	one, err := archkeeper.StartAllInOne(t.Context(), cluster, os.Stderr, archkeeper.ProviderOptions{
		Name: "all-in-one", Admission: true, Deadline: 2500 * time.Millisecond,
		PlainHTTPHosts: []string{good.Host, slow.Host, mute.Host, limited.Host},
		Flags: []string{
			"--lease=all-in-one", "--config=" + settings("5m"), "--policy-dir=" + filepath.Join(dir, "policies"),
			"--registries-conf-dir=" + filepath.Join(dir, "registries"), "--pprof",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = one.Process.Kill() })
	const configuration = "z-all-in-one.archkeeper.io"
	if err := cluster.Apply(t.Context(), "", webhook(configuration, one, "{key: "+ownWebhooks+", operator: In, values: [all-in-one]}")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(context.Background(), configuration, metav1.DeleteOptions{})
	})
	k.Eventually("pods are gated", func(ctx context.Context) error {
		p, err := dryRun(ctx, k, pod("alive-", "", image(mute, "arm")))
		if err == nil && !ownGated(p) {
			return errors.New("a pod with an unknown image is not")
		}
		return err
	})

	k.Eventually("an image is known", func(ctx context.Context) error {
		p, err := dryRun(ctx, k, pod("warm-", "", image(good, "z")))
		if err == nil && ownGated(p) {
			return errors.New("it is not")
		}
		return err
	})
	fast := k.CreatePod(pod("fast", "", image(good, "z")))
	if ownGated(fast) {
		t.Error("a pod with a known image is gated")
	}
	if p := f.run("fast"); !strings.HasPrefix(p.Spec.NodeName, "s390x-") {
		t.Errorf("the pod is on %s", p.Spec.NodeName)
	}
	if !ownGated(k.CreatePod(pod("slow", "", cold(slow, 6, "power")))) {
		t.Error("a pod with an unknown image is not gated")
	}
	if p := f.run("slow"); !strings.HasPrefix(p.Spec.NodeName, "ppc64le-") {
		t.Errorf("the pod is on %s", p.Spec.NodeName)
	}

	// A registry that asks to wait makes a pause of ten seconds or more. What ends a
	// pod's waiting ends the pause too.
	for _, step := range []struct {
		name, more, image string
		change            func()
		node              string
	}{
		{"secret", "imagePullSecrets: [{name: late}], ", image(limited, "arm"), func() {
			auth := base64.StdEncoding.EncodeToString([]byte("somebody:anything"))
			k.Create(fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {name: late}, type: kubernetes.io/dockerconfigjson, stringData: {.dockerconfigjson: '{"auths":{%q:{"auth":%q}}}'}}`, limited.Host, auth))
		}, "arm64-"},
		{"mirror", "", image(limited, "arm"), func() {
			file("registries/20-shop.conf", fmt.Sprintf("[[registry]]\nlocation = %q\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", limited.Host+"/shop", good.Host+"/shop"))
		}, "arm64-"},
		{"policy", "nodeSelector: {kubernetes.io/hostname: amd64-0}, ", image(mute, "amd"), func() {
			file("policies/extension.rego", fmt.Sprintf(extension, "policy"))
		}, "amd64-0"},
		{"configuration", "nodeSelector: {kubernetes.io/hostname: amd64-1}, ", image(mute, "amd"), func() { settings("1s") }, "amd64-1"},
	} {
		if !ownGated(k.CreatePod(pod(step.name, step.more, step.image))) {
			t.Errorf("the pod that waits for a %s is not gated", step.name)
		}
		k.Eventually("the pod is held", func(ctx context.Context) error {
			held, err := metric(ctx, one.ProbeURL, "archkeeper_placement_held_pods")
			if err == nil && held != 1 {
				return fmt.Errorf("%v pods are", held)
			}
			return err
		})
		changed := time.Now()
		step.change()
		p := f.run(step.name)
		if waited := f.of(step.name).freed.Sub(changed); waited > 8*time.Second {
			t.Errorf("after the change of the %s the pod waited for another %s", step.name, waited)
		}
		if !strings.HasPrefix(p.Spec.NodeName, step.node) {
			t.Errorf("the pod that waited for a %s is on %s", step.name, p.Spec.NodeName)
		}
	}

	// One probe port for all parts.
	for _, name := range []string{"archkeeper_provider_requests_total", "archkeeper_admission_seconds_count", "archkeeper_placement_held_pods", "go_goroutines"} {
		if _, err := metric(t.Context(), one.ProbeURL, name); err != nil {
			t.Error(err)
		}
	}
	if status, _ := probe(t, http.MethodPut, one.ProbeURL+"/loglevel", "debug"); status != http.StatusOK {
		t.Errorf("setting the log level: status %d", status)
	}
	if status, _ := probe(t, http.MethodGet, one.ProbeURL+"/debug/pprof/goroutine?debug=1", ""); status != http.StatusOK {
		t.Errorf("profiles: status %d", status)
	}
	if err := one.Process.Stop(); err != nil {
		t.Errorf("it did not end in order: %v", err)
	}
	lease, err := cluster.Client.CoordinationV1().Leases(archkeeper.Namespace).Get(t.Context(), "all-in-one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("the Lease is still held by %s", *holder)
	}
	if log := one.Process.Log(); strings.Contains(strings.ToLower(log), "forbidden") {
		t.Errorf("something was not allowed:\n%s", log)
	}
}

// probe asks a probe port.
func probe(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4<<20))
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}
