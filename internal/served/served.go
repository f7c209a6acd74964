// Package served follows objects of resources that a cluster may or may not
// serve: a watch starts when a custom resource definition has come, and ends
// when it has gone.
package served

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// Watch says what of a resource is followed.
type Watch struct {
	Resource schema.GroupVersionResource
	// Name of the one object; empty for all of them.
	Name string
	// Transform makes an object smaller before it is kept; nil keeps it whole.
	Transform cache.TransformFunc
	// Same tells that an update does not matter; nil: every update does.
	Same func(before, after any) bool
}

// Set is a set of watches. Its methods are called from one goroutine; Changed
// and Gone are called from others and must not block.
type Set struct {
	Client dynamic.Interface
	Log    *slog.Logger
	// Changed is called when objects have changed, and once a first list is there.
	Changed func()
	// Gone is called when a resource turns out not to be served any longer:
	// time for DropGone.
	Gone func()

	watches map[schema.GroupVersionResource]*watch
}

type watch struct {
	store  cache.Store
	synced cache.InformerSynced
	stop   context.CancelFunc
	done   chan struct{}
	once   sync.Once
	gone   chan struct{}
}

// Follow starts a watch, which ends with ctx at the latest. It does nothing for
// a resource that is followed already.
func (s *Set) Follow(ctx context.Context, w Watch) {
	if s.Following(w.Resource) {
		return
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(s.Client, w.Resource, "", 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		if w.Name != "" {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", w.Name).String()
		}
	}).Informer()
	ctx, cancel := context.WithCancel(ctx)
	started := &watch{store: informer.GetStore(), synced: informer.HasSynced, stop: cancel, done: make(chan struct{}), gone: make(chan struct{})}
	_, handlerErr := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.Changed() }, DeleteFunc: func(any) { s.Changed() },
		UpdateFunc: func(before, after any) {
			if w.Same == nil || !w.Same(before, after) {
				s.Changed()
			}
		},
	})
	watchErr := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			started.once.Do(func() { close(started.gone) })
			s.Gone()
			return
		}
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
	})
	var transformErr error
	if w.Transform != nil {
		transformErr = informer.SetTransform(w.Transform)
	}
	if err := errors.Join(handlerErr, watchErr, transformErr); err != nil {
		cancel()
		s.Log.Error("cannot follow a resource", "resource", w.Resource.GroupResource().String(), "err", err)
		return
	}
	if s.watches == nil {
		s.watches = map[schema.GroupVersionResource]*watch{}
	}
	s.watches[w.Resource] = started
	go func() {
		defer close(started.done)
		informer.RunWithContext(ctx)
	}()
	go func() {
		cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
		s.Changed()
	}()
	s.Log.Info("following", "resource", w.Resource.GroupResource().String(), "name", w.Name)
}

// Following tells whether a resource is followed.
func (s *Set) Following(r schema.GroupVersionResource) bool { return s.watches[r] != nil }

// Len is the number of resources that are followed.
func (s *Set) Len() int { return len(s.watches) }

// Synced tells whether every followed resource has been listed.
func (s *Set) Synced() bool {
	for _, w := range s.watches {
		if !w.synced() {
			return false
		}
	}
	return true
}

// Get gives an object, nil when there is none. ready is false before the first
// list, and for a resource that is not followed.
func (s *Set) Get(r schema.GroupVersionResource, name string) (o *unstructured.Unstructured, ready bool) {
	w := s.watches[r]
	if w == nil || !w.synced() {
		return nil, false
	}
	got, found, err := w.store.GetByKey(name)
	if err != nil || !found {
		return nil, true
	}
	o, _ = got.(*unstructured.Unstructured)
	return o, true
}

// Each visits every object of every followed resource, in no order.
func (s *Set) Each(visit func(*unstructured.Unstructured)) {
	for _, w := range s.watches {
		for _, item := range w.store.List() {
			if o, ok := item.(*unstructured.Unstructured); ok {
				visit(o)
			}
		}
	}
}

// Leave ends the watch of a resource and waits for its end.
func (s *Set) Leave(r schema.GroupVersionResource) {
	w := s.watches[r]
	if w == nil {
		return
	}
	delete(s.watches, r)
	w.stop()
	<-w.done
	s.Log.Info("no longer followed", "resource", r.GroupResource().String())
}

// DropGone leaves the resources that are no longer served, and gives them.
func (s *Set) DropGone() []schema.GroupVersionResource {
	var gone []schema.GroupVersionResource
	for r, w := range s.watches {
		select {
		case <-w.gone:
			gone = append(gone, r)
		default:
		}
	}
	for _, r := range gone {
		s.Leave(r)
	}
	return gone
}

// Stop leaves every resource.
func (s *Set) Stop() {
	for r := range s.watches {
		s.Leave(r)
	}
}
