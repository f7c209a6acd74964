package archkeeper

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/archkeeper/archkeeper/tests/controlplane"
)

// ControllersServiceAccount is that of `archkeeper controllers`, and
// ControllersUser its name in the audit log.
const (
	ControllersServiceAccount = "archkeeper-controllers"
	ControllersUser           = "system:serviceaccount:" + Namespace + ":" + ControllersServiceAccount
	ProviderUser              = "system:serviceaccount:" + Namespace + ":" + ServiceAccount
)

// ControllersOptions say how to run `archkeeper controllers`.
type ControllersOptions struct {
	// Name of the process.
	Name string
	// Provider that is asked.
	Provider *Provider
	// Lease in Namespace; "archkeeper-controllers" when empty.
	Lease string
	// LeaseDuration is 15 s when zero, as shipped.
	LeaseDuration time.Duration
	// Config is the path of a Configuration; empty: the defaults.
	Config string
	// Flags after the others. They win. Env is added to the process's.
	Flags, Env []string
}

// Controllers is `archkeeper controllers` with placement as a process.
type Controllers struct {
	*controlplane.Process
	// ProbeURL serves health and metrics.
	ProbeURL string
}

// controllersAccess is what placement may do.
const controllersAccess = `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: archkeeper-controllers, namespace: archkeeper-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: archkeeper-controllers}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [get, list, watch, patch]}
  - {apiGroups: [""], resources: [namespaces, nodes], verbs: [get, list, watch]}
  - {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: archkeeper-controllers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: archkeeper-controllers}
subjects: [{kind: ServiceAccount, name: archkeeper-controllers, namespace: archkeeper-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: archkeeper-controllers, namespace: archkeeper-system}
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, get, list, watch, update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: archkeeper-controllers, namespace: archkeeper-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: archkeeper-controllers}
subjects: [{kind: ServiceAccount, name: archkeeper-controllers, namespace: archkeeper-system}]
`

// StartControllers starts placement, one replica, and waits until it is ready:
// not until it leads.
func StartControllers(ctx context.Context, c *controlplane.Cluster, log io.Writer, o ControllersOptions) (*Controllers, error) {
	if o.Lease == "" {
		o.Lease = "archkeeper-controllers"
	}
	if o.LeaseDuration == 0 {
		o.LeaseDuration = 15 * time.Second
	}
	binary, err := Binary(ctx, log)
	if err != nil {
		return nil, err
	}
	if err := c.Apply(ctx, "", controllersAccess); err != nil {
		return nil, err
	}
	kubeconfig, err := c.KubeconfigForServiceAccount(ctx, Namespace, ControllersServiceAccount)
	if err != nil {
		return nil, err
	}
	port, err := controlplane.FreePort()
	if err != nil {
		return nil, err
	}
	probe := "127.0.0.1:" + strconv.Itoa(port)
	caller := o.Provider.CallerDir
	args := []string{
		"controllers", "--enable=placement", "--namespace=" + Namespace, "--lease=" + o.Lease,
		"--lease-duration=" + o.LeaseDuration.String(), "--probe-listen=" + probe, "--kubeconfig=" + kubeconfig,
		"--provider=" + o.Provider.URL, "--provider-ca=" + filepath.Join(caller, "ca.crt"),
		"--tls-cert=" + filepath.Join(caller, "tls.crt"), "--tls-key=" + filepath.Join(caller, "tls.key"),
	}
	if o.Config != "" {
		args = append(args, "--config="+o.Config)
	}
	process, err := c.Run(ctx, controlplane.Program{
		Name: o.Name, Path: binary, Args: append(args, o.Flags...), Env: o.Env,
		Ready: func(ctx context.Context) error { return expectOK(ctx, "http://"+probe+"/readyz") },
	})
	if err != nil {
		return nil, fmt.Errorf("starting the controllers: %w", err)
	}
	return &Controllers{Process: process, ProbeURL: "http://" + probe}, nil
}
