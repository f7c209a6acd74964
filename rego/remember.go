package rego

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"sync"
)

// maxRemembered bounds the decisions that are remembered, each of a few kilobytes.
const maxRemembered = 1024

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
}

// recall gives the decision about a shortened input, as it is encoded.
func (m *memory) recall(encoded []byte) (Decision, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.decisions[sha256.Sum256(encoded)]
	return d.clone(), ok
}

func (m *memory) keep(encoded []byte, d Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.decisions) >= maxRemembered {
		clear(m.decisions)
	}
	m.decisions[sha256.Sum256(encoded)] = d.clone()
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
// held is read for images that are not known, and then nothing is left out: ok is
// false, as it is for a pod whose shape is another than the API's.
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
	Image json.RawMessage `json:"image,omitempty"`
}

type shortVolume struct {
	Image *struct {
		Reference json.RawMessage `json:"reference,omitempty"`
	} `json:"image,omitempty"`
}
