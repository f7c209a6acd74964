package certificates

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/prometheus/client_golang/prometheus"
)

// FieldManager owns what this controller writes.
const FieldManager = "archkeeper-certificates"

// RotateAnnotation on the authority's Secret, with any value, asks for a new
// authority now. It is taken off when the next one is published.
const RotateAnnotation = "archkeeper.io/rotate"

// Keys of the Secrets. A leaf's Secret has those of kubernetes.io/tls and the
// bundle of authorities to trust.
const (
	keyCert      = corev1.TLSCertKey
	keyKey       = corev1.TLSPrivateKeyKey
	keyBundle    = "ca.crt"
	keyNextCert  = "next.crt"
	keyNextKey   = "next.key"
	keyOld       = "old.crt"
	keyPublished = "published"
	keyPromoted  = "promoted"
	keyToken     = "token"
)

const (
	callTimeout   = 10 * time.Second
	retryInterval = 15 * time.Second
	providerTries = 5
	// followInterval is how often somebody else's Secret is looked at: its new
	// authority must be trusted before pods have mounted its new certificate.
	followInterval = 10 * time.Second
	// maxInterval bounds the time in which a copy that somebody else damaged
	// is mended.
	maxInterval = 5 * time.Minute
)

// providers is the resource of Gatekeeper's external data Providers.
func providers() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "externaldata.gatekeeper.sh", Version: "v1beta1", Resource: "providers"}
}

// Options of a Controller.
type Options struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Namespace of every Secret named below.
	Namespace string
	// Authority is the Secret of our certificate authority. When it is empty
	// nothing is issued: somebody else (cert-manager, the administrator) keeps
	// the leaves, and only the ca.crt of Follow is published.
	Authority string
	// Follow is the Secret whose ca.crt is published when Authority is empty.
	Follow string
	// Trust is a ConfigMap that keeps what is published of Follow, under the key
	// ca.crt: authorities that were replaced there stay trusted for a day, while
	// certificates that they signed are still in use. Empty to publish the ca.crt
	// of Follow alone.
	Trust string
	// Leaves to keep, each in the Secret of its name.
	Leaves []Request
	// Webhooks are names of MutatingWebhookConfigurations whose caBundle is ours.
	Webhooks []string
	// AdmissionSecret holds, under the key token, the secret part of the path of
	// the webhooks above: /v1/admit/<token>. It is made when it is not there;
	// empty when the path is somebody else's.
	AdmissionSecret string
	// Providers are complete Provider objects but for the caBundle: Gatekeeper
	// refuses one without, so they are made here and not by a chart.
	Providers []unstructured.Unstructured
	// ClientAuthority is Gatekeeper's; the zero value copies nothing.
	ClientAuthority ClientAuthority
	Lifetimes       Lifetimes
	Clock           clock.WithTicker
	Metrics         prometheus.Registerer
	Log             *slog.Logger
	// Random is the source of keys; nil for crypto/rand.
	Random io.Reader
}

// Controller keeps certificates. Make one with New.
type Controller struct {
	Options
	path    string // of the webhooks; empty to leave it alone
	expiry  *prometheus.GaugeVec
	failing prometheus.Gauge
}

// New makes a Controller and registers its metrics.
func New(o Options) (*Controller, error) {
	switch {
	case o.Client == nil || o.Dynamic == nil:
		return nil, errors.New("certificates: clients are missing")
	case o.Namespace == "":
		return nil, errors.New("certificates: no namespace")
	case o.Authority == "" && o.Follow == "":
		return nil, errors.New("certificates: neither an authority to keep nor a secret to follow")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Controller{
		Options: o,
		expiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "archkeeper_certificates_expiry_timestamp_seconds",
			Help: "When a certificate that the controllers keep expires, in Unix time, by Secret.",
		}, []string{"secret"}),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "archkeeper_certificates_failing",
			Help: "1 while the last attempt to keep the certificates failed.",
		}),
	}
	if o.Metrics != nil {
		for _, m := range []prometheus.Collector{c.expiry, c.failing} {
			if err := o.Metrics.Register(m); err != nil {
				return nil, fmt.Errorf("certificates: register metrics: %w", err)
			}
		}
	}
	return c, nil
}

// NeedLeaderElection tells controller-runtime's manager that one replica writes.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start keeps the certificates until ctx ends. What fails is logged and tried
// again; it always returns nil.
func (c *Controller) Start(ctx context.Context) error {
	for {
		again, err := c.Once(ctx)
		if err != nil {
			again = retryInterval
			c.failing.Set(1)
			if ctx.Err() == nil {
				c.Log.Error("cannot keep the certificates", "err", err, "again", again)
			}
		} else {
			c.failing.Set(0)
		}
		timer := c.Clock.NewTimer(min(again, maxInterval))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// Once brings everything up to date once, and tells when to come back.
//
// The order keeps trust: the authority's Secret first, so that no key is lost;
// then the bundle to all who trust; then the leaves that the authority signed.
func (c *Controller) Once(ctx context.Context) (time.Duration, error) {
	if err := c.followClientAuthority(ctx); err != nil {
		return 0, err
	}
	if err := c.keepToken(ctx); err != nil {
		return 0, err
	}
	if c.Authority == "" {
		return followInterval, c.follow(ctx)
	}
	authority, err := c.secret(ctx, c.Authority)
	if err != nil {
		return 0, err
	}
	leafSecrets, leaves := map[string]*corev1.Secret{}, map[string]Pair{}
	for _, l := range c.Leaves {
		s, err := c.secret(ctx, l.Name)
		if err != nil {
			return 0, err
		}
		leafSecrets[l.Name], leaves[l.Name] = s, Pair{s.Data[keyCert], s.Data[keyKey]}
	}
	state, err := readState(authority)
	if err != nil {
		return 0, fmt.Errorf("secret %s/%s: %w", c.Namespace, c.Authority, err)
	}
	_, state.Asked = authority.Annotations[RotateAnnotation]
	published, err := c.published(ctx, state.Bundle(), leafSecrets)
	if err != nil {
		return 0, err
	}
	out, err := Plan(c.Clock.Now(), c.Lifetimes, state, leaves, c.Leaves, published, c.Random)
	if err != nil {
		return 0, err
	}
	for _, note := range out.Notes {
		c.Log.Info(note)
	}
	if err := c.write(ctx, authority, stateData(out.State), corev1.SecretTypeOpaque); err != nil {
		return 0, err
	}
	bundle := out.State.Bundle()
	if err := c.publish(ctx, bundle); err != nil {
		return 0, err
	}
	for _, l := range c.Leaves {
		leaf := out.Leaves[l.Name]
		data := map[string][]byte{keyCert: leaf.Cert, keyKey: leaf.Key, keyBundle: bundle}
		if err := c.write(ctx, leafSecrets[l.Name], data, corev1.SecretTypeTLS); err != nil {
			return 0, err
		}
		if cert, err := parse(leaf); err == nil {
			c.expiry.WithLabelValues(l.Name).Set(float64(cert.NotAfter.Unix()))
		}
	}
	if cert, err := parse(out.State.Active); err == nil {
		c.expiry.WithLabelValues(c.Authority).Set(float64(cert.NotAfter.Unix()))
	}
	return out.Again, nil
}

// follow publishes the authority of a certificate that somebody else keeps. One
// that did not sign it is refused: all who trust us would stop to.
func (c *Controller) follow(ctx context.Context) error {
	secret, err := c.secret(ctx, c.Follow)
	if err != nil {
		return err
	}
	bundle := secret.Data[keyBundle]
	if len(bundle) == 0 {
		return fmt.Errorf("secret %s/%s has no %s to publish", c.Namespace, c.Follow, keyBundle)
	}
	leaf, err := checkChain(secret.Data[keyCert], bundle)
	if err != nil {
		return fmt.Errorf("secret %s/%s: %w", c.Namespace, c.Follow, err)
	}
	c.expiry.WithLabelValues(c.Follow).Set(float64(leaf.NotAfter.Unix()))
	if c.Trust != "" {
		if bundle, err = c.keepBundle(ctx, c.Trust, bundle); err != nil {
			return err
		}
	}
	return c.publish(ctx, bundle)
}

// checkChain gives the first certificate of a chain, PEM, and an error when no
// authority of the bundle has signed it. Its time is not looked at.
func checkChain(chain, bundle []byte) (*x509.Certificate, error) {
	var leaf *x509.Certificate
	between, roots := x509.NewCertPool(), x509.NewCertPool()
	eachCertificate(chain, func(_ *pem.Block, cert *x509.Certificate) {
		if leaf == nil {
			leaf = cert
			return
		}
		between.AddCert(cert)
	})
	if leaf == nil {
		return nil, fmt.Errorf("%s has no certificate", keyCert)
	}
	roots.AppendCertsFromPEM(bundle)
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: leaf.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
		return nil, fmt.Errorf("no authority of %s has signed %s", keyBundle, keyCert)
	}
	return leaf, nil
}

// keepToken makes the admission token when there is none, and learns the path
// of the webhooks from it.
func (c *Controller) keepToken(ctx context.Context) error {
	if c.AdmissionSecret == "" {
		return nil
	}
	secret, err := c.secret(ctx, c.AdmissionSecret)
	if err != nil {
		return err
	}
	token := secret.Data[keyToken]
	if len(token) == 0 {
		raw := make([]byte, 24)
		random := c.Random
		if random == nil {
			random = rand.Reader
		}
		if _, err := io.ReadFull(random, raw); err != nil {
			return fmt.Errorf("make an admission token: %w", err)
		}
		// The API server takes lower case alone in a webhook's path.
		token = []byte(hex.EncodeToString(raw))
		if err := c.write(ctx, secret, map[string][]byte{keyToken: token}, corev1.SecretTypeOpaque); err != nil {
			return err
		}
	}
	c.path = "/v1/admit/" + string(token)
	return nil
}

// published tells whether all who trust us hold the bundle.
func (c *Controller) published(ctx context.Context, bundle []byte, leaves map[string]*corev1.Secret) (bool, error) {
	for _, s := range leaves {
		if !holds(s.Data[keyBundle], bundle) {
			return false, nil
		}
	}
	all := true
	err := c.eachTruster(ctx, func(has []byte, _ func([]byte) error) error {
		all = all && holds(has, bundle)
		return nil
	})
	return all, err
}

// publish gives the bundle to all who trust us and hold another.
func (c *Controller) publish(ctx context.Context, bundle []byte) error {
	return c.eachTruster(ctx, func(has []byte, set func([]byte) error) error {
		if bytes.Equal(has, bundle) {
			return nil
		}
		return set(bundle)
	})
}

// eachTruster visits the Provider objects and webhook configurations, with the
// bundle that each has (PEM; the first differing one of several webhooks) and a
// way to set it.
func (c *Controller) eachTruster(ctx context.Context, visit func(has []byte, set func([]byte) error) error) error {
	for _, name := range c.Webhooks {
		if err := c.visitWebhook(ctx, name, visit); err != nil {
			return err
		}
	}
	for i := range c.Providers {
		if err := c.visitProvider(ctx, &c.Providers[i], visit); err != nil {
			return err
		}
	}
	return nil
}

func (c *Controller) visitWebhook(ctx context.Context, name string, visit func([]byte, func([]byte) error) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	hooks := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	config, err := hooks.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // it trusts nobody, and is not ours to make
	}
	if err != nil {
		return fmt.Errorf("get mutatingwebhookconfiguration %s: %w", name, err)
	}
	if len(config.Webhooks) == 0 {
		return nil
	}
	has := config.Webhooks[0].ClientConfig.CABundle
	for _, w := range config.Webhooks {
		service := w.ClientConfig.Service
		if !bytes.Equal(w.ClientConfig.CABundle, has) || (c.path != "" && service != nil && ptr.Deref(service.Path, "") != c.path) {
			has = nil
		}
	}
	return visit(has, func(bundle []byte) error {
		type clientConfig struct {
			CABundle []byte                        `json:"caBundle"`
			Service  *admissionv1.ServiceReference `json:"service,omitempty"`
		}
		type webhook struct {
			Name         string       `json:"name"`
			ClientConfig clientConfig `json:"clientConfig"`
		}
		patch := struct {
			Metadata map[string]string `json:"metadata"`
			Webhooks []webhook         `json:"webhooks"`
		}{Metadata: map[string]string{"resourceVersion": config.ResourceVersion}}
		for _, w := range config.Webhooks {
			service := w.ClientConfig.Service.DeepCopy()
			if service != nil && c.path != "" {
				service.Path = &c.path
			}
			patch.Webhooks = append(patch.Webhooks, webhook{w.Name, clientConfig{bundle, service}})
		}
		body, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		if _, err := hooks.Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: FieldManager}); err != nil {
			return fmt.Errorf("patch mutatingwebhookconfiguration %s: %w", name, err)
		}
		c.Log.Info("published the authorities to trust", "mutatingwebhookconfiguration", name)
		return nil
	})
}

func (c *Controller) visitProvider(ctx context.Context, want *unstructured.Unstructured, visit func([]byte, func([]byte) error) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := c.Dynamic.Resource(providers())
	got, err := client.Get(ctx, want.GetName(), metav1.GetOptions{})
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err) && missingResource(err):
		return nil // no Gatekeeper in this cluster, or not yet
	case apierrors.IsNotFound(err):
		got, err = &unstructured.Unstructured{Object: map[string]any{}}, nil
	case err != nil:
		return fmt.Errorf("get provider %s: %w", want.GetName(), err)
	}
	encoded, _, _ := unstructured.NestedString(got.Object, "spec", "caBundle")
	has, _ := base64.StdEncoding.DecodeString(encoded)
	if !sameSpec(got, want) {
		has = nil
	}
	return visit(has, func(bundle []byte) error {
		object := want.DeepCopy()
		if err := unstructured.SetNestedField(object.Object, base64.StdEncoding.EncodeToString(bundle), "spec", "caBundle"); err != nil {
			return fmt.Errorf("provider %s: %w", want.GetName(), err)
		}
		version := got.GetResourceVersion()
		if version == "" {
			_, err = client.Create(ctx, object, metav1.CreateOptions{FieldManager: FieldManager})
		} else {
			object.SetResourceVersion(version)
			_, err = client.Update(ctx, object, metav1.UpdateOptions{FieldManager: FieldManager})
		}
		// Gatekeeper writes the status of the same object.
		for tries := 0; apierrors.IsConflict(err) && tries < providerTries; tries++ {
			fresh, getErr := client.Get(ctx, want.GetName(), metav1.GetOptions{})
			if getErr != nil {
				return fmt.Errorf("get provider %s: %w", want.GetName(), getErr)
			}
			object.SetResourceVersion(fresh.GetResourceVersion())
			_, err = client.Update(ctx, object, metav1.UpdateOptions{FieldManager: FieldManager})
		}
		if err != nil {
			return fmt.Errorf("write provider %s: %w", want.GetName(), err)
		}
		c.Log.Info("published the authorities to trust", "provider", want.GetName())
		return nil
	})
}

// sameSpec tells whether the fields of want's spec stand in got.
func sameSpec(got, want *unstructured.Unstructured) bool {
	has, _, _ := unstructured.NestedMap(got.Object, "spec")
	wants, _, _ := unstructured.NestedMap(want.Object, "spec")
	for k, v := range wants {
		if fmt.Sprint(has[k]) != fmt.Sprint(v) {
			return false
		}
	}
	return true
}

// missingResource tells a missing resource from a missing object: the API
// server's answer to the former names no object.
func missingResource(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && (status.Status().Details == nil || status.Status().Details.Name == "")
}

// secret reads a Secret; one that does not exist is returned empty, without a
// resourceVersion.
func (c *Controller) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get secret %s/%s: %w", c.Namespace, name, err)
	}
	return s, nil
}

// write stores data in a Secret when it differs. The resourceVersion guards
// against a second writer.
func (c *Controller) write(ctx context.Context, s *corev1.Secret, data map[string][]byte, kind corev1.SecretType) error {
	same := len(s.Data) == len(data)
	for k, v := range data {
		same = same && bytes.Equal(s.Data[k], v)
	}
	if same {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s = s.DeepCopy()
	s.Data = data
	delete(s.Annotations, RotateAnnotation)
	secrets := c.Client.CoreV1().Secrets(c.Namespace)
	var err error
	if s.ResourceVersion == "" {
		s.Type = kind
		s.Labels = map[string]string{"app.kubernetes.io/managed-by": "archkeeper"}
		_, err = secrets.Create(ctx, s, metav1.CreateOptions{FieldManager: FieldManager})
	} else {
		_, err = secrets.Update(ctx, s, metav1.UpdateOptions{FieldManager: FieldManager})
	}
	if err != nil {
		return fmt.Errorf("write secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

func readState(s *corev1.Secret) (State, error) {
	state := State{
		Active: Pair{s.Data[keyCert], s.Data[keyKey]},
		Next:   Pair{s.Data[keyNextCert], s.Data[keyNextKey]},
		Old:    s.Data[keyOld],
	}
	for key, into := range map[string]*time.Time{keyPublished: &state.Published, keyPromoted: &state.Promoted} {
		if text := strings.TrimSpace(string(s.Data[key])); text != "" {
			t, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return State{}, fmt.Errorf("key %s: %w", key, err)
			}
			*into = t
		}
	}
	return state, nil
}

func stateData(s State) map[string][]byte {
	data := map[string][]byte{keyCert: s.Active.Cert, keyKey: s.Active.Key}
	if !s.Next.Empty() {
		data[keyNextCert], data[keyNextKey] = s.Next.Cert, s.Next.Key
	}
	if len(s.Old) > 0 {
		data[keyOld] = s.Old
	}
	for key, t := range map[string]time.Time{keyPublished: s.Published, keyPromoted: s.Promoted} {
		if !t.IsZero() {
			data[key] = []byte(t.UTC().Format(time.RFC3339))
		}
	}
	return data
}
