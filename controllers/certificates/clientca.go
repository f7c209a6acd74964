package certificates

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClientAuthority says where Gatekeeper's certificate authority is read, by
// which the provider proves Gatekeeper's client certificate, and where it is
// put for the provider to mount. It is public: it stands in Gatekeeper's own
// webhook configuration, so nobody needs to read Gatekeeper's Secret.
type ClientAuthority struct {
	// Webhook is the name of Gatekeeper's ValidatingWebhookConfiguration.
	Webhook string
	// ConfigMap in our namespace, key ca.crt.
	ConfigMap string
}

// formerlyTrusted is how long an authority that Gatekeeper has replaced stays
// trusted: its pods go on presenting the old certificate until their mounted
// Secret is refreshed.
const formerlyTrusted = 24 * time.Hour

const keyReplaced = "replaced"

// followClientAuthority copies Gatekeeper's authority. Without Gatekeeper there
// is nothing to copy, and what was copied stays.
func (c *Controller) followClientAuthority(ctx context.Context) error {
	if c.ClientAuthority.Webhook == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var current []byte
	hook, err := c.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, c.ClientAuthority.Webhook, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("get validatingwebhookconfiguration %s: %w", c.ClientAuthority.Webhook, err)
	case len(hook.Webhooks) > 0:
		current = hook.Webhooks[0].ClientConfig.CABundle
	}
	_, err = c.keepBundle(ctx, c.ClientAuthority.ConfigMap, current)
	return err
}

// keepBundle keeps current in a ConfigMap, together with what it replaced there
// within a day, and gives both.
func (c *Controller) keepBundle(ctx context.Context, name string, current []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	maps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	cm, err := maps.Get(ctx, name, metav1.GetOptions{})
	exists := !apierrors.IsNotFound(err)
	if exists && err != nil {
		return nil, fmt.Errorf("get configmap %s/%s: %w", c.Namespace, name, err)
	}
	had, replaced := "", time.Time{}
	if exists {
		had = cm.Data[keyBundle]
		replaced, _ = time.Parse(time.RFC3339, cm.Data[keyReplaced])
	}
	now := c.Clock.Now()
	bundle, changed := mergeAuthorities(now, []byte(had), current, replaced)
	if string(bundle) == had {
		return bundle, nil // an empty ConfigMap would say less than none
	}
	if changed {
		replaced = now
	}
	data := map[string]string{keyBundle: string(bundle)}
	if !replaced.IsZero() {
		data[keyReplaced] = replaced.UTC().Format(time.RFC3339)
	}
	if exists {
		cm = cm.DeepCopy()
		cm.Data = data
		_, err = maps.Update(ctx, cm, metav1.UpdateOptions{FieldManager: FieldManager})
	} else {
		_, err = maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/managed-by": "archkeeper"}},
			Data:       data,
		}, metav1.CreateOptions{FieldManager: FieldManager})
	}
	if err != nil {
		return nil, fmt.Errorf("write configmap %s/%s: %w", c.Namespace, name, err)
	}
	c.Log.Info("a certificate authority changed", "configmap", c.Namespace+"/"+name)
	return bundle, nil
}

// mergeAuthorities gives the bundle to trust: the current authorities first,
// then those of had that are still valid and were replaced lately. changed
// tells whether current brought one that had lacks. An empty current keeps had.
func mergeAuthorities(now time.Time, had, current []byte, replaced time.Time) (bundle []byte, changed bool) {
	if len(current) == 0 {
		return had, false
	}
	changed = len(had) > 0 && !holds(had, current)
	var out bytes.Buffer
	eachCertificate(current, func(block *pem.Block, _ *x509.Certificate) { out.Write(pem.EncodeToMemory(block)) })
	if !changed && now.Sub(replaced) >= formerlyTrusted {
		return out.Bytes(), false
	}
	eachCertificate(had, func(block *pem.Block, cert *x509.Certificate) {
		if now.Before(cert.NotAfter) && !holds(out.Bytes(), pem.EncodeToMemory(block)) {
			out.Write(pem.EncodeToMemory(block))
		}
	})
	return out.Bytes(), changed
}

// eachCertificate visits the certificates of a PEM text that can be read.
func eachCertificate(text []byte, visit func(*pem.Block, *x509.Certificate)) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			visit(block, cert)
		}
	}
}
