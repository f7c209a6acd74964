// Package explain tells what would happen to a pod, and why: the decision of the
// placement policy and what it rests on.
package explain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	sigsjson "sigs.k8s.io/json"

	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/internal/document"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/wire"
	"github.com/archkeeper/archkeeper/rego"
)

// Pod is a pod in both its forms: as it was given, against which the patch is,
// and as it is understood.
type Pod struct {
	Raw json.RawMessage
	Pod corev1.Pod
}

// ParsePod reads exactly one pod in YAML or JSON. Another kind, several
// documents, and a pod without containers or with one without an image are errors.
func ParsePod(text []byte) (Pod, error) {
	raw, err := document.One(text)
	if err != nil {
		return Pod{}, err
	}
	var kind struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := sigsjson.UnmarshalCaseSensitivePreserveInts(raw, &kind); err != nil {
		return Pod{}, fmt.Errorf("it is no Kubernetes object: %w", err)
	}
	if kind.APIVersion != "v1" || kind.Kind != "Pod" {
		return Pod{}, fmt.Errorf("it is no Pod but apiVersion %q, kind %q", kind.APIVersion, kind.Kind)
	}
	p := Pod{Raw: raw}
	if err := sigsjson.UnmarshalCaseSensitivePreserveInts(raw, &p.Pod); err != nil {
		return Pod{}, fmt.Errorf("it is no Pod: %w", err)
	}
	if _, err := rego.References(&p.Pod.Spec); err != nil {
		return Pod{}, err
	}
	return p, nil
}

// Evaluator decides.
type Evaluator interface {
	Decide(ctx context.Context, in rego.Input) (rego.Decision, error)
}

// Question is a pod in its surroundings.
type Question struct {
	Pod Pod
	// Namespace object, or as much as is known of it; nil for nothing.
	Namespace *corev1.Namespace
	Placement config.Placement
	Cluster   rego.Cluster
	// MayPin tells whether a canonical reference may be set to its digest, where
	// the configuration wants that; nil for never.
	MayPin func(reference string) bool
	// Answers about the pod's images, by any order.
	Answers []provider.Answer
	// Now is when the question is asked: it gives the pod's age.
	Now time.Time
}

// Document is what explain prints: the decision, and what is known of the images.
type Document struct {
	rego.Decision
	Images []wire.Image `json:"images"`

	phase rego.Phase
	notes []string
}

// Explain decides about the pod as admission would, or, when it waits on our gate
// already, as the placement controller would.
func Explain(ctx context.Context, evaluator Evaluator, q Question) (Document, error) {
	settings, err := q.Placement.JSON()
	if err != nil {
		return Document{}, err
	}
	in := rego.Input{
		Phase:           rego.PhaseAdmit,
		Pod:             q.Pod.Raw,
		Images:          rego.Answers(&q.Pod.Pod.Spec, q.Answers, q.Now),
		Cluster:         q.Cluster,
		ControllerAlive: true,
		Config:          settings,
	}
	if q.Placement.Pin && q.MayPin != nil {
		rego.Pin(in.Images, q.Answers, q.MayPin)
	}
	for _, gate := range q.Pod.Pod.Spec.SchedulingGates {
		if gate.Name == q.Placement.Gate {
			in.Phase = rego.PhaseResolve
		}
	}
	if created := q.Pod.Pod.CreationTimestamp; !created.IsZero() {
		in.HeldSeconds = max(0, q.Now.Sub(created.Time).Seconds())
	}
	if q.Namespace != nil {
		if in.Namespace, err = json.Marshal(q.Namespace); err != nil {
			return Document{}, fmt.Errorf("encoding the namespace: %w", err)
		}
	}
	decision, err := evaluator.Decide(ctx, in)
	if err != nil {
		return Document{}, err
	}
	document := Document{Decision: decision, Images: []wire.Image{}, phase: in.Phase}
	for _, answer := range q.Answers {
		document.Images = append(document.Images, wire.FromAnswer(answer))
		document.notes = append(document.notes, notes(answer)...)
	}
	return document, nil
}

// notes are what a person should know of an image beside its platforms.
func notes(a provider.Answer) []string {
	var all []string
	if a.CredentialSource != "" && a.CredentialSource != "anonymous" {
		all = append(all, fmt.Sprintf("%s: read with %s", a.Image, a.CredentialSource))
	}
	if a.AnonymousFallback {
		all = append(all, fmt.Sprintf("%s: its credentials were refused and it was read without; a node would fail to pull it", a.Image))
	}
	if a.Mirror != "" {
		all = append(all, fmt.Sprintf("%s: answered by %s", a.Image, a.Mirror))
	}
	for _, w := range a.Warnings {
		all = append(all, a.Image+": "+w)
	}
	return all
}

// The exit statuses.
const (
	StatusSettled      = 0 // placed, or not ours to place
	StatusContradicts  = 2 // no common architecture, or the user contradicts the images
	StatusUndetermined = 3 // an image is unknown or bad
)

// Status is the exit status.
func (d Document) Status() int {
	switch d.Outcome() {
	case rego.OutcomeContradicts:
		return StatusContradicts
	case rego.OutcomeUndetermined:
		return StatusUndetermined
	case rego.OutcomeSettled:
	}
	return StatusSettled
}

// WriteJSON writes the document for scripts.
func (d Document) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(d)
}

// WriteTable writes the document for a person.
func (d Document) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "IMAGE\tKIND\tRUNS ON")
	for _, image := range d.Images {
		kind, runs := string(image.Kind), strings.Join(image.Platforms, ", ")
		switch {
		case image.Error != nil:
			runs = fmt.Sprintf("unknown: %s: %s", image.Error.Class, image.Error.Message)
		case image.ContentOnly:
			runs = "anything: it is content"
		case runs == "":
			runs = "nothing"
		}
		if kind == "" {
			kind = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", image.Image, kind, runs)
	}
	fmt.Fprintln(table)
	moment := "when the pod is created"
	if d.phase == rego.PhaseResolve {
		moment = "the pod waits on its gate"
	}
	fmt.Fprintf(table, "Decision\t%s (%s)\n", d.Action, moment)
	fmt.Fprintf(table, "Reason\t%s: %s\n", d.Reason, d.Message)
	if len(d.Architectures) > 0 {
		fmt.Fprintf(table, "Architectures\t%s\n", strings.Join(d.Architectures, ", "))
	}
	for i, op := range d.Patch {
		line, err := json.Marshal(op)
		if err != nil {
			return fmt.Errorf("encoding the patch: %w", err)
		}
		fmt.Fprintf(table, "%s\t%s\n", map[bool]string{true: "Patch"}[i == 0], line)
	}
	for i, note := range d.notes {
		fmt.Fprintf(table, "%s\t%s\n", map[bool]string{true: "Notes"}[i == 0], note)
	}
	return table.Flush()
}
