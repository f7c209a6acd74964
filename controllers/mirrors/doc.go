// Package mirrors asks one question: which registries.conf do the cluster's
// mirror objects mean together? It follows ImageContentSourcePolicy,
// ImageDigestMirrorSet, ImageTagMirrorSet and Image/cluster wherever they are
// served, merges full lists of them with provider/mirrors, and keeps the result
// in a ConfigMap, from which the provider and the node agents take it.
//
// Make decides and is pure. The Controller fetches, asks it, and writes what
// has changed.
package mirrors
