// Package controlplane starts a real Kubernetes control plane as local
// processes, without containers: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kwok's fake nodes and, when asked,
// Gatekeeper. The programs are built on demand from the tool lines of this
// module's go.mod, once, and kept in a git-ignored folder.
//
// A package of tests shares one cluster:
//
//	var cluster *controlplane.Cluster
//
//	func TestMain(m *testing.M) {
//		os.Exit(controlplane.Main(m, controlplane.Options{Gatekeeper: true},
//			func(ctx context.Context, c *controlplane.Cluster) error {
//				cluster = c
//				return c.Apply(ctx, "", policies)
//			}))
//	}
//
//	func TestSomething(t *testing.T) {
//		c := cluster.Test(t) // a namespace of this test's own, c.Namespace
//		c.Apply(`{apiVersion: v1, kind: Pod, ...}`)
//		c.Eventually("the pod runs", func(ctx context.Context) error { ... })
//		c.Kubectl("get", "pods")
//	}
//
// Every process writes a log of its own. A test that fails prints what each
// process wrote while it ran; a package that fails keeps the state folder and
// names it. Processes are ended by their own pid when the run ends, and by the
// kernel when the process that started them is killed.
package controlplane
