package rego

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"sync"
)

// Bounds of the decisions that are remembered, mostly of a few hundred bytes each.
const (
	maxRemembered = 1024
	// maxRememberedBytes bounds messages and patches, as JSON: whoever makes pods with
	// thousands of terms gets patches of that size.
	maxRememberedBytes = 4 << 20
)

// memory of the built-in policy's decisions. The pods of a burst are mostly the same
// but for their names, and so are the decisions.
//
// What is remembered is exact: its key is all of the input document that was
// evaluated, and the built-in policy and the guard judge by nothing else. The
// document is a shortened one, without what the built-in policy does not read (see
// shorten). A user policy may read the time, or anything of the pod, and is always
// evaluated.
type memory struct {
	mu        sync.Mutex
	decisions map[[sha256.Size]byte]Decision
	bytes     int // of messages and patches
}

// recall gives the decision about a shortened input, as it is encoded.
func (m *memory) recall(encoded []byte) (Decision, bool) {
	key := sha256.Sum256(encoded)
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.decisions[key]
	return d.clone(), ok
}

func (m *memory) keep(encoded []byte, d Decision) {
	patch, err := d.PatchJSON()
	if err != nil {
		return // whoever writes it will say so
	}
	key, size := sha256.Sum256(encoded), len(patch)+len(d.Message)
	if size > maxRememberedBytes {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.decisions[key]; known {
		return // two evaluated it at the same time
	}
	if len(m.decisions) >= maxRemembered || m.bytes+size > maxRememberedBytes {
		clear(m.decisions)
		m.bytes = 0
	}
	m.decisions[key] = d.clone()
	m.bytes += size
}

// clone gives lists that may be appended to; the values of operations are shared.
func (d Decision) clone() Decision {
	d.Architectures, d.Patch = slices.Clone(d.Architectures), slices.Clone(d.Patch)
	return d
}

// shorten leaves out of an input what the built-in policy does not read: of the pod
// its name, its identity, its age and its status; of the spec whatever says nothing
// about nodes or images (each pod has a volume and mounts of its own for the token of
// its service account); of images the age of the answer. The time for which the pod is
// held is read for images that are not known, or that nobody answered about, and then
// nothing is left out: ok is false, as it is for a pod whose shape is another than the
// API's.
func shorten(in Input) (short Input, ok bool) {
	images := make(map[string]Image, len(in.Images))
	for ref, image := range in.Images {
		if image.Status != StatusKnown && image.Status != StatusAny {
			return in, false
		}
		image.AgeSeconds = 0
		images[ref] = image
	}
	var pod shortPod
	if err := json.Unmarshal(in.Pod, &pod); err != nil {
		return in, false // it is for the policy to judge
	}
	if !pod.Spec.answered(images) {
		return in, false
	}
	if pod.Metadata != nil {
		for _, key := range []string{"name", "generateName", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"} {
			delete(*pod.Metadata, key)
		}
	}
	if pod.Spec != nil {
		pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v shortVolume) bool { return v.Image == nil })
	}
	raw, err := json.Marshal(pod)
	if err != nil {
		return in, false
	}
	in.Pod, in.Images, in.HeldSeconds = raw, images, 0
	return in, true
}

// shortPod is what the built-in policy reads of a pod. What may be absent stays
// absent, since the policy tells an empty object from none.
type shortPod struct {
	Metadata *map[string]json.RawMessage `json:"metadata,omitempty"`
	Spec     *shortSpec                  `json:"spec,omitempty"`
}

type shortSpec struct {
	NodeName        json.RawMessage  `json:"nodeName,omitempty"`
	NodeSelector    json.RawMessage  `json:"nodeSelector,omitempty"`
	Affinity        json.RawMessage  `json:"affinity,omitempty"`
	Tolerations     json.RawMessage  `json:"tolerations,omitempty"`
	SchedulingGates json.RawMessage  `json:"schedulingGates,omitempty"`
	OS              json.RawMessage  `json:"os,omitempty"`
	InitContainers  []shortContainer `json:"initContainers,omitempty"`
	Containers      []shortContainer `json:"containers,omitempty"`
	Volumes         []shortVolume    `json:"volumes,omitempty"`
}

type shortContainer struct {
	Image *string `json:"image,omitempty"`
}

type shortVolume struct {
	Image *struct {
		Reference *string `json:"reference,omitempty"`
	} `json:"image,omitempty"`
}

// answered tells whether there is an answer about each image.
func (s *shortSpec) answered(images map[string]Image) bool {
	if s == nil {
		return true
	}
	unanswered := func(ref *string) bool {
		if ref == nil {
			return false
		}
		_, ok := images[*ref]
		return !ok
	}
	lacks := func(c shortContainer) bool { return unanswered(c.Image) }
	return !slices.ContainsFunc(s.InitContainers, lacks) && !slices.ContainsFunc(s.Containers, lacks) &&
		!slices.ContainsFunc(s.Volumes, func(v shortVolume) bool { return v.Image != nil && unanswered(v.Image.Reference) })
}
