// Package deploy holds what is installed into a cluster: the chart, the CRDs for
// plain Kubernetes, dashboards and alerts.
package deploy

//go:generate go run ./generate
