// Package rego turns a pod, and what is known of its images, into a decision:
// it evaluates the placement policy (rego/placement), or a user's extension or
// replacement of it, and lets nothing past that the API server would refuse or
// that is not a placement policy's to change.
//
// The package decides. It asks no registry and no cluster: callers bring the
// answers and write the patch, to which they add the resourceVersion.
package rego
