package chart_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/archkeeper/archkeeper/tests/controlplane"
)

// theirValues are of an installation whose certificates somebody else keeps.
func theirValues(tls string) string {
	return fmt.Sprintf(`
admission: {enabled: true, timeoutSeconds: 10, budget: 3s}
policies: {templates: [image-architectures]}
provider: {deadline: 3s, timeoutSeconds: 4, extraArgs: ["--shutdown-delay=0s"]}
registries: {plainHTTPHosts: [%q]}
tls: %s
logging: {format: text}
`, images.Host, tls)
}

// keep stores a certificate as somebody else would, in a Secret of our namespace.
func (s *story) keep(t *testing.T, name string, authority *controlplane.CA, bundle []byte, commonName string, names []string) {
	t.Helper()
	pair, err := authority.Issue(controlplane.Leaf{
		CommonName: commonName, DNSNames: names, IPs: []net.IP{net.ParseIP(s.address)}, Server: true, Client: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	secrets := cluster.Client.CoreV1().Secrets(s.namespace)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": bundle},
	}
	_, err = secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// trusts waits until Gatekeeper and the API server trust these authorities.
func (s *story) trusts(t *testing.T, authorities ...*controlplane.CA) {
	t.Helper()
	cluster.Test(t).Eventually("Providers and webhook hold the authorities", func(ctx context.Context) error {
		hook, err := s.webhook(ctx)
		if err != nil {
			return err
		}
		held := [][]byte{hook.ClientConfig.CABundle}
		for _, name := range []string{"archkeeper", "archkeeper-namespaced", "archkeeper-pin"} {
			got, err := bundle(ctx, name)
			if err != nil {
				return err
			}
			held = append(held, got)
		}
		for _, got := range held {
			for _, a := range authorities {
				if !bytes.Contains(got, a.CertPEM) {
					return errors.New("an authority is not trusted by all")
				}
			}
		}
		return nil
	})
}

// serves waits until the provider shows a certificate of an authority, and takes
// one of it from our controllers.
func (s *story) serves(t *testing.T, authority *controlplane.CA, client controlplane.KeyPair) {
	t.Helper()
	certificate, err := client.TLS()
	if err != nil {
		t.Fatal(err)
	}
	cluster.Test(t).Eventually("the provider uses the authority", func(ctx context.Context) error {
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: authority.Pool(), Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}}
		connection, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", s.address, s.ports["provider 8443"]))
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// works admits one pod, denies one, and places one by the webhook: Gatekeeper,
// the API server and the provider trust each other.
func (s *story) works(t *testing.T) {
	t.Helper()
	s.constraint(t)
	k := cluster.Test(t)
	k.Eventually("the webhook places a pod", func(context.Context) error {
		created, err := k.TryCreatePod(pod("placed", images.Host+"/shop/arm:1"))
		if err != nil {
			return err
		}
		if created.Spec.Affinity == nil {
			k.Kubectl("delete", "pod", "placed", "-n", k.Namespace, "--grace-period=0", "--force")
			return errors.New("the webhook was not called")
		}
		return nil
	})
}

// leave removes everything, as Helm does.
func (s *story) leave(t *testing.T) {
	t.Helper()
	s.forbidden(t)
	if _, err := s.runHook(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.deleteObjects(t.Context(), s.objects); err != nil {
		t.Fatal(err)
	}
	s.end()
	if err := cluster.Client.CoreV1().Namespaces().Delete(t.Context(), s.namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// begin renders an installation into a namespace of its own.
func begin(t *testing.T, ns, values string) *story {
	t.Helper()
	i, err := render(t.Context(), cluster, release, ns, values)
	if err != nil {
		t.Fatal(err)
	}
	s := &story{installation: i, audit: cluster.AuditSize()}
	t.Cleanup(s.end)
	if err := s.apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func authority(t *testing.T, name string) *controlplane.CA {
	t.Helper()
	ca, err := controlplane.NewCA(name)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func concatenated(authorities ...*controlplane.CA) []byte {
	var all []byte
	for _, a := range authorities {
		all = append(all, a.CertPEM...)
	}
	return all
}

// The administrator provides both Secrets, and replaces authority and
// certificates in the documented order while requests go on.
func TestProvidedCertificates(t *testing.T) {
	s := begin(t, "provided-certificates", theirValues("{mode: provided, providerSecret: theirs-provider, controllersSecret: theirs-controllers}"))
	provide := func(signer *controlplane.CA, trusted ...*controlplane.CA) {
		t.Helper()
		service := s.providerName() + "." + s.namespace
		s.keep(t, "theirs-provider", signer, concatenated(trusted...), "", []string{service, service + ".svc"})
		s.keep(t, "theirs-controllers", signer, concatenated(trusted...), "", []string{release + "-controllers"})
	}
	client := func(of *controlplane.CA) controlplane.KeyPair {
		t.Helper()
		pair, err := of.Issue(controlplane.Leaf{CommonName: "a caller", DNSNames: []string{release + "-controllers"}, Client: true})
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	first, second := authority(t, "first"), authority(t, "second")
	provide(first, first)
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.trusts(t, first)
	s.works(t)

	l := s.ask(t, images.Host+"/shop/multi:1")
	defer l.stop()
	provide(first, first, second)
	s.trusts(t, first, second)
	callers := &gatekeeperCaller{url: fmt.Sprintf("https://%s:%d/v1/public", s.address, s.ports["provider 8443"]), image: images.Host + "/shop/multi:1"}
	callers.config = &tls.Config{RootCAs: first.Pool(), MinVersion: tls.VersionTLS13}
	certificate, err := client(second).TLS()
	if err != nil {
		t.Fatal(err)
	}
	callers.config.Certificates = []tls.Certificate{certificate}
	k := cluster.Test(t)
	k.Eventually("the provider takes a certificate of the new authority", callers.ask)
	provide(second, first, second)
	s.serves(t, second, client(second))
	provide(second, second)
	callers.config.RootCAs = second.Pool()
	callers.config.Certificates = nil
	if certificate, err = client(first).TLS(); err != nil {
		t.Fatal(err)
	}
	callers.config.Certificates = []tls.Certificate{certificate}
	k.Eventually("the provider takes none of the old authority", func(ctx context.Context) error {
		if err := callers.ask(ctx); err == nil {
			return errors.New("it takes one still")
		}
		return nil
	})
	l.stop()
	l.done.Wait()
	t.Logf("%d requests, %d failed", l.asked.Load(), l.failed.Load())
	if l.failed.Load() > 0 || l.asked.Load() < 100 {
		t.Errorf("%d of %d requests failed: %v", l.failed.Load(), l.asked.Load(), l.errors)
	}
	s.works(t)
	s.leave(t)
}

// The test plays cert-manager: it issues the Secrets that the rendered
// Certificates name, with the names that they ask for, and later anew, by another
// authority and all at once.
func TestCertificatesOfCertManager(t *testing.T) {
	s := begin(t, "cert-manager-certificates", theirValues("{mode: certManager, issuerRef: {name: issuer}}"))
	certificates := schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}
	issue := func(by *controlplane.CA) {
		t.Helper()
		wanted, err := cluster.Dynamic.Resource(certificates).Namespace(s.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(wanted.Items) != 2 {
			t.Fatalf("%d Certificates, %v", len(wanted.Items), err)
		}
		for _, w := range wanted.Items {
			secret, _, _ := unstructured.NestedString(w.Object, "spec", "secretName")
			commonName, _, _ := unstructured.NestedString(w.Object, "spec", "commonName")
			names, _, _ := unstructured.NestedStringSlice(w.Object, "spec", "dnsNames")
			usages, _, _ := unstructured.NestedStringSlice(w.Object, "spec", "usages")
			if !slices.Contains(usages, "server auth") || !slices.Contains(usages, "client auth") {
				t.Errorf("Certificate %s is for %v", w.GetName(), usages)
			}
			s.keep(t, secret, by, by.CertPEM, commonName, names)
		}
	}
	first, second := authority(t, "issuer"), authority(t, "issuer's next")
	issue(first)
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.trusts(t, first)
	s.works(t)

	issue(second)
	s.trusts(t, first, second)
	certificate, err := second.Issue(controlplane.Leaf{DNSNames: []string{release + "-controllers"}, Client: true})
	if err != nil {
		t.Fatal(err)
	}
	s.serves(t, second, certificate)
	s.works(t)
	s.leave(t)
}
