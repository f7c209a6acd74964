package placement

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider"
)

// Times of the back-off from a registry.
const (
	backoffBase = 250 * time.Millisecond
	backoffMax  = 10 * time.Second
	// probeTime is for how long one pod's question to a registry that failed
	// keeps the others from asking.
	probeTime = 5 * time.Second
	// forgetAfter is when a registry that nobody asks any more is forgotten.
	forgetAfter = 10 * time.Minute
	// maxRegistries bounds the table: images name hosts, and anybody may name one.
	maxRegistries = 4096
)

// registries keeps pods from a registry that fails, each on its own, so that one
// bad registry starves nobody: while it backs off, its pods hold without occupying
// a worker, and one of them probes it at the end.
type registries struct {
	clock  clock.PassiveClock
	jitter func(time.Duration) time.Duration // a part of the duration, at random

	mu    sync.Mutex
	hosts map[string]*backoff
}

// backoff of one registry.
type backoff struct {
	failures int
	until    time.Time
	probe    time.Time // until when a probe keeps others away
	last     *provider.Error
	waiting  map[types.NamespacedName]struct{}
}

// failing tells whether an error speaks of the registry rather than of the image.
func failing(err *provider.Error) bool {
	switch err.Class {
	case provider.ClassRateLimited, provider.ClassTimeout, provider.ClassUnreachable, provider.ClassInternal:
		return true
	case provider.ClassMalformed, provider.ClassNotFound, provider.ClassUnauthorized, provider.ClassBlocked,
		provider.ClassNotRunnable, provider.ClassInvalidContent:
	}
	return false
}

// ask tells whether the pod may ask the registry now. If not, it gives the
// registry's last error and the time until asking makes sense.
func (r *registries) ask(host string, pod types.NamespacedName) (last *provider.Error, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.hosts[host]
	if b == nil {
		return nil, 0
	}
	now := r.clock.Now()
	switch {
	case now.Before(b.until):
		wait = b.until.Sub(now)
	case now.Before(b.probe):
		wait = b.probe.Sub(now)
	default:
		b.probe = now.Add(probeTime)
		return nil, 0
	}
	b.waiting[pod] = struct{}{}
	return b.last, wait + r.jitter(wait/4+backoffBase)
}

// failed takes note of an error of the registry and gives the time until the pod
// may ask again. Failures of questions that were under way at the same time count
// once.
func (r *registries) failed(host string, pod types.NamespacedName, err *provider.Error) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	b := r.hosts[host]
	if b == nil {
		if len(r.hosts) >= maxRegistries {
			r.sweep(now)
		}
		if len(r.hosts) >= maxRegistries {
			return backoffMax // every pod on its own
		}
		b = &backoff{waiting: map[types.NamespacedName]struct{}{}}
		r.hosts[host] = b
	}
	b.last = err
	if !now.Before(b.until) {
		pause := min(backoffBase<<min(b.failures, 16), backoffMax)
		b.failures++
		b.until = now.Add(pause + r.jitter(pause/2))
		if asked := now.Add(err.RetryAfter); err.RetryAfter > 0 && asked.After(b.until) {
			b.until = now.Add(min(err.RetryAfter, backoffMax))
		}
	}
	b.probe = time.Time{}
	b.waiting[pod] = struct{}{}
	wait := b.until.Sub(now)
	return wait + r.jitter(wait/4+backoffBase)
}

// answered forgets what was held against the registry and gives the pods that
// wait for it.
func (r *registries) answered(host string) []types.NamespacedName {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.hosts[host]
	if b == nil {
		return nil
	}
	delete(r.hosts, host)
	pods := make([]types.NamespacedName, 0, len(b.waiting))
	for pod := range b.waiting {
		pods = append(pods, pod)
	}
	return pods
}

// forget takes a pod off every list.
func (r *registries) forget(pod types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.hosts {
		delete(b.waiting, pod)
	}
}

// reset forgets everything: what was true of registries may no longer be.
func (r *registries) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.hosts)
}

func (r *registries) sweep(now time.Time) {
	for host, b := range r.hosts {
		if now.Sub(b.until) > forgetAfter {
			delete(r.hosts, host)
		}
	}
}
