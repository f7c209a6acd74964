package placement

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Strip is the informer's transform: a pod is cut down to what placement judges
// by, and one that waits on no gate at all to its name. What stays keeps its place:
// patches address list entries by index.
func Strip(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil // a tombstone
	}
	if len(pod.Spec.SchedulingGates) == 0 {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		}}, nil
	}
	slim := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, GenerateName: pod.GenerateName, Namespace: pod.Namespace, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp,
			DeletionTimestamp: pod.DeletionTimestamp,
			Labels:            pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity,
			Tolerations: pod.Spec.Tolerations, SchedulingGates: pod.Spec.SchedulingGates, OS: pod.Spec.OS,
			ServiceAccountName: pod.Spec.ServiceAccountName, ImagePullSecrets: pod.Spec.ImagePullSecrets,
			Containers: containers(pod.Spec.Containers), InitContainers: containers(pod.Spec.InitContainers),
		},
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Image != nil {
			slim.Spec.Volumes = append(slim.Spec.Volumes, corev1.Volume{Name: volume.Name, VolumeSource: corev1.VolumeSource{Image: volume.Image}})
		}
	}
	// It may be as large as the pod itself. Its key stays, because a patch must see
	// that there are annotations.
	if _, ok := slim.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
		slim.Annotations[corev1.LastAppliedConfigAnnotation] = ""
	}
	return slim, nil
}

func containers(all []corev1.Container) []corev1.Container {
	if len(all) == 0 {
		return nil
	}
	slim := make([]corev1.Container, len(all))
	for i, c := range all {
		slim[i] = corev1.Container{Name: c.Name, Image: c.Image, ImagePullPolicy: c.ImagePullPolicy}
	}
	return slim
}

// StripMetadata is the transform of namespaces, of which labels and annotations
// are read.
func StripMetadata(object any) (any, error) {
	meta, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: meta.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion, Labels: meta.Labels, Annotations: meta.Annotations,
	}}, nil
}
