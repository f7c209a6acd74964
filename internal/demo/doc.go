// Package demo shows the whole of Archkeeper's data path in one process on the
// loopback interface: a small registry with images of different shapes, the
// provider beside it with a throw-away certificate, and a constraint that asks
// the provider about two pods. It needs no cluster, no configuration and no
// network.
package demo
