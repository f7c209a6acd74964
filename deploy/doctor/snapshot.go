// Package doctor looks at a live installation as an administrator would, and
// says what to do. Collect reads a Snapshot from the API server; Check judges it
// and reads nothing.
package doctor

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Snapshot is what was seen of an installation. A nil or empty field was not
// there; what could not be looked at is named in Unseen.
type Snapshot struct {
	Now       time.Time
	Namespace string

	// Gatekeeper is nil when neither its webhooks nor its CRDs are there.
	Gatekeeper *Gatekeeper
	// Providers of Gatekeeper that lead to our Service.
	Providers []ProviderObject
	// Assigns that inject our gate.
	Assigns []Assign
	// Webhook is our MutatingWebhookConfiguration.
	Webhook *Webhook

	// Provider and Controllers are our Deployments; the same one when all is in one.
	Provider, Controllers *Deployment
	// Serving is the provider's certificate.
	Serving *Certificate
	// Certificates that the installation keeps, Serving included.
	Certificates []Certificate
	// Lease of the controllers.
	Lease *Lease

	// Gate and HoldDeadline of the configuration in force.
	Gate         string
	HoldDeadline time.Duration
	// Gated pods.
	Gated []GatedPod

	// Access that our service accounts need.
	Access []Access
	// Circuits are registries that a provider's pod leaves alone, by pod.
	Circuits map[string][]string

	// Unseen says what could not be looked at, and why.
	Unseen []string
}

// Gatekeeper is what matters of one.
type Gatekeeper struct {
	// Version of its image's tag, such as v3.23.1; empty when it is not known.
	Version string
	// Operations tells whether its Assign knows applyTo.operations (3.23).
	Operations bool
	// Args of all its containers.
	Args []string
	// Mutating and Validating webhook configurations, by name, with the shortest
	// timeout of their webhooks.
	Mutating, Validating []GatekeeperWebhook
}

// GatekeeperWebhook is one configuration.
type GatekeeperWebhook struct {
	Name         string
	Timeout      time.Duration
	Reinvocation string
}

// ProviderObject is a Provider of Gatekeeper.
type ProviderObject struct {
	Name, URL string
	Timeout   time.Duration
	CABundle  []byte
}

// Assign injects our gate.
type Assign struct {
	Name string
	// Operations of each applyTo entry; an entry without any is empty.
	Operations [][]string
	// SkipsDecided tells whether it leaves pods alone that our webhook has decided.
	SkipsDecided bool
}

// Webhook is ours.
type Webhook struct {
	Name         string
	Reinvocation string
	Timeout      time.Duration
	CABundle     []byte
	Path         string
	// Service tells whether it calls a Service, rather than a URL.
	Service bool
}

// Deployment of ours.
type Deployment struct {
	Name               string
	Args               []string
	Replicas, Ready    int32
	ServiceAccountName string
}

// Certificate is a leaf or an authority in a Secret of ours.
type Certificate struct {
	Secret              string
	NotBefore, NotAfter time.Time
	// Chain is PEM; Bundle the authorities beside it.
	Chain, Bundle []byte
}

// Lease is the controllers'.
type Lease struct {
	Name, Holder string
	Renewed      time.Time
	Duration     time.Duration
}

// GatedPod waits on our gate.
type GatedPod struct {
	Namespace, Name string
	Created         time.Time
}

// Access is one thing that a service account needs, and whether it has it.
type Access struct {
	ServiceAccount, Verb, Group, Resource, Name, Namespace string
	Why                                                    string
	Allowed                                                bool
}

// gated tells whether a pod waits on a gate.
func gated(pod *corev1.Pod, gate string) bool {
	for _, g := range pod.Spec.SchedulingGates {
		if g.Name == gate {
			return true
		}
	}
	return false
}
