package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
)

var cluster *Cluster

func TestMain(m *testing.M) {
	if os.Getenv(orphanHelper) != "" {
		runOrphanHelper()
	}
	os.Exit(Main(m, Options{
		Nodes: []Node{
			{Arch: "amd64"},
			{Arch: "arm64"},
			{Arch: "s390x", Taints: []corev1.Taint{{Key: "mainframe", Effect: corev1.TaintEffectNoSchedule}}},
			{Name: "win-0", Arch: "amd64", OS: "windows"},
		},
		Gatekeeper: &GatekeeperOptions{},
	}, func(_ context.Context, c *Cluster) error {
		cluster = c
		return nil
	}))
}

func podFor(name, selector string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeSelector: %s, containers: [{name: c, image: example.test/i}]}}`, name, selector)
}

func TestAPodRunsOnANodeOfTheArchitectureThatItSelects(t *testing.T) {
	k := cluster.Test(t)
	k.CreatePod(podFor("arm", "{kubernetes.io/arch: arm64}"))
	k.CreatePod(podFor("win", "{kubernetes.io/os: windows}"))
	if node := k.WaitRunning("arm").Spec.NodeName; !strings.HasPrefix(node, "arm64-") {
		t.Errorf("the pod for arm64 runs on %s", node)
	}
	if node := k.WaitRunning("win").Spec.NodeName; node != "win-0" {
		t.Errorf("the pod for windows runs on %s", node)
	}
}

func TestANodeCanJoinLater(t *testing.T) {
	k := cluster.Test(t)
	k.CreatePod(podFor("p", "{kubernetes.io/arch: ppc64le}"))
	name := k.AddNode(Node{Arch: "ppc64le"})
	if node := k.WaitRunning("p").Spec.NodeName; node != name {
		t.Errorf("the pod runs on %s, expected %s", node, name)
	}
}

func TestKubectlIsTheClustersOwn(t *testing.T) {
	k := cluster.Test(t)
	if out := k.Kubectl("version"); strings.Count(out, kubernetesVersion) != 2 {
		t.Errorf("client and server are not both %s:\n%s", kubernetesVersion, out)
	}
	if _, err := k.TryKubectl("get", "pod", "nobody"); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("kubectl's stderr is not in the error: %v", err)
	}
}

func TestAServiceAccountMayDoWhatItsRolesSay(t *testing.T) {
	k := cluster.Test(t)
	k.Apply(`
{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader}, rules: [{apiGroups: [""], resources: [pods], verbs: [list]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: reader}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}, subjects: [{kind: ServiceAccount, name: reader}]}
`)
	path, err := cluster.KubeconfigForServiceAccount(t.Context(), k.Namespace, "reader")
	if err != nil {
		t.Fatal(err)
	}
	config, err := cluster.ConfigFor(path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	offset := cluster.AuditSize()
	k.Eventually("the role is in force", func(ctx context.Context) error {
		_, err := client.CoreV1().Pods(k.Namespace).List(ctx, metav1.ListOptions{})
		return err
	})
	if _, err := client.CoreV1().Secrets(k.Namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing secrets: %v, expected forbidden", err)
	}
	events, err := cluster.Audit(offset, func(e *auditv1.Event) bool {
		return e.User.Username == "system:serviceaccount:"+k.Namespace+":reader" && e.ObjectRef.Resource == "secrets"
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 1 || events[0].ResponseStatus.Code != 403 {
		t.Errorf("audit log has %d events about secrets, expected one with status 403: %v", len(events), events)
	}
}

func TestApplyWaitsForKindsThatAreNew(t *testing.T) {
	k := cluster.Test(t)
	k.ApplyForTest(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.test}
spec:
  group: example.test
  names: {kind: Thing, plural: things}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
{apiVersion: example.test/v1, kind: Thing, metadata: {name: one}, spec: {n: 1}}
`)
	thing, err := cluster.Get(t.Context(), "Thing.v1.example.test", k.Namespace, "one")
	if err != nil {
		t.Fatal(err)
	}
	if thing.GetNamespace() != k.Namespace {
		t.Errorf("the object went to namespace %s", thing.GetNamespace())
	}
}

func TestMutatingAdmissionPoliciesAreServed(t *testing.T) {
	k := cluster.Test(t)
	if out := k.Kubectl("get", "mutatingadmissionpolicies.v1.admissionregistration.k8s.io", "-o", "name"); out != "" {
		t.Errorf("there are some: %s", out)
	}
}

func TestAKilledProcessComesBack(t *testing.T) {
	k := cluster.Test(t)
	scheduler := cluster.Process("kube-scheduler")
	if err := scheduler.Kill(); err != nil {
		t.Fatal(err)
	}
	before := scheduler.Pid()
	k.CreatePod(podFor("p", "{}"))
	if err := scheduler.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.WaitRunning("p")
	if scheduler.Pid() == before {
		t.Error("the process did not change")
	}
}

func TestAProcessThatEndsBeforeItIsReadyIsAnErrorWithItsLog(t *testing.T) {
	cluster.Test(t)
	_, err := cluster.Run(t.Context(), Program{
		Name: "broken", Path: "/bin/sh", Args: []string{"-c", "echo no luck; exit 3"},
		Ready: func(context.Context) error { return errors.New("not yet") },
	})
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no luck") {
		t.Errorf("error is %v", err)
	}
}

const denyMarked = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: denymarked}
spec:
  crd: {spec: {names: {kind: DenyMarked}}}
  targets:
    - target: admission.k8s.gatekeeper.sh
      code:
        - engine: Rego
          source:
            version: v1
            rego: |
              package denymarked
              violation contains {"msg": "it is marked"} if input.review.object.metadata.labels.marked == "yes"
---
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: DenyMarked
metadata: {name: denymarked}
spec: {match: {kinds: [{apiGroups: [""], kinds: [ConfigMap]}]}}
`

func TestGatekeeperDeniesAlsoAfterItsCAWasRotatedAndAfterARestart(t *testing.T) {
	k := cluster.Test(t)
	k.ApplyForTest(denyMarked)
	gatekeeper := cluster.Gatekeeper
	if err := gatekeeper.WaitTemplate(t.Context(), "denymarked"); err != nil {
		t.Fatal(err)
	}
	if err := gatekeeper.WaitConstraint(t.Context(), "DenyMarked", "denymarked"); err != nil {
		t.Fatal(err)
	}
	denied := func(when string) {
		t.Helper()
		_, err := k.TryCreate(`{apiVersion: v1, kind: ConfigMap, metadata: {generateName: m-, labels: {marked: "yes"}}}`)
		if err == nil || !strings.Contains(err.Error(), "it is marked") {
			t.Errorf("%s, creating what the constraint forbids gives: %v", when, err)
		}
	}
	denied("at first")
	pid := gatekeeper.Process.Pid()
	if err := gatekeeper.RotateCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	if gatekeeper.Process.Pid() != pid {
		t.Error("the rotation restarted Gatekeeper")
	}
	k.Eventually("the API server calls the webhook with the new authority", func(context.Context) error {
		_, err := k.TryCreate(`{apiVersion: v1, kind: ConfigMap, metadata: {generateName: m-, labels: {marked: "yes"}}}`)
		if err == nil {
			return errors.New("created")
		}
		return nil
	})
	denied("after the rotation")
	if err := gatekeeper.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	denied("after the restart")
}
