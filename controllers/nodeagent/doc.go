// Package nodeagent asks one question: which files of this node say where its
// container runtime finds mirrors? It takes the merged registries.conf from the
// mirror controller's ConfigMap and keeps a drop-in for CRI-O and Podman, or
// hosts.toml files for containerd, in step with it.
//
// DecideDropIn and DecideHosts are pure. A file that would not load together
// with the node's own files is never written, files of others are never
// touched, and a write is either there as a whole or not at all.
package nodeagent
