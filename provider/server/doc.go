// Package server is the provider's HTTPS service: Gatekeeper's external data
// protocol, and a page for people, in front of a provider.Inspector.
//
// Handlers translate and do not think. What a request asks is read by pure
// functions (request.go), what it is told is written by pure functions
// (answer.go); who may ask is decided in auth.go and tokens.go; files that
// change under us are in certificates.go.
//
// Three things hold for every answer: the body is complete JSON, whatever went
// wrong; a durable verdict is an item error and a failure that may pass is
// never an item, because Gatekeeper caches every item that it is given; and a
// key comes back byte for byte as it was sent.
package server
