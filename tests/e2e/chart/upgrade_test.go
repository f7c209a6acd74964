package chart_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// Two versions that follow each other. There is no release yet that is older, so
// both are of this checkout and differ in what they say they are, in the chart's
// version and labels, and in the image. What they write for each other is kept
// as recorded files by the tests of deploy and of provider/cache.
const (
	older = "v0.9.0"
	newer = "v0.10.0"
)

// version renders the chart as a release of it would, and builds its program.
func version(t *testing.T, name string) *installation {
	t.Helper()
	chart := filepath.Join(t.TempDir(), "chart")
	if err := os.CopyFS(chart, os.DirFS(archkeeper.Chart())); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		switch key, _, _ := strings.Cut(line, ":"); key {
		case "version":
			line = "version: " + strings.TrimPrefix(name, "v") + "\n"
		case "appVersion":
			line = "appVersion: " + name + "\n"
		}
		lines = append(lines, line)
	}
	if err := os.WriteFile(filepath.Join(chart, "Chart.yaml"), []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	i, err := renderChart(t.Context(), cluster, chart, release, "upgraded", fmt.Sprintf(`
admission: {enabled: true, timeoutSeconds: 10, budget: 1s}
policies: {schedulingGate: true}
provider: {deadline: 1s, timeoutSeconds: 4, extraArgs: ["--shutdown-delay=1s"]}
registries: {plainHTTPHosts: [%q]}
configuration: {placement: {holdDeadline: 10m}}
logging: {format: text}
`, images.Host))
	if err != nil {
		t.Fatal(err)
	}
	i.revision = "-" + strings.ReplaceAll(name, ".", "-")
	i.binary = filepath.Join(cluster.StateDir(), "archkeeper"+i.revision)
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags", "-X main.version="+name, "-o", i.binary, "./cmd/archkeeper")
	build.Dir, build.Env = archkeeper.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", name, err, out)
	}
	t.Cleanup(i.end)
	return i
}

// rollout is an upgrade while it goes on.
type rollout struct {
	*controlplane.Test
	t     *testing.T
	audit int64
	made  int
}

// hold creates pods whose images nobody can know now.
func (r *rollout) hold(many int) {
	r.t.Helper()
	var creating sync.WaitGroup
	turns := make(chan string)
	for range 4 {
		creating.Go(func() {
			for name := range turns {
				created, err := r.TryCreatePod(pod(name, images.Host+"/upgraded/"+name+":1"))
				if err != nil {
					r.t.Error(err)
				} else if !gated(created) {
					r.t.Errorf("pod %s is not gated", name)
				}
			}
		})
	}
	for range many {
		r.made++
		turns <- fmt.Sprintf("pod-%d", r.made)
	}
	close(turns)
	creating.Wait()
}

// led is how often a version's controllers have become the leader.
func (i *installation) led() int {
	return strings.Count(strings.ToLower(i.started["controllers"].Log()), "successfully acquired lease")
}

// leads waits until a version leads, for that many times in all.
func (r *rollout) leads(want *installation, times int) {
	r.t.Helper()
	r.Eventually(want.revision+" leads", func(context.Context) error {
		if want.led() != times {
			return fmt.Errorf("it has led %d times", want.led())
		}
		return nil
	})
}

// freed waits until every pod is free, and counts what was written to each.
func (r *rollout) freed() {
	r.t.Helper()
	r.Eventually("all pods are free and placed", func(ctx context.Context) error {
		pods, err := cluster.Client.CoreV1().Pods(r.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) != r.made {
			return fmt.Errorf("%d pods, want %d", len(pods.Items), r.made)
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; gated(p) || p.Spec.Affinity == nil || p.Annotations["archkeeper.io/architectures"] != "arm64" {
				return fmt.Errorf("pod %s waits: %v", p.Name, p.Spec.SchedulingGates)
			}
		}
		return nil
	})
	events, err := cluster.Audit(r.audit, func(e *auditv1.Event) bool {
		return e.ObjectRef != nil && e.ObjectRef.Resource == "pods" && e.ObjectRef.Namespace == r.Namespace && e.Verb == "patch" &&
			strings.HasPrefix(e.User.Username, "system:serviceaccount:upgraded:")
	})
	if err != nil {
		r.t.Fatal(err)
	}
	writes := map[string]int{}
	for _, e := range events {
		if e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusOK {
			writes[e.ObjectRef.Name]++
		}
	}
	for n := 1; n <= r.made; n++ {
		if name := fmt.Sprintf("pod-%d", n); writes[name] != 1 {
			r.t.Errorf("pod %s was written %d times", name, writes[name])
		}
	}
}

// serve lets the registry answer, with an image for each pod.
func (r *rollout) serve() {
	r.t.Helper()
	if err := images.Up(); err != nil {
		r.t.Fatal(err)
	}
	for n := 1; n <= r.made; n++ {
		if _, err := images.Push(r.t.Context(), fmt.Sprintf("upgraded/pod-%d:1", n), "linux/arm64"); err != nil {
			r.t.Fatal(err)
		}
	}
}

// quit ends one version as a Deployment does whose pods are replaced.
func (i *installation) quit(t *testing.T) {
	t.Helper()
	slice := i.providerName() + "-here" + i.revision
	if err := cluster.Client.DiscoveryV1().EndpointSlices(i.namespace).Delete(t.Context(), slice, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	i.end()
	for _, component := range []string{"controllers", "provider"} {
		if err := i.started[component].Stop(); err != nil {
			t.Errorf("%s %s: %v", i.revision, component, err)
		}
	}
}

// answers is the file of answers of a version's provider.
func (i *installation) answers() string {
	return filepath.Join(i.root("provider"), "var", "cache", "archkeeper", "answers")
}

func TestUpgradeAndRollback(t *testing.T) {
	from, to := version(t, older), version(t, newer)
	r := &rollout{Test: cluster.Test(t), t: t, audit: cluster.AuditSize()}
	t.Cleanup(func() { _ = images.Up() }) // an error says that it is up
	if err := from.install(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := &story{installation: from, audit: r.audit}
	s.trust(t)
	if err := cluster.Gatekeeper.WaitMutator(t.Context(), "Assign", "archkeeper-scheduling-gate"); err != nil {
		t.Fatal(err)
	}
	r.leads(from, 1)
	if err := images.Down(); err != nil {
		t.Fatal(err)
	}
	r.hold(20)

	// The upgrade: objects first, new pods beside the old ones, then the old end.
	if err := to.install(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.hold(5)
	if to.led() != 0 {
		t.Error("two versions lead at once")
	}
	from.quit(t)
	r.leads(to, 1)
	r.hold(5)
	r.serve()
	r.freed()

	// The rollback, with what the newer version has stored.
	if err := images.Down(); err != nil {
		t.Fatal(err)
	}
	r.hold(10)
	fromTheFuture(t, to.answers(), from.answers())
	if err := from.apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := from.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log := from.started["provider"].Log(); !strings.Contains(log, "set aside") {
		t.Errorf("the older version says nothing of a store that it cannot read:\n%s", log)
	}
	r.hold(5)
	if from.led() != 1 {
		t.Error("two versions lead at once")
	}
	to.quit(t)
	r.leads(from, 2)
	r.serve()
	r.freed()
	s.leave(t)
}

// fromTheFuture copies a store and makes it one of a later format.
func fromTheFuture(t *testing.T, source, target string) {
	t.Helper()
	content, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target, content, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(target, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte{200}) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}
