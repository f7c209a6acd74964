package rego

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/archkeeper/archkeeper/provider"
)

// Phase is the moment of a decision.
type Phase string

// The phases.
const (
	// PhaseAdmit is the creation of a pod: everything may still be changed.
	PhaseAdmit Phase = "admit"
	// PhaseResolve is a pod that exists and waits on our gate: it must be
	// held, placed or released.
	PhaseResolve Phase = "resolve"
)

// Input is what the placement policy judges by; its JSON form is the policy's
// input document.
type Input struct {
	Phase Phase `json:"phase"`
	// Pod as the API server or the user gave it: one JSON object.
	Pod json.RawMessage `json:"pod"`
	// Namespace is the namespace object, or as much of it as is known. May be nil.
	Namespace json.RawMessage `json:"namespace,omitempty"`
	// Images maps each reference, as written in the pod, to what is known of it.
	Images map[string]Image `json:"images"`
	// Cluster is what is known of the cluster's nodes.
	Cluster Cluster `json:"cluster"`
	// ControllerAlive tells whether someone will take off a gate that is put on.
	ControllerAlive bool `json:"controller_alive"`
	// Config is the placement section of the configuration: one JSON object.
	Config json.RawMessage `json:"config,omitempty"`
	// HeldSeconds is the pod's age, for how long it has been held.
	HeldSeconds float64 `json:"held_seconds"`
}

// Cluster is what is known of the cluster's nodes. The zero value means that
// nothing is known.
type Cluster struct {
	// Architectures are values of kubernetes.io/arch.
	Architectures []string `json:"architectures"`
	// OperatingSystems are values of kubernetes.io/os; linux when empty.
	OperatingSystems []string `json:"operatingSystems"`
}

// Status tells the three answers about an image apart.
type Status string

// The statuses.
const (
	StatusKnown   Status = "known"   // it runs on these platforms, on no others
	StatusAny     Status = "any"     // content only: it places no constraint
	StatusUnknown Status = "unknown" // not known; the class says why
)

// Image is what is known of one image.
type Image struct {
	Status        Status   `json:"status"`
	Architectures []string `json:"architectures,omitempty"`
	Platforms     []string `json:"platforms,omitempty"`
	Digest        string   `json:"digest,omitempty"`
	// AgeSeconds is the time since a registry confirmed the answer.
	AgeSeconds float64 `json:"age_seconds,omitempty"`
	// Pinned is the reference by digest that may stand in the pod for the
	// image; empty where that is not safe or not wanted.
	Pinned string `json:"pinned,omitempty"`

	Class     provider.Class `json:"class,omitempty"`
	Message   string         `json:"message,omitempty"`
	Retryable *bool          `json:"retryable,omitempty"`
}

// FromAnswer gives the policy's view of an answer. now is the time by which its
// age is reckoned.
func FromAnswer(answer provider.Answer, now time.Time) Image {
	switch {
	case answer.Err != nil:
		retryable := answer.Err.Class.Retryable()
		return Image{Status: StatusUnknown, Class: answer.Err.Class, Message: answer.Err.Message, Retryable: &retryable}
	case answer.ContentOnly:
		return Image{Status: StatusAny}
	}
	image := Image{
		Status:        StatusKnown,
		Architectures: answer.Architectures,
		Platforms:     answer.Platforms,
		Digest:        answer.Digest,
	}
	if age := now.Sub(answer.Checked); !answer.Checked.IsZero() && age > 0 {
		image.AgeSeconds = age.Truncate(time.Second).Seconds()
	}
	return image
}

// Answers gives the policy's view of the answers about a pod's images, by
// reference. Content that no runtime could run is no fault of an image that the
// pod only mounts as a volume: it places no constraint there.
func Answers(spec *corev1.PodSpec, answers []provider.Answer, now time.Time) map[string]Image {
	run := map[string]bool{}
	for _, c := range spec.Containers {
		run[c.Image] = true
	}
	for _, c := range spec.InitContainers {
		run[c.Image] = true
	}
	images := make(map[string]Image, len(answers))
	for _, answer := range answers {
		image := FromAnswer(answer, now)
		if !run[answer.Image] && image.Class == provider.ClassNotRunnable {
			image = Image{Status: StatusAny}
		}
		images[answer.Image] = image
	}
	return images
}

// Settled gives the image as one for which waiting no longer helps: an answer
// of a class that is retried once, after its retry.
func (i Image) Settled() Image {
	retryable := false
	i.Retryable = &retryable
	return i
}

// ErrNoImages is the error of a pod from which no images can be read.
var ErrNoImages = errors.New("pod has no containers")

// References lists the images that a pod starts with, in the order of its
// containers, init containers (sidecars included) and image volumes, each once.
// Ephemeral containers arrive when the pod has its node and are left out. A pod
// without containers, and a container without an image, is an error that names it.
func References(spec *corev1.PodSpec) ([]string, error) {
	if len(spec.Containers) == 0 {
		return nil, ErrNoImages
	}
	var refs []string
	seen := map[string]bool{}
	add := func(ref, format string, args ...any) error {
		if ref == "" {
			return fmt.Errorf(format+" has no image", args...)
		}
		if !seen[ref] {
			seen[ref] = true
			refs = append(refs, ref)
		}
		return nil
	}
	for i, c := range spec.Containers {
		if err := add(c.Image, "spec.containers[%d] (%q)", i, c.Name); err != nil {
			return nil, err
		}
	}
	for i, c := range spec.InitContainers {
		if err := add(c.Image, "spec.initContainers[%d] (%q)", i, c.Name); err != nil {
			return nil, err
		}
	}
	for i, v := range spec.Volumes {
		if v.Image == nil {
			continue
		}
		if err := add(v.Image.Reference, "spec.volumes[%d] (%q)", i, v.Name); err != nil {
			return nil, err
		}
	}
	return refs, nil
}

// Queries are the questions about a pod's images, asked with the pod's own
// credentials: one for each of References, in their order. An image that some
// container pulls with imagePullPolicy Always is revalidated; defaults have been
// filled in by the API server before a pod gets here.
func Queries(namespace string, spec *corev1.PodSpec) ([]provider.Query, error) {
	refs, err := References(spec)
	if err != nil {
		return nil, err
	}
	scope := provider.Scope{Namespace: namespace, ServiceAccount: spec.ServiceAccountName}
	if scope.ServiceAccount == "" {
		scope.ServiceAccount = "default"
	}
	for _, s := range spec.ImagePullSecrets {
		if s.Name != "" {
			scope.ImagePullSecrets = append(scope.ImagePullSecrets, s.Name)
		}
	}
	always := map[string]bool{}
	mark := func(ref string, policy corev1.PullPolicy) {
		always[ref] = always[ref] || policy == corev1.PullAlways
	}
	for _, c := range spec.Containers {
		mark(c.Image, c.ImagePullPolicy)
	}
	for _, c := range spec.InitContainers {
		mark(c.Image, c.ImagePullPolicy)
	}
	for _, v := range spec.Volumes {
		if v.Image != nil {
			mark(v.Image.Reference, v.Image.PullPolicy)
		}
	}
	queries := make([]provider.Query, len(refs))
	for i, ref := range refs {
		queries[i] = provider.Query{Image: ref, Scope: scope, Revalidate: always[ref]}
	}
	return queries, nil
}

// Pin offers, for each known image without a digest, the reference by digest that
// may stand in the pod, where may agrees to its canonical reference. An image that
// a mirror answered is left alone: by digest it might be looked for elsewhere.
func Pin(images map[string]Image, answers []provider.Answer, may func(reference string) bool) {
	for _, a := range answers {
		image, ok := images[a.Image]
		if !ok || image.Status != StatusKnown || a.Digest == "" || a.Mirror != "" || strings.Contains(a.Reference, "@") || !may(a.Reference) {
			continue
		}
		image.Pinned = a.Reference + "@" + a.Digest
		images[a.Image] = image
	}
}
