package importmode

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// handOver is how long a replica may take to follow a leader that ends in an
// orderly way.
const handOver = 5 * time.Second

// TestOneReplicaWritesAndAnotherTakesOver runs the real program twice, each
// replica as a service account of its own, so that the audit log tells them apart.
func TestOneReplicaWritesAndAnotherTakesOver(t *testing.T) {
	f := newFixture(t)
	f.Apply(crd(t, images) + "\n---\n" + crd(t, versions))
	f.makeImage(t)
	f.patch(t, imagesResource, "cluster", "", map[string]any{"spec": map[string]any{"imageStreamImportMode": "PreserveOriginal"}})
	for _, account := range []string{"controllers", "second"} {
		f.ApplyForTest(fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[2]s, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s-%[2]s-leaders}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s-importmode}
subjects: [{kind: ServiceAccount, name: %[2]s, namespace: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: importmode-%[2]s, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: importmode}
subjects: [{kind: ServiceAccount, name: %[2]s, namespace: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: lease, namespace: %[1]s}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, get, update]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: lease-%[2]s, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: lease}
subjects: [{kind: ServiceAccount, name: %[2]s, namespace: %[1]s}]
`, f.Namespace, account))
	}
	first := f.replica(t, "controllers")
	f.wantMode(t, "PreserveOriginal")
	f.replica(t, "second")

	f.settle(t)
	if n := f.writesBy(t, "second"); n != 0 {
		t.Errorf("the replica that does not lead wrote %d times", n)
	}
	before := f.writesBy(t, "controllers")
	if before < 2 {
		t.Errorf("the leader wrote %d times, want the mode and its restoration", before)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	f.settle(t)
	if took := time.Since(began); took > handOver {
		t.Errorf("the other replica wrote after %s, want within %s", took, handOver)
	}
	if n := f.writesBy(t, "second"); n != 1 {
		t.Errorf("the new leader wrote %d times, want once", n)
	}
	if n := f.writesBy(t, "controllers"); n != before {
		t.Errorf("the replica that ended wrote %d times more", n-before)
	}
}

// replica starts `archkeeper controllers --enable importmode` as a service account.
func (f *fixture) replica(t *testing.T, account string) *controlplane.Process {
	t.Helper()
	binary, err := archkeeper.Binary(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := cluster.KubeconfigForServiceAccount(t.Context(), f.Namespace, account)
	if err != nil {
		t.Fatal(err)
	}
	port, err := controlplane.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	probe := "127.0.0.1:" + strconv.Itoa(port)
	return f.Run(controlplane.Program{
		Name: "importmode-" + account, Path: binary,
		Args: []string{
			"controllers", "--enable=importmode", "--importmode-mode=enforce", "--namespace=" + f.Namespace,
			"--probe-listen=" + probe, "--kubeconfig=" + kubeconfig,
		},
		Ready: func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+probe+"/readyz", nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("HTTP %d", response.StatusCode)
			}
			return nil
		},
	})
}

// writesBy counts the successful patches of images/status by a service account.
func (f *fixture) writesBy(t *testing.T, account string) int {
	t.Helper()
	events, err := cluster.Audit(f.audit, func(e *auditv1.Event) bool {
		return e.User.Username == "system:serviceaccount:"+f.Namespace+":"+account && e.Verb == "patch" &&
			e.ObjectRef != nil && e.ObjectRef.Resource == "images" && e.ResponseStatus != nil && e.ResponseStatus.Code == 200
	})
	if err != nil {
		t.Fatal(err)
	}
	return len(events)
}
