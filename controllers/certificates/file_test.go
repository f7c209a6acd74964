package certificates

import (
	"strings"
	"testing"
	"time"
)

const whatTheChartWrites = `
authority: archkeeper-ca
leaves:
  - name: provider-tls
    commonName: provider
    hosts: [provider.ns.svc]
  - name: controllers-tls
    commonName: controllers
    hosts: [controllers]
    client: true
webhooks: [mutate.archkeeper.io]
admissionSecret: archkeeper-admission
clientAuthority: {webhook: gatekeeper-validating-webhook-configuration, configMap: gatekeeper-ca}
lifetimes: {authority: 1h, leaf: 10m, overlap: 30s}
providers:
  - apiVersion: externaldata.gatekeeper.sh/v1beta1
    kind: Provider
    metadata: {name: archkeeper}
    spec: {url: "https://provider.ns.svc:8443/v1/public", timeout: 1}
`

func TestAFileSaysWhatIsKept(t *testing.T) {
	f, err := ParseFile([]byte(whatTheChartWrites))
	if err != nil {
		t.Fatal(err)
	}
	o := f.Options()
	if o.Authority != "archkeeper-ca" || len(o.Leaves) != 2 || !o.Leaves[1].Client || o.Leaves[0].Hosts[0] != "provider.ns.svc" {
		t.Errorf("authority and leaves: %+v", o)
	}
	if want := (Lifetimes{Authority: time.Hour, Leaf: 10 * time.Minute, Overlap: 30 * time.Second}); o.Lifetimes != want {
		t.Errorf("lifetimes %+v, want %+v", o.Lifetimes, want)
	}
	if o.ClientAuthority.ConfigMap != "gatekeeper-ca" || o.AdmissionSecret != "archkeeper-admission" || len(o.Webhooks) != 1 {
		t.Errorf("the rest: %+v", o)
	}
	// A Provider is copied before it is written, which a float64 would not survive as an integer.
	spec, _ := o.Providers[0].DeepCopy().Object["spec"].(map[string]any)
	if timeout, ok := spec["timeout"].(int64); !ok || timeout != 1 {
		t.Errorf("timeout is %T %v, want int64 1", spec["timeout"], spec["timeout"])
	}
}

func TestAFileThatCannotBeMeant(t *testing.T) {
	for name, c := range map[string]struct{ text, err string }{
		"nothing to keep":                       {"webhooks: [a]", "one of authority and follow"},
		"both an authority and one to follow":   {"{authority: a, follow: b}", "one of authority and follow"},
		"a bundle to trust of our own":          {"{authority: a, trust: b}", "trust belongs to follow"},
		"leaves that nobody signs":              {"{follow: b, leaves: [{name: c}]}", "leaves need an authority"},
		"a leaf without a name":                 {"{authority: a, leaves: [{hosts: [x]}]}", "leaves[0].name"},
		"half a client authority":               {"{authority: a, clientAuthority: {webhook: w}}", "both webhook and configMap"},
		"a provider of another kind":            {"{authority: a, providers: [{kind: Pod, metadata: {name: x}}]}", "providers[0]"},
		"a field that does not exist":           {"{authority: a, leafs: []}", "leafs"},
		"an overlap that the authority has not": {"{authority: a, lifetimes: {authority: 1m, overlap: 50s}}", "more than a quarter"},
		"a life that is none":                   {"{authority: a, lifetimes: {leaf: -1s}}", "lifetimes.leaf"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseFile([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, want an error with %q", err, c.err)
			}
		})
	}
}

func TestShortLivedAuthoritiesAreNotRenewedAtOnce(t *testing.T) {
	c := &cluster{t: t, now: start, leaves: map[string]Pair{}, life: Lifetimes{Authority: 2 * time.Minute, Leaf: time.Minute, Overlap: 10 * time.Second}}
	c.plan(false)
	c.now = c.now.Add(time.Second)
	c.plan(true)
	if !c.state.Next.Empty() {
		t.Error("an authority of two minutes was to be replaced after a second")
	}
}
