package credentials

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/archkeeper/archkeeper/provider"
)

// watch keeps one kind of object of one namespace, or of all, in step with the
// API server.
type watch struct {
	kind     string
	informer cache.SharedIndexInformer
}

func (w *watch) get(namespace, name string) (*held, bool) {
	object, ok, err := w.informer.GetIndexer().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil, false
	}
	kept, ok := object.(*held)
	return kept, ok
}

// newWatches watches the pull secrets and service accounts of a namespace. The
// API server filters secrets by type, so that no other secret reaches us; field
// selectors know no "or", hence one watch for each type.
func newWatches(options SecretsOptions, said *faults, namespace string) ([]*watch, error) {
	jsonSecrets, err := newSecretWatch(options, said, namespace, fields.OneTermEqualSelector("type", string(corev1.SecretTypeDockerConfigJson)))
	if err != nil {
		return nil, err
	}
	cfgSecrets, err := newSecretWatch(options, said, namespace, fields.OneTermEqualSelector("type", string(corev1.SecretTypeDockercfg)))
	if err != nil {
		return nil, err
	}
	accounts := options.Client.ServiceAccounts(namespace)
	serviceAccounts, err := newWatch(options.OnChange, said, kindServiceAccount, &corev1.ServiceAccount{}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, list metav1.ListOptions) (runtime.Object, error) {
			return accounts.List(ctx, list)
		},
		WatchFuncWithContext: func(ctx context.Context, list metav1.ListOptions) (apiwatch.Interface, error) {
			return accounts.Watch(ctx, list)
		},
	})
	if err != nil {
		return nil, err
	}
	return []*watch{jsonSecrets, cfgSecrets, serviceAccounts}, nil
}

func newSecretWatch(options SecretsOptions, said *faults, namespace string, selector fields.Selector) (*watch, error) {
	secrets := options.Client.Secrets(namespace)
	return newWatch(options.OnChange, said, kindSecret, &corev1.Secret{}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, list metav1.ListOptions) (runtime.Object, error) {
			list.FieldSelector = selector.String()
			return secrets.List(ctx, list)
		},
		WatchFuncWithContext: func(ctx context.Context, list metav1.ListOptions) (apiwatch.Interface, error) {
			list.FieldSelector = selector.String()
			return secrets.Watch(ctx, list)
		},
	})
}

func newWatch(changed func(), said *faults, kind string, example runtime.Object, lister *cache.ListWatch) (*watch, error) {
	informer := cache.NewSharedIndexInformer(lister, example, 0, cache.Indexers{})
	if err := informer.SetTransform(strip); err != nil {
		return nil, fmt.Errorf("watch of %ss: %w", kind, err)
	}
	err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { said.hear(kind, err) })
	if err != nil {
		return nil, fmt.Errorf("watch of %ss: %w", kind, err)
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, initial bool) {
			if !initial && gives(o) {
				changed()
			}
		},
		UpdateFunc: func(before, after any) {
			if !same(before, after) {
				changed()
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if gives(o) {
				changed()
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watch of %ss: %w", kind, err)
	}
	return &watch{kind: kind, informer: informer}, nil
}

// gives tells whether Lookup gives anything for an object. Every new namespace has
// a service account without pull secrets.
func gives(o any) bool {
	h, ok := o.(*held)
	return ok && (len(h.entries) > 0 || len(h.pullSecrets) > 0 || h.err != nil)
}

// same tells whether Lookup gives the same as before.
func same(before, after any) bool {
	a, known := before.(*held)
	b, kept := after.(*held)
	if !known || !kept {
		return false
	}
	return a.ResourceVersion == b.ResourceVersion || (!gives(a) && !gives(b)) ||
		(len(a.pullSecrets) > 0 && slices.Equal(a.pullSecrets, b.pullSecrets))
}

// strip keeps the credentials of a secret, the pull secrets of a service account
// and the names of both. It may be called again with what it gave.
func strip(object any) (any, error) {
	switch typed := object.(type) {
	case *corev1.Secret:
		return holdSecret(typed), nil
	case *corev1.ServiceAccount:
		return holdServiceAccount(typed), nil
	}
	return object, nil
}

// faults says why objects cannot be watched, once for each reason.
type faults struct {
	logger *slog.Logger

	mu    sync.Mutex
	kinds map[string]string // to the last reason
	words map[string]bool   // reasons that were logged
}

// The reasons for which objects cannot be watched.
const (
	reasonForbidden = "not allowed to list and watch"
	reasonFailing   = "the API server cannot be reached or gave an error"
)

func (f *faults) hear(kind string, err error) {
	reason := reasonFailing
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		reason = reasonForbidden
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), errors.Is(err, context.Canceled):
		return // the watch starts over by itself
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kinds == nil {
		f.kinds, f.words = map[string]string{}, map[string]bool{}
	}
	f.kinds[kind] = reason
	if f.words[reason] {
		return
	}
	f.words[reason] = true
	if reason == reasonForbidden {
		f.logger.Error("pull secrets cannot be watched, and the provider does not become ready: grant it get, list and watch on secrets and serviceaccounts where it watches them, or let it read them on demand",
			"kind", kind, "reason", reason)
		return
	}
	f.logger.Warn("cannot watch; objects are got one by one until it succeeds", "kind", kind, "reason", reason)
}

// last gives why objects cannot be watched; "" when nothing was heard.
func (f *faults) last() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	said := make([]string, 0, len(f.kinds))
	for kind, reason := range f.kinds {
		said = append(said, kind+"s: "+reason)
	}
	slices.Sort(said)
	return strings.Join(said, "; ")
}

// Shared gives the Keychain of one secret that every scope may use, the
// anonymous one too, as a node's own file: on OpenShift that is
// openshift-config/pull-secret. It is watched by itself when Run is called
// afterwards; get, list and watch on that one name suffice.
func (s *Secrets) Shared(secret types.NamespacedName) (Keychain, error) {
	shared := &sharedSecret{secrets: s, name: secret}
	if s.options.OnDemand {
		return shared, nil
	}
	w, err := newSecretWatch(s.options, s.said, secret.Namespace, fields.OneTermEqualSelector("metadata.name", secret.Name))
	if err != nil {
		return nil, err
	}
	shared.watch = w
	s.shared = append(s.shared, w)
	return shared, nil
}

type sharedSecret struct {
	secrets *Secrets
	watch   *watch // nil on demand
	name    types.NamespacedName
}

// Lookup implements Keychain.
func (s *sharedSecret) Lookup(ctx context.Context, _ provider.Scope, name string) ([]Credential, error) {
	s.secrets.want(wanted{kind: kindSecret, namespace: s.name.Namespace, name: s.name.Name})
	if s.watch != nil && s.watch.informer.HasSynced() {
		if object, ok := s.watch.get(s.name.Namespace, s.name.Name); ok {
			return selectFor(name, object.entries), object.err
		}
	}
	object, err := s.secrets.get(ctx, kindSecret, s.name.Namespace, s.name.Name)
	if err != nil {
		return nil, err
	}
	return selectFor(name, object.entries), object.err
}
