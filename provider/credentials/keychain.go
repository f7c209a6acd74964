package credentials

import (
	"context"
	"errors"

	"github.com/archkeeper/archkeeper/provider"
)

// Keychain finds credentials.
//
// Lookup gives what may be shown for an image, name being registry/repository
// as in docker.io/library/busybox, on behalf of a scope: in order of preference,
// without repetition, never Anonymous, nil when there is none.
//
// An error says that something could not be read or understood. It hides no
// credential: both results may be set, and the caller goes on with what it has.
// The error matters when the registry then refuses, because it may be why.
// Errors name objects and files, never their content.
//
// With a context that has ended, Lookup gives at once what is held already, and
// an error that wraps the context's when it would have had to wait.
//
// A change or deletion of a source takes effect with the next Lookup.
type Keychain interface {
	Lookup(ctx context.Context, scope provider.Scope, name string) ([]Credential, error)
}

// Chain asks one keychain after the other and gives what all of them found. The
// kubelet's order is: the pod's secrets, files of the node, plugins.
type Chain []Keychain

// Lookup implements Keychain.
func (c Chain) Lookup(ctx context.Context, scope provider.Scope, name string) ([]Credential, error) {
	var found []Credential
	var failed []error
	for _, keychain := range c {
		credentials, err := keychain.Lookup(ctx, scope, name)
		found = append(found, credentials...)
		if err != nil {
			failed = append(failed, err)
		}
	}
	return distinct(found), errors.Join(failed...)
}
