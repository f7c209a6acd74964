// Package importmode keeps status.imageStreamImportMode of the OpenShift object
// config.openshift.io/v1 Image "cluster" at the value that its spec and the
// release payload ask for.
//
// Decide is the pure decision. history remembers what time adds to it: how
// long a decision has stood, and how often another writer undid it. Controller
// fetches, asks the two, and patches that one field, with optimistic locking
// and strict field validation, only when it changes.
package importmode
