// Package oracle compares Archkeeper with the libraries that decide on a node:
// the containers library reads registries.conf there, OpenShift's runtime-utils
// writes it on its clusters, and the kubelet matches credentials to images. It
// is a module of its own, so that those libraries stay out of the product; each
// has a package of its own, because their C parts cannot be linked together.
package oracle
