// Package provider holds the vocabulary of image inspection: what is asked
// (Query), what is answered (Answer), who answers (Inspector) and the closed
// list of reasons for which an image's platforms are not known (Class).
//
// The package is pure: no network, no Kubernetes client, no clock, no logging.
package provider

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Query asks which platforms one image runs on, on behalf of one workload.
type Query struct {
	// Image is the reference as the user wrote it. It is never trimmed or
	// repaired: white space around it is malformed.
	Image string

	// Scope says whose pull credentials may be used. The zero value uses
	// none of a namespace's credentials.
	Scope Scope

	// Revalidate asks for an answer that the registry has confirmed during
	// this call, as imagePullPolicy Always does. An answer by digest needs
	// no confirmation.
	Revalidate bool
}

// Scope names the Kubernetes objects from which the kubelet would take pull
// credentials for a pod. The zero Scope is the anonymous one.
type Scope struct {
	// Namespace of the pod; empty for the anonymous scope.
	Namespace string
	// ServiceAccount of the pod. Its imagePullSecrets stand in only when
	// ImagePullSecrets is empty: admission copies them into the pod.
	ServiceAccount string
	// ImagePullSecrets are the names of the pod's own pull secrets.
	ImagePullSecrets []string
}

// Anonymous tells whether the scope names no namespace.
func (s Scope) Anonymous() bool { return s.Namespace == "" }

// Kind says what stands behind a reference.
type Kind string

// The kinds of content that a reference can name.
const (
	KindIndex    Kind = "index"    // OCI image index or Docker manifest list
	KindManifest Kind = "manifest" // OCI or Docker image manifest with an image config
	KindArtifact Kind = "artifact" // manifest whose config is no image config
	KindSchema1  Kind = "schema1"  // Docker schema 1, signed or not
)

// Answer is what is known of one image. Exactly one of three holds: Err is
// set (not known); ContentOnly is true (known, places no constraint); else
// Platforms lists, completely, what the image runs on.
//
// An Answer is shared between callers: treat it as immutable.
type Answer struct {
	// Image is Query.Image, byte for byte.
	Image string
	// Reference is the canonical form, with registry and tag or digest, such
	// as docker.io/library/busybox:latest. A tag beside a digest is kept.
	// Empty when Image is malformed.
	Reference string
	// Digest of what Reference names, "algorithm:hex"; the digest asked for
	// when there was one. For a signed schema 1 manifest, that of its payload.
	Digest string
	// Kind of the content; empty when nothing was read.
	Kind Kind
	// Platforms in containerd's normalised form, sorted, without duplicates,
	// such as linux/amd64, linux/arm/v7, windows(10.0.17763.1)/amd64.
	Platforms []string
	// Architectures are values of the node label kubernetes.io/arch on which
	// a runtime would run the image as OS linux. Sorted, without duplicates;
	// empty when the image has no linux platform.
	Architectures []string
	// ContentOnly marks images that are data, such as OLM bundles: they place
	// no constraint on where a pod runs.
	ContentOnly bool
	// Mirror is the location, with its repository, that answered, when it
	// was not the reference's own.
	Mirror string
	// CredentialSource says which credentials the registry accepted, for
	// example "anonymous", "secret ns/name" or "authfile". Never a secret.
	CredentialSource string
	// AnonymousFallback is true when credentials matched, the registry
	// refused them, and the answer was learnt without any. The kubelet would
	// not have done so.
	AnonymousFallback bool
	// Warnings for a human, for example that index and config disagree.
	Warnings []string
	// Checked is when a registry last confirmed the answer; zero when Err
	// was found without asking.
	Checked time.Time
	// Err says why the platforms are not known; nil when they are.
	Err *Error
}

// Known tells whether the platforms, or that there is no constraint, are known.
func (a Answer) Known() bool { return a.Err == nil }

// Inspector answers queries.
//
// Inspect returns one Answer for each Query, in the order of the queries,
// whatever happens: a failure belongs to its image alone and is that Answer's
// Err. Queries are worked on concurrently. When ctx ends first, the images
// still open are answered with ClassTimeout and the others keep their answers;
// shared look-ups go on in the background so that the next ask is warm.
type Inspector interface {
	Inspect(ctx context.Context, queries []Query) []Answer
}

// Generation tells whether asking again may bring another answer: it differs when
// something that answers are made from (mirrors, credentials) has changed in
// between. Changes of two instances, which are replicas or restarts, say nothing
// about each other.
type Generation struct {
	Instance string `json:"instance"`
	Changes  uint64 `json:"changes"`
}

// Class is the reason for which an image's platforms are not known. The list
// is closed: code that switches over it handles every value.
type Class string

// The error classes.
const (
	// ClassMalformed is a reference that no registry could resolve.
	ClassMalformed Class = "malformed"
	// ClassNotFound is a repository, tag, manifest or config that is not there,
	// or that the caller may not see: the two are not told apart.
	ClassNotFound Class = "not-found"
	// ClassUnauthorized means that every credential was refused.
	ClassUnauthorized Class = "unauthorized"
	// ClassRateLimited is HTTP 429 or a registry's own quota.
	ClassRateLimited Class = "rate-limited"
	// ClassTimeout means that the deadline came before the answer.
	ClassTimeout Class = "timeout"
	// ClassUnreachable is no connection, a body cut short, or HTTP 5xx.
	ClassUnreachable Class = "unreachable"
	// ClassBlocked is a registry, address or scope that configuration forbids.
	ClassBlocked Class = "blocked"
	// ClassNotRunnable is content that no container runtime can run.
	ClassNotRunnable Class = "not-runnable"
	// ClassInvalidContent is content that breaks its specification or a limit.
	ClassInvalidContent Class = "invalid-content"
	// ClassInternal is a fault of Archkeeper's own.
	ClassInternal Class = "internal"
)

// Classes lists every Class, in the order of their declaration.
func Classes() []Class {
	return []Class{
		ClassMalformed, ClassNotFound, ClassUnauthorized, ClassRateLimited, ClassTimeout,
		ClassUnreachable, ClassBlocked, ClassNotRunnable, ClassInvalidContent, ClassInternal,
	}
}

// Retryable tells whether asking again later may give another answer.
// Its complement are the durable verdicts, which others may cache.
func (c Class) Retryable() bool {
	switch c {
	case ClassNotFound, ClassUnauthorized, ClassRateLimited, ClassTimeout, ClassUnreachable, ClassInternal:
		return true
	case ClassMalformed, ClassBlocked, ClassNotRunnable, ClassInvalidContent:
		return false
	}
	return true // an unknown class is not a durable verdict
}

// Error says why an image's platforms are not known. Its message is written
// for the person who will read it, names registry and status, and holds no secret.
type Error struct {
	Class   Class
	Message string
	// HTTPStatus of the registry's last word; 0 when there was none.
	HTTPStatus int
	// RetryAfter is how long the registry asked to wait; 0 when it did not say.
	RetryAfter time.Duration
	cause      error
}

// Errorf makes an Error of a class. A %w verb in format keeps the cause for
// errors.Is and errors.As.
func Errorf(class Class, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Class: class, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Error gives "<class>: <message>", the form of an item error on the wire.
func (e *Error) Error() string { return string(e.Class) + ": " + e.Message }

// Unwrap gives the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }
