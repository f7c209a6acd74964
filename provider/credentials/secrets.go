package credentials

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider"
)

// Defaults of SecretsOptions.
const (
	// DefaultGetTimeout is the most that one GET at the API server may take.
	DefaultGetTimeout = 5 * time.Second
	// missingFor is how long a watched secret that even a GET did not find is
	// not asked for again. Its creation is seen by the watch all the same.
	missingFor = 5 * time.Second
	// maxMissing bounds how many missing secrets are remembered.
	maxMissing = 4096
	// maxGets bounds the GETs of one Lookup that run at a time.
	maxGets = 8
	// maxSecrets bounds the pull secrets of one scope.
	maxSecrets = 64
	// defaultServiceAccount is the one of a pod that names none.
	defaultServiceAccount = "default"
)

// SecretsOptions say how pull secrets are read.
type SecretsOptions struct {
	// Client of the API server.
	Client corev1client.CoreV1Interface
	// Namespaces whose secrets may be read; empty for all. A scope of another
	// namespace gets an error.
	Namespaces []string
	// OnDemand gets each object when it is needed instead of watching: for
	// RBAC that grants get alone. Nothing is remembered then, so that changes
	// take effect at once here too, at the price of a GET for each look-up that
	// is not under way already.
	OnDemand bool
	// GetTimeout bounds one GET; 0 for DefaultGetTimeout.
	GetTimeout time.Duration
	// Clock for remembering what is missing, and what was asked for of late; nil for
	// the real one.
	Clock clock.PassiveClock
	// OnChange is called when what Lookup gives may have changed: by the watches,
	// and on demand by Lookup and Recheck. It must not block; nil for none.
	OnChange func()
	// Logger hears when objects cannot be watched, once for each change of the
	// reason; nil for none.
	Logger *slog.Logger
}

// Secrets is the Keychain of the pull secrets that a scope names, or of those of
// its service account when it names none: what admission would have copied into
// the pod. A scope without a service account means "default", as for a pod.
//
// Watched (see Run), only secrets of the two pull secret types are held, and of
// these only the credentials. Until the watch is in step, and where it may not
// be set up, objects are got on demand; a secret that the watch has not seen is
// asked for once more, because it may be younger than the watch knows.
//
// The errors of Lookup are *SecretError, joined. The anonymous scope has nothing.
type Secrets struct {
	options SecretsOptions
	watches []*watch
	shared  []*watch
	gets    singleflight.Group

	said    *faults
	recheck recheck

	mu      sync.Mutex
	missing map[string]absence
}

// absence is why and since when a watched object gives nothing.
type absence struct {
	since  time.Time
	reason string
}

// SecretError says that a pull secret or service account gave nothing. It holds
// no content and no text of another component.
type SecretError struct {
	Kind      string // "secret" or "service account"
	Namespace string
	Name      string
	Reason    string // follows the name, such as "is not there"
	cause     error
}

// Error gives "<kind> <namespace>/<name> <reason>".
func (e *SecretError) Error() string {
	return e.Kind + " " + e.Namespace + "/" + e.Name + " " + e.Reason
}

// Unwrap gives the end of a context when that was why, else nil.
func (e *SecretError) Unwrap() error { return e.cause }

// NewSecrets reads nothing yet.
func NewSecrets(options SecretsOptions) (*Secrets, error) {
	if options.Client == nil {
		return nil, errors.New("pull secrets: no client of the API server")
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.GetTimeout <= 0 {
		options.GetTimeout = DefaultGetTimeout
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.OnChange == nil {
		options.OnChange = func() {}
	}
	s := &Secrets{options: options, missing: map[string]absence{}, said: &faults{logger: options.Logger}}
	s.recheck.asked = map[wanted]*sighting{}
	if !options.OnDemand {
		namespaces := options.Namespaces
		if len(namespaces) == 0 {
			namespaces = []string{metav1.NamespaceAll}
		}
		for _, namespace := range namespaces {
			watches, err := newWatches(options, s.said, namespace)
			if err != nil {
				return nil, err
			}
			s.watches = append(s.watches, watches...)
		}
	}
	return s, nil
}

// Run watches until ctx ends. With OnDemand it only waits.
func (s *Secrets) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, w := range slices.Concat(s.watches, s.shared) {
		running.Go(func() { w.informer.RunWithContext(ctx) })
	}
	<-ctx.Done()
	running.Wait()
	return nil
}

// Synced tells whether every watch has seen the present state once. Lookup works
// before that too, by GETs.
func (s *Secrets) Synced() bool {
	return !slices.ContainsFunc(slices.Concat(s.watches, s.shared), func(w *watch) bool { return !w.informer.HasSynced() })
}

// Ready gives why Synced is false, and nil when it is true.
func (s *Secrets) Ready() error {
	switch {
	case s.Synced():
		return nil
	case s.said.last() != "":
		return errors.New(s.said.last())
	}
	return errors.New("not yet read")
}

// Lookup implements Keychain.
func (s *Secrets) Lookup(ctx context.Context, scope provider.Scope, name string) ([]Credential, error) {
	if scope.Anonymous() {
		return nil, nil
	}
	if len(s.options.Namespaces) > 0 && !slices.Contains(s.options.Namespaces, scope.Namespace) {
		return nil, fmt.Errorf("pull secrets of namespace %s are not among those that may be read", scope.Namespace)
	}
	secrets := scope.ImagePullSecrets
	var failed []error
	if len(secrets) == 0 {
		account := scope.ServiceAccount
		if account == "" {
			account = defaultServiceAccount
		}
		s.want(wanted{kind: kindServiceAccount, namespace: scope.Namespace, name: account})
		found, err := s.serviceAccount(ctx, scope.Namespace, account)
		if err != nil {
			return nil, err
		}
		secrets = found
	}
	if len(secrets) > maxSecrets {
		failed = append(failed, fmt.Errorf("of %d pull secrets in namespace %s the first %d are read", len(secrets), scope.Namespace, maxSecrets))
		secrets = secrets[:maxSecrets]
	}
	for _, secret := range secrets {
		s.want(wanted{kind: kindSecret, namespace: scope.Namespace, name: secret})
	}
	entries, err := s.entries(ctx, scope.Namespace, secrets)
	if err != nil {
		failed = append(failed, err)
	}
	return selectFor(name, entries), errors.Join(failed...)
}

// entries reads several secrets, side by side where it needs GETs, and keeps
// their order.
func (s *Secrets) entries(ctx context.Context, namespace string, names []string) ([]entry, error) {
	found := make([][]entry, len(names))
	failed := make([]error, len(names))
	var running sync.WaitGroup
	places := make(chan struct{}, maxGets)
	for i, name := range names {
		if name == "" {
			continue
		}
		if held, ok := s.watched(kindSecret, namespace, name); ok {
			found[i], failed[i] = held.entries, held.err
			continue
		}
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			got, err := s.get(ctx, kindSecret, namespace, name)
			if err != nil {
				failed[i] = err
				return
			}
			found[i], failed[i] = got.entries, got.err
		})
	}
	running.Wait()
	return slices.Concat(found...), errors.Join(failed...)
}

// serviceAccount gives the names of the pull secrets of a service account.
func (s *Secrets) serviceAccount(ctx context.Context, namespace, name string) ([]string, error) {
	if held, ok := s.watched(kindServiceAccount, namespace, name); ok {
		return held.pullSecrets, nil
	}
	got, err := s.get(ctx, kindServiceAccount, namespace, name)
	if err != nil {
		return nil, err
	}
	return got.pullSecrets, nil
}

// The kinds of object that are read.
const (
	kindSecret         = "secret"
	kindServiceAccount = "service account"
)

// watched gives an object from the watches that are in step.
func (s *Secrets) watched(kind, namespace, name string) (*held, bool) {
	for _, w := range s.watches {
		if w.kind != kind || !w.informer.HasSynced() {
			continue
		}
		if object, ok := w.get(namespace, name); ok {
			return object, true
		}
	}
	return nil, false
}

// get asks the API server. Equal GETs under way are shared; the caller stops
// waiting when ctx ends, the GET goes on to its own deadline.
func (s *Secrets) get(ctx context.Context, kind, namespace, name string) (*held, error) {
	failure := func(reason string, cause error) error {
		return &SecretError{Kind: kind, Namespace: namespace, Name: name, Reason: reason, cause: cause}
	}
	sought := wanted{kind: kind, namespace: namespace, name: name}
	key := kind + " " + namespace + "/" + name
	if reason, ok := s.knownMissing(key); ok {
		return nil, failure(reason, nil)
	}
	result := s.gets.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.GetTimeout)
		defer cancel()
		if kind == kindSecret {
			secret, err := s.options.Client.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return holdSecret(secret), nil
		}
		account, err := s.options.Client.ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return holdServiceAccount(account), nil
	})
	select {
	case <-ctx.Done():
		return nil, failure("was not read in time", ctx.Err())
	case got := <-result:
		switch err := got.Err; {
		case err == nil:
			object, _ := got.Val.(*held)
			s.sight(sought, object.ResourceVersion)
			if object.reason != "" {
				s.rememberMissing(key, object.reason)
				return nil, failure(object.reason, nil)
			}
			return object, nil
		case apierrors.IsNotFound(err):
			s.sight(sought, "missing")
			s.rememberMissing(key, "is not there")
			return nil, failure("is not there", nil)
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			s.sight(sought, "forbidden")
			return nil, failure("may not be read", nil)
		case errors.Is(err, context.DeadlineExceeded):
			return nil, failure("was not read in time", context.DeadlineExceeded)
		}
		return nil, failure("could not be read: the API server gave an error", nil)
	}
}

// knownMissing gives the reason when a GET was in vain a moment ago. On demand,
// nothing is remembered: no watch would tell of the object's creation.
func (s *Secrets) knownMissing(key string) (reason string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	absent, ok := s.missing[key]
	if ok && s.options.Clock.Since(absent.since) >= missingFor {
		delete(s.missing, key)
		return "", false
	}
	return absent.reason, ok
}

func (s *Secrets) rememberMissing(key, reason string) {
	if s.options.OnDemand || !s.Synced() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.missing) >= maxMissing {
		for old, absent := range s.missing {
			if s.options.Clock.Since(absent.since) >= missingFor {
				delete(s.missing, old)
			}
		}
		if len(s.missing) >= maxMissing {
			return
		}
	}
	s.missing[key] = absence{since: s.options.Clock.Now(), reason: reason}
}

// held is what is kept of a Secret or ServiceAccount.
type held struct {
	metav1.ObjectMeta // namespace, name and resourceVersion only
	entries           []entry
	pullSecrets       []string
	err               error  // of some or all entries
	reason            string // for which it is no pull secret at all, or ""
}

func heldMeta(object metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), ResourceVersion: object.GetResourceVersion(),
	}
}

// holdSecret reads the credentials of a pull secret. Of a secret of another type
// nothing is read; the kubelet passes over it in silence, we say so.
func holdSecret(secret *corev1.Secret) *held {
	h := &held{ObjectMeta: heldMeta(secret)}
	source := kindSecret + " " + secret.Namespace + "/" + secret.Name
	var data []byte
	format := DockerConfigJSON
	switch secret.Type { //nolint:exhaustive // all others are one
	case corev1.SecretTypeDockerConfigJson:
		data = secret.Data[corev1.DockerConfigJsonKey]
	case corev1.SecretTypeDockercfg:
		data, format = secret.Data[corev1.DockerConfigKey], Dockercfg
	default:
		h.reason = "is not of a pull secret's type"
		return h
	}
	if len(data) == 0 {
		h.err = &SecretError{Kind: kindSecret, Namespace: secret.Namespace, Name: secret.Name, Reason: "holds no Docker configuration"}
		return h
	}
	entries, err := parseConfig(source, data, format)
	h.entries = entries
	if err != nil {
		h.err = &SecretError{Kind: kindSecret, Namespace: secret.Namespace, Name: secret.Name, Reason: err.Error()}
	}
	return h
}

func holdServiceAccount(account *corev1.ServiceAccount) *held {
	h := &held{ObjectMeta: heldMeta(account)}
	for _, reference := range account.ImagePullSecrets {
		h.pullSecrets = append(h.pullSecrets, reference.Name)
	}
	return h
}
