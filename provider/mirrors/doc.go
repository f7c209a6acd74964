// Package mirrors knows where images may come from: it turns mirror objects
// (ImageContentSourcePolicy, ImageDigestMirrorSet, ImageTagMirrorSet and the
// registry sources of Image/cluster) into a registries.conf, reads such files
// as container runtimes read them, and resolves references to the places that a
// runtime would try.
//
// The package is pure. The same objects give the same bytes, whatever their
// names and their order; nothing that is passed in is changed.
package mirrors
