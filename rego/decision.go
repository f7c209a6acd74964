package rego

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// Action is what happens to a pod.
type Action string

// The actions.
const (
	ActionPlace   Action = "place"   // write the requirement, take the gate off
	ActionGate    Action = "gate"    // put the gate on; at admission only
	ActionHold    Action = "hold"    // wait, ask again; on a gated pod only
	ActionRelease Action = "release" // take the gate off, change nothing else
	ActionIgnore  Action = "ignore"  // leave it alone; never a gated pod
)

// Reasons of the built-in policy that callers tell apart. A replaced policy may
// give others.
const (
	ReasonPlaced                    = "Placed"
	ReasonNoCommonArchitecture      = "NoCommonArchitecture"
	ReasonArchitectureContradiction = "ArchitectureContradiction"
	ReasonFallbackArchitecture      = "FallbackArchitecture"
	ReasonImagesUnknown             = "ImagesUnknown"
	ReasonImageUnusable             = "ImageUnusable"
	ReasonControllerNotAlive        = "ControllerNotAlive"
	ReasonDeadlineExceeded          = "DeadlineExceeded"
	// ReasonPolicyFailed is given when no policy gave a usable decision: the
	// pod is let go.
	ReasonPolicyFailed = "PolicyFailed"
)

// Operation is one operation of RFC 6902.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Decision is the placement policy's output document.
type Decision struct {
	Action Action `json:"action"`
	// Architectures of the nodes that the pod may go to; empty when nothing
	// constrains it or nothing is left.
	Architectures []string `json:"architectures"`
	// Patch is RFC 6902 against the pod as given; empty when nothing changes.
	Patch []Operation `json:"patch"`
	// Reason in CamelCase, for events and metrics.
	Reason string `json:"reason"`
	// Message for a person.
	Message string `json:"message"`
}

// Outcome is how a decision reads to someone who asked whether the pod runs.
type Outcome int

// The outcomes.
const (
	// OutcomeSettled is a pod that is placed or not ours to place.
	OutcomeSettled Outcome = iota
	// OutcomeContradicts is a pod that no node can run.
	OutcomeContradicts
	// OutcomeUndetermined is a pod with an image that is not known or bad.
	OutcomeUndetermined
)

// Outcome of the decision.
func (d Decision) Outcome() Outcome {
	switch d.Reason {
	case ReasonNoCommonArchitecture, ReasonArchitectureContradiction:
		return OutcomeContradicts
	case ReasonImageUnusable, ReasonControllerNotAlive, ReasonDeadlineExceeded, ReasonPolicyFailed:
		return OutcomeUndetermined
	}
	if d.Action == ActionGate || d.Action == ActionHold {
		return OutcomeUndetermined
	}
	return OutcomeSettled
}

// PatchJSON is the patch as the API server takes it. Equal decisions give equal
// bytes.
func (d Decision) PatchJSON() ([]byte, error) {
	bytes, err := json.Marshal(d.Patch)
	if err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	return bytes, nil
}

// maxMessage bounds a message, in bytes, where an Event or a person reads it.
const maxMessage = 2048

var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,63}$`)

// decode reads a policy's output document.
func decode(document any) (Decision, error) {
	raw, err := json.Marshal(document)
	if err != nil {
		return Decision{}, fmt.Errorf("encoding the policy's decision: %w", err)
	}
	var d Decision
	if err := json.Unmarshal(raw, &d); err != nil {
		return Decision{}, fmt.Errorf("the policy's decision has the wrong shape: %w", err)
	}
	if d.Patch == nil {
		d.Patch = []Operation{}
	}
	if d.Architectures == nil {
		d.Architectures = []string{}
	}
	if !camelCase.MatchString(d.Reason) {
		return Decision{}, fmt.Errorf("the policy's reason %q is not CamelCase", d.Reason)
	}
	if len(d.Message) > maxMessage {
		d.Message = strings.ToValidUTF8(d.Message[:maxMessage], "") + "..."
	}
	return d, nil
}
