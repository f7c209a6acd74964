package doctor

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Severity of a finding.
type Severity string

// The severities.
const (
	// Broken does not work, or will hold or let through pods that it should not.
	Broken Severity = "broken"
	// Risky works until something else happens.
	Risky Severity = "risky"
)

// Finding is something that is not as it should be.
type Finding struct {
	// Check that found it, a word or two joined by hyphens.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object that it is about, KIND/NAME; empty for the installation.
	Object  string `json:"object,omitempty"`
	Message string `json:"message"`
	// Advice says what to do.
	Advice string `json:"advice"`
}

// Check judges a snapshot. Broken things come first.
func Check(s Snapshot) []Finding {
	var all []Finding
	for _, check := range []func(Snapshot) []Finding{
		checkDeployments, checkGatekeeper, checkTimeouts, checkTrust, checkWebhook, checkGateInjection,
		checkLiveController, checkGatedPods, checkCertificates, checkAccess, checkCircuits,
	} {
		all = append(all, check(s)...)
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), 0) // "broken" sorts before "risky"
	})
	return all
}

func checkDeployments(s Snapshot) []Finding {
	var found []Finding
	deployments := map[string]*Deployment{"provider": s.Provider, "controllers": s.Controllers}
	if s.Controllers != nil && s.Controllers == s.Provider { // all in one
		delete(deployments, "controllers")
	}
	for what, d := range deployments {
		switch {
		case d == nil:
			found = append(found, Finding{"deployments", Broken, "", "there is no Deployment of the " + what + " in namespace " + s.Namespace,
				"name the right namespace with -n, or install the chart"})
		case d.Ready == 0:
			found = append(found, Finding{"deployments", Broken, "Deployment/" + d.Name, fmt.Sprintf("none of %d replicas is ready", d.Replicas),
				"look at kubectl -n " + s.Namespace + " describe pods and logs; docs/troubleshooting.md goes on from there"})
		case d.Ready < d.Replicas:
			found = append(found, Finding{"deployments", Risky, "Deployment/" + d.Name, fmt.Sprintf("%d of %d replicas are ready", d.Ready, d.Replicas),
				"look at kubectl -n " + s.Namespace + " describe pods"})
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Compare(a.Object+a.Message, b.Object+b.Message) })
	return found
}

// usesGatekeeper tells whether the provider is set up for Gatekeeper's calls.
func usesGatekeeper(s Snapshot) bool {
	if s.Provider == nil {
		return false
	}
	for _, name := range flagValues(s.Provider.Args, "client-san") {
		if strings.Contains(name, "gatekeeper") {
			return true
		}
	}
	return len(flagValues(s.Provider.Args, "client-ca-webhook")) > 0
}

func checkGatekeeper(s Snapshot) []Finding {
	var found []Finding
	if s.Gatekeeper == nil {
		if usesGatekeeper(s) {
			found = append(found, Finding{"gatekeeper", Risky, "", "the provider expects Gatekeeper, and the cluster has none",
				"install Gatekeeper 3.23 or newer, or install the chart with gatekeeper.enabled=false"})
		}
		return found
	}
	if len(s.Assigns) > 0 && !s.Gatekeeper.Operations {
		found = append(found, Finding{"gatekeeper-version", Broken, "", fmt.Sprintf("Gatekeeper %s knows no operations in applyTo: its mutation puts the gate back in the very update that removes it", s.Gatekeeper.Version),
			"upgrade Gatekeeper to 3.23 or newer, or switch policies.schedulingGate off"})
	}
	for _, value := range flagValues(s.Gatekeeper.Args, "enable-external-data") {
		if value == "false" {
			found = append(found, Finding{"gatekeeper-flags", Broken, "", "Gatekeeper runs with --enable-external-data=false: no policy can ask the provider",
				"remove the flag"})
		}
	}
	if operations := flagValues(s.Gatekeeper.Args, "operation"); len(operations) > 0 && len(s.Assigns) > 0 && !slices.Contains(operations, "mutation-webhook") {
		found = append(found, Finding{"gatekeeper-flags", Broken, "", fmt.Sprintf("Gatekeeper runs the operations %s alone: no mutation, so no pod is gated by it", strings.Join(operations, ", ")),
			"add --operation=mutation-webhook"})
	}
	if usesGatekeeper(s) && len(s.Providers) == 0 {
		found = append(found, Finding{"providers", Broken, "", "no Provider object leads to our Service: policies fail with \"key is not found in provider cache\"",
			"the controllers make them: see their log, and whether --enable lists certificates"})
	}
	return found
}

// shortest gives the configuration whose timeout is the shortest.
func shortest(hooks []GatekeeperWebhook) (GatekeeperWebhook, bool) {
	if len(hooks) == 0 {
		return GatekeeperWebhook{}, false
	}
	return slices.MinFunc(hooks, func(a, b GatekeeperWebhook) int { return cmp.Compare(a.Timeout, b.Timeout) }), true
}

func checkTimeouts(s Snapshot) []Finding {
	var found []Finding
	deadline := time.Duration(0)
	if s.Provider != nil {
		for _, value := range flagValues(s.Provider.Args, "deadline") {
			deadline, _ = time.ParseDuration(value)
		}
	}
	for _, p := range s.Providers {
		object := "Provider/" + p.Name
		if p.Timeout <= 0 {
			found = append(found, Finding{"provider-timeout", Broken, object, "it has no timeout: every call of a constraint fails at once",
				"set provider.timeoutSeconds"})
			continue
		}
		pins := strings.HasSuffix(p.URL, "/v1/pin") // answered within a shorter deadline of its own
		if deadline > 0 && deadline >= p.Timeout && !pins {
			found = append(found, Finding{"provider-deadline", Broken, object, fmt.Sprintf("the provider answers within %s, and Gatekeeper gives up after %s: what is known of slow images is lost", deadline, p.Timeout),
				"keep provider.deadline 100ms below provider.timeoutSeconds"})
		}
		if s.Gatekeeper == nil {
			continue
		}
		hooks, kind := s.Gatekeeper.Validating, "validating"
		if pins {
			hooks, kind = s.Gatekeeper.Mutating, "mutating"
		}
		if hook, ok := shortest(hooks); ok && hook.Timeout > 0 && p.Timeout >= hook.Timeout {
			found = append(found, Finding{"provider-timeout", severity(kind == "validating", Broken, Risky), object,
				fmt.Sprintf("its timeout of %s is not below that of Gatekeeper's %s webhook, %s: when it is slow, pods are admitted unseen", p.Timeout, kind, hook.Timeout),
				fmt.Sprintf("raise Gatekeeper's %sWebhookTimeoutSeconds above %d, or lower provider.timeoutSeconds", kind, int(p.Timeout.Seconds()))})
		}
	}
	return found
}

func severity(condition bool, yes, no Severity) Severity {
	if condition {
		return yes
	}
	return no
}

func checkTrust(s Snapshot) []Finding {
	var found []Finding
	if s.Serving == nil {
		return nil
	}
	for _, p := range s.Providers {
		if err := verifies(s.Serving.Chain, p.CABundle, s.Now); err != nil {
			found = append(found, Finding{"provider-ca", Broken, "Provider/" + p.Name, "its caBundle does not prove the certificate in Secret " + s.Serving.Secret + ": " + err.Error(),
				"the controllers keep it: see their log; with tls.mode=provided the Secret's ca.crt must have signed its tls.crt"})
		}
	}
	if s.Webhook != nil {
		if err := verifies(s.Serving.Chain, s.Webhook.CABundle, s.Now); err != nil {
			found = append(found, Finding{"webhook-ca", Broken, "MutatingWebhookConfiguration/" + s.Webhook.Name, "its caBundle does not prove the certificate in Secret " + s.Serving.Secret + ": " + err.Error(),
				"the controllers keep it: see their log"})
		}
	}
	return found
}

// verifies tells whether bundle proves the first certificate of chain.
func verifies(chain, bundle []byte, now time.Time) error {
	block, rest := pem.Decode(chain)
	if block == nil {
		return fmt.Errorf("the Secret has no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("the certificate cannot be read: %w", err)
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return fmt.Errorf("it holds no authority")
	}
	intermediates.AppendCertsFromPEM(rest)
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}

func checkWebhook(s Snapshot) []Finding {
	w := s.Webhook
	if w == nil {
		return nil
	}
	var found []Finding
	object := "MutatingWebhookConfiguration/" + w.Name
	if w.Service && !strings.HasPrefix(w.Path, "/v1/admit/") {
		found = append(found, Finding{"webhook-path", Broken, object, "it does not call the secret path: every review is refused, and pods are admitted as they are",
			"the controllers write the path: see their log"})
	}
	if w.Reinvocation != "IfNeeded" {
		found = append(found, Finding{"webhook-reinvocation", Risky, object, "its reinvocationPolicy is " + w.Reinvocation + ": images that a later webhook changes are not seen",
			"set reinvocationPolicy: IfNeeded"})
	}
	if s.Gatekeeper == nil {
		return found
	}
	for _, g := range s.Gatekeeper.Mutating {
		if w.Name < g.Name && len(s.Assigns) > 0 {
			found = append(found, Finding{"webhook-order", Broken, object, "its name sorts before " + g.Name + ": it runs before Gatekeeper puts on the gate, and cannot place a pod at once, or take off a gate that nobody would remove",
				"set admission.name to one that sorts after Gatekeeper's"})
		}
	}
	return found
}

func checkGateInjection(s Snapshot) []Finding {
	var found []Finding
	for _, a := range s.Assigns {
		for _, operations := range a.Operations {
			if len(operations) != 1 || operations[0] != "CREATE" {
				found = append(found, Finding{"gate-operations", Broken, "Assign/" + a.Name, "it applies to more than CREATE: it undoes the removal of the gate",
					"set operations: [CREATE] in each applyTo entry"})
				break
			}
		}
		if s.Gatekeeper == nil || a.SkipsDecided || s.Webhook == nil {
			continue
		}
		for _, g := range s.Gatekeeper.Mutating {
			if g.Reinvocation == "IfNeeded" {
				found = append(found, Finding{"gate-reinvocation", Broken, "Assign/" + a.Name, "Gatekeeper's webhook runs again after ours has placed a pod, and this mutation gates it once more",
					"let its labelSelector skip pods with the label archkeeper.io/decided"})
			}
		}
	}
	if len(s.Assigns) > 0 && s.Webhook == nil {
		found = append(found, Finding{"interlock", Risky, "Assign/" + s.Assigns[0].Name, "pods are gated by Gatekeeper alone: when the controllers are down, gated pods pile up",
			"set admission.enabled=true: our webhook takes the gate off again while nobody is alive to remove it"})
	}
	return found
}

// leaseGrace is added to the Lease's duration, because clocks differ.
const leaseGrace = 30 * time.Second

func checkLiveController(s Snapshot) []Finding {
	injected := len(s.Assigns) > 0 || s.Webhook != nil
	alive := s.Lease != nil && s.Lease.Holder != "" && s.Now.Sub(s.Lease.Renewed) <= s.Lease.Duration+leaseGrace
	if alive || (!injected && len(s.Gated) == 0) {
		return nil
	}
	why := "there is no Lease"
	switch {
	case s.Lease != nil && s.Lease.Holder == "":
		why = "nobody holds Lease " + s.Lease.Name
	case s.Lease != nil:
		why = fmt.Sprintf("Lease %s was last renewed %s ago", s.Lease.Name, s.Now.Sub(s.Lease.Renewed).Round(time.Second))
	}
	return []Finding{{"controller", severity(len(s.Assigns) > 0 || len(s.Gated) > 0, Broken, Risky), "", fmt.Sprintf("no controller is alive to free gated pods (%s); %d are gated", why, len(s.Gated)),
		"bring the controllers back: kubectl -n " + s.Namespace + " get pods; or free the pods with archkeeper ungate --all"}}
}

// shown bounds the names in one message.
const shown = 5

func checkGatedPods(s Snapshot) []Finding {
	var late []GatedPod
	for _, p := range s.Gated {
		if s.HoldDeadline > 0 && s.Now.Sub(p.Created) > s.HoldDeadline+leaseGrace {
			late = append(late, p)
		}
	}
	if len(late) == 0 {
		return nil
	}
	slices.SortFunc(late, func(a, b GatedPod) int { return a.Created.Compare(b.Created) })
	var names []string
	for _, p := range late[:min(len(late), shown)] {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	if len(late) > shown {
		names = append(names, fmt.Sprintf("and %d more", len(late)-shown))
	}
	return []Finding{{"gated-pods", Broken, "", fmt.Sprintf("%d pods are gated for longer than the deadline of %s: %s", len(late), s.HoldDeadline, strings.Join(names, ", ")),
		"see their events and the controllers' log; archkeeper ungate -n NAMESPACE POD frees them"}}
}

func checkCertificates(s Snapshot) []Finding {
	var found []Finding
	for _, c := range s.Certificates {
		left, life := c.NotAfter.Sub(s.Now), c.NotAfter.Sub(c.NotBefore)
		switch {
		case left <= 0:
			found = append(found, Finding{"certificates", Broken, "Secret/" + c.Secret, "its certificate expired on " + c.NotAfter.UTC().Format(time.DateTime),
				"see the log of who renews it: the controllers, cert-manager, or you"})
		case left < min(7*24*time.Hour, life/6):
			found = append(found, Finding{"certificates", Risky, "Secret/" + c.Secret, fmt.Sprintf("its certificate expires in %s and was not renewed", left.Round(time.Minute)),
				"see the log of who renews it: the controllers, cert-manager, or you"})
		}
	}
	return found
}

func checkAccess(s Snapshot) []Finding {
	var found []Finding
	for _, a := range s.Access {
		if a.Allowed {
			continue
		}
		what := a.Resource
		if a.Group != "" {
			what += "." + a.Group
		}
		if a.Name != "" {
			what += "/" + a.Name
		}
		where := "in all namespaces"
		if a.Namespace != "" {
			where = "in namespace " + a.Namespace
		}
		found = append(found, Finding{"rbac", Broken, "ServiceAccount/" + a.ServiceAccount, fmt.Sprintf("may not %s %s %s, which it needs %s", a.Verb, what, where, a.Why),
			"install the chart's roles: helm upgrade, or kubectl diff against helm template"})
	}
	return found
}

func checkCircuits(s Snapshot) []Finding {
	pods := map[string]int{}
	for _, registries := range s.Circuits {
		for _, r := range registries {
			pods[r]++
		}
	}
	var found []Finding
	for _, registry := range slices.Sorted(maps.Keys(pods)) {
		found = append(found, Finding{"registries", Risky, "", "registry " + registry + " does not answer " + strconv.Itoa(pods[registry]) + " of the provider's pods and is left alone for a while",
			"try archkeeper inspect from inside the cluster; look at DNS, egress policies and proxies: docs/runbooks/ArchkeeperRegistryCircuitOpen.md"})
	}
	return found
}

// flagValues gives the values of a flag in arguments, --name=value.
func flagValues(arguments []string, name string) []string {
	var values []string
	for _, a := range arguments {
		if value, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			values = append(values, value)
		}
	}
	return values
}

// openCircuits reads the registries of archkeeper_registry_circuit_open that are
// 1 from Prometheus' text format.
func openCircuits(metrics []byte) []string {
	var open []string
	for line := range bytes.Lines(metrics) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(string(line)), `archkeeper_registry_circuit_open{registry="`)
		if !ok {
			continue
		}
		registry, value, ok := strings.Cut(rest, `"} `)
		if ok && value == "1" {
			open = append(open, registry)
		}
	}
	return open
}
