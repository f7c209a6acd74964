package archkeeper

import (
	"context"
	"io"

	"github.com/archkeeper/archkeeper/tests/controlplane"
)

// AllInOneServiceAccount is that of `archkeeper all-in-one`.
const AllInOneServiceAccount = "archkeeper-all-in-one"

// allInOneAccess is what provider and placement may do together.
const allInOneAccess = `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: archkeeper-all-in-one, namespace: archkeeper-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: archkeeper-all-in-one-provider}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: archkeeper-provider}
subjects: [{kind: ServiceAccount, name: archkeeper-all-in-one, namespace: archkeeper-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: archkeeper-all-in-one-controllers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: archkeeper-controllers}
subjects: [{kind: ServiceAccount, name: archkeeper-all-in-one, namespace: archkeeper-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: archkeeper-all-in-one, namespace: archkeeper-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: archkeeper-controllers}
subjects: [{kind: ServiceAccount, name: archkeeper-all-in-one, namespace: archkeeper-system}]
`

// StartAllInOne starts provider, admission and placement as one process.
func StartAllInOne(ctx context.Context, c *controlplane.Cluster, log io.Writer, o ProviderOptions) (*Provider, error) {
	for _, manifests := range []string{access, controllersAccess, allInOneAccess} {
		if err := c.Apply(ctx, "", manifests); err != nil {
			return nil, err
		}
	}
	o.command, o.account = "all-in-one", AllInOneServiceAccount
	o.Flags = append([]string{"--namespace=" + Namespace}, o.Flags...)
	return StartProvider(ctx, c, log, o)
}
