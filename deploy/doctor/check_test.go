package doctor

import (
	"crypto/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/controllers/certificates"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// healthy is an installation with everything switched on.
func healthy(t *testing.T) Snapshot {
	t.Helper()
	plan, err := certificates.Plan(now, certificates.Lifetimes{}, certificates.State{}, nil, []certificates.Request{{Name: "tls", Hosts: []string{"provider.ns.svc"}}}, false, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	bundle := plan.State.Bundle()
	serving := Certificate{Secret: "provider-tls", NotBefore: now, NotAfter: now.Add(90 * 24 * time.Hour), Chain: plan.Leaves["tls"].Cert, Bundle: bundle}
	return Snapshot{
		Now: now, Namespace: "ns",
		Gatekeeper: &Gatekeeper{
			Version: "v3.23.1", Operations: true, Args: []string{"--port=8443"},
			Mutating:   []GatekeeperWebhook{{Name: "gatekeeper-mutating-webhook-configuration", Timeout: 3 * time.Second, Reinvocation: "Never"}},
			Validating: []GatekeeperWebhook{{Name: "gatekeeper-validating-webhook-configuration", Timeout: 3 * time.Second}},
		},
		Providers: []ProviderObject{
			{Name: "archkeeper", URL: "https://provider.ns.svc:8443/v1/public", Timeout: time.Second, CABundle: bundle},
			{Name: "archkeeper-pin", URL: "https://provider.ns.svc:8443/v1/pin", Timeout: time.Second, CABundle: bundle},
		},
		Assigns:      []Assign{{Name: "gate", Operations: [][]string{{"CREATE"}}, SkipsDecided: true}},
		Webhook:      &Webhook{Name: "mutate.archkeeper.io", Reinvocation: "IfNeeded", Timeout: 2 * time.Second, CABundle: bundle, Path: "/v1/admit/secret", Service: true},
		Provider:     &Deployment{Name: "provider", Args: []string{"provider", "--deadline=900ms", "--client-san=gatekeeper-webhook-service.gatekeeper-system.svc"}, Replicas: 2, Ready: 2},
		Controllers:  &Deployment{Name: "controllers", Args: []string{"controllers", "--enable=certificates,placement"}, Replicas: 2, Ready: 2},
		Serving:      &serving,
		Certificates: []Certificate{serving},
		Lease:        &Lease{Name: "controllers", Holder: "one", Renewed: now.Add(-5 * time.Second), Duration: 15 * time.Second},
		Gate:         "archkeeper.io/architecture", HoldDeadline: 2 * time.Minute,
		Gated:  []GatedPod{{"shop", "web", now.Add(-time.Minute)}},
		Access: []Access{{ServiceAccount: "provider", Verb: "create", Resource: "tokenreviews", Allowed: true}},
	}
}

func TestAHealthyInstallationHasNoFindings(t *testing.T) {
	if found := Check(healthy(t)); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func TestEachThingThatIsWrongIsFoundAndAdvisedUpon(t *testing.T) {
	for name, c := range map[string]struct {
		check    string
		severity Severity
		says     string
		change   func(*Snapshot)
	}{
		"no controllers at all":              {"deployments", Broken, "no Deployment", func(s *Snapshot) { s.Controllers = nil }},
		"no provider is ready":               {"deployments", Broken, "none of 2", func(s *Snapshot) { s.Provider.Ready = 0 }},
		"one provider is not ready":          {"deployments", Risky, "1 of 2", func(s *Snapshot) { s.Provider.Ready = 1 }},
		"no Gatekeeper":                      {"gatekeeper", Risky, "the cluster has none", func(s *Snapshot) { s.Gatekeeper, s.Assigns, s.Providers = nil, nil, nil }},
		"a Gatekeeper that is too old":       {"gatekeeper-version", Broken, "v3.22.0", func(s *Snapshot) { s.Gatekeeper.Operations, s.Gatekeeper.Version = false, "v3.22.0" }},
		"external data switched off":         {"gatekeeper-flags", Broken, "enable-external-data", func(s *Snapshot) { s.Gatekeeper.Args = []string{"--enable-external-data=false"} }},
		"no mutation":                        {"gatekeeper-flags", Broken, "no mutation", func(s *Snapshot) { s.Gatekeeper.Args = []string{"--operation=webhook", "--operation=audit"} }},
		"no Provider object":                 {"providers", Broken, "key is not found", func(s *Snapshot) { s.Providers = nil }},
		"a Provider without a timeout":       {"provider-timeout", Broken, "no timeout", func(s *Snapshot) { s.Providers[0].Timeout = 0 }},
		"a timeout above the webhook's":      {"provider-timeout", Broken, "not below", func(s *Snapshot) { s.Providers[0].Timeout = 3 * time.Second }},
		"a pin above the mutating webhook's": {"provider-timeout", Risky, "mutating", func(s *Snapshot) { s.Gatekeeper.Mutating[0].Timeout = time.Second }},
		"a deadline above the timeout":       {"provider-deadline", Broken, "gives up", func(s *Snapshot) { s.Provider.Args[1] = "--deadline=2s" }},
		"a Provider that trusts another":     {"provider-ca", Broken, "does not prove", func(s *Snapshot) { s.Providers[1].CABundle = healthy(t).Serving.Bundle }},
		"a webhook that trusts nobody":       {"webhook-ca", Broken, "no authority", func(s *Snapshot) { s.Webhook.CABundle = nil }},
		"a webhook without its path":         {"webhook-path", Broken, "secret path", func(s *Snapshot) { s.Webhook.Path = "" }},
		"a webhook that runs first":          {"webhook-order", Broken, "sorts before", func(s *Snapshot) { s.Webhook.Name = "archkeeper.io" }},
		"a webhook that runs once":           {"webhook-reinvocation", Risky, "Never", func(s *Snapshot) { s.Webhook.Reinvocation = "Never" }},
		"a gate that comes back at updates":  {"gate-operations", Broken, "undoes", func(s *Snapshot) { s.Assigns[0].Operations = [][]string{nil} }},
		"a gate that comes back at reinvocation": {"gate-reinvocation", Broken, "once more", func(s *Snapshot) {
			s.Assigns[0].SkipsDecided, s.Gatekeeper.Mutating[0].Reinvocation = false, "IfNeeded"
		}},
		"a gate without an interlock":  {"interlock", Risky, "pile up", func(s *Snapshot) { s.Webhook = nil }},
		"a lease that went stale":      {"controller", Broken, "10m0s ago", func(s *Snapshot) { s.Lease.Renewed = now.Add(-10 * time.Minute) }},
		"a lease that nobody holds":    {"controller", Broken, "nobody holds", func(s *Snapshot) { s.Lease.Holder = "" }},
		"gated pods and no lease":      {"controller", Broken, "no Lease", func(s *Snapshot) { s.Lease = nil }},
		"a pod beyond the deadline":    {"gated-pods", Broken, "shop/web", func(s *Snapshot) { s.Gated[0].Created = now.Add(-time.Hour) }},
		"a certificate that has ended": {"certificates", Broken, "expired", func(s *Snapshot) { s.Certificates[0].NotAfter = now.Add(-time.Second) }},
		"a certificate that ends": {"certificates", Risky, "expires in 24h", func(s *Snapshot) {
			s.Certificates[0].NotAfter = now.Add(24 * time.Hour)
			s.Certificates[0].NotBefore = now.Add(-89 * 24 * time.Hour)
		}},
		"a right that is missing": {"rbac", Broken, "may not patch pods", func(s *Snapshot) {
			s.Access = []Access{{ServiceAccount: "controllers", Verb: "patch", Resource: "pods", Why: "to free gated pods"}}
		}},
		"a registry that is silent": {"registries", Risky, "quay.io does not answer 2", func(s *Snapshot) { s.Circuits = map[string][]string{"a": {"quay.io"}, "b": {"quay.io"}} }},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy(t)
			c.change(&s)
			found := Check(s)
			i := slices.IndexFunc(found, func(f Finding) bool { return f.Check == c.check })
			if i < 0 {
				t.Fatalf("no finding of %s in %+v", c.check, found)
			}
			if f := found[i]; f.Severity != c.severity || !strings.Contains(f.Message, c.says) || f.Advice == "" {
				t.Errorf("%+v", f)
			}
			if len(found) != 1 {
				t.Errorf("%d findings for one fault: %+v", len(found), found)
			}
		})
	}
}

func TestOpenCircuitsAreReadFromMetrics(t *testing.T) {
	got := openCircuits([]byte("# HELP archkeeper_registry_circuit_open x\narchkeeper_registry_circuit_open{registry=\"quay.io\"} 1\narchkeeper_registry_circuit_open{registry=\"docker.io\"} 0\nother{registry=\"x\"} 1\n"))
	if !slices.Equal(got, []string{"quay.io"}) {
		t.Errorf("got %v", got)
	}
}

func TestOneDeploymentForAllIsNamedOnce(t *testing.T) {
	s := healthy(t)
	s.Controllers = s.Provider
	if found := checkDeployments(s); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	s.Provider.Ready = 0
	if found := checkDeployments(s); len(found) != 1 {
		t.Errorf("%d findings about one Deployment: %+v", len(found), found)
	}
}
