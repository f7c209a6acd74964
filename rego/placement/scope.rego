# Which pods are ours to place.

package archkeeper.placement

# METADATA
# description: Settings for an input that leaves some out; the values are those of the documented configuration.
# scope: document
defaults := {
	"gate": "archkeeper.io/architecture",
	"holdDeadline": "2m",
	"fallbackArchitecture": "",
	"schedulableArchitectures": [],
	"userArchitecture": "preserve",
	"constrainAlways": true,
	"preferred": [],
	"tolerateArchitectureTaints": false,
	"pin": false,
	"excludedNamespaces": ["kube-*", "openshift-*", "hypershift-*"],
	"namespaceSelector": {},
	"podSelector": {},
}

# METADATA
# description: The placement section of the configuration.
# scope: document
settings := object.union(defaults, object_of(input, "config"))

# METADATA
# description: The pod's metadata.
# scope: document
metadata := object_of(input.pod, "metadata")

# METADATA
# description: The pod's spec.
# scope: document
spec := object_of(input.pod, "spec")

# METADATA
# description: What is known of the cluster's nodes.
# scope: document
cluster := object_of(input, "cluster")

# METADATA
# description: The namespace's metadata, as far as it is known.
# scope: document
namespace_metadata := object_of(object_of(input, "namespace"), "metadata")

# METADATA
# description: The namespace's name, from the namespace itself or from the pod.
# scope: document
namespace_name := namespace_metadata.name if {
	namespace_metadata.name
} else := object.get(metadata, "namespace", "default")

# METADATA
# description: The namespace's labels, with the one that every namespace carries.
# scope: document
namespace_labels := object.union(
	{"kubernetes.io/metadata.name": namespace_name},
	object_of(namespace_metadata, "labels"),
)

# METADATA
# description: The object at a key; empty when it is absent, null or something else.
# scope: document
object_of(parent, key) := value if {
	value := parent[key]
	is_object(value)
} else := {}

# METADATA
# description: There is an object at a key.
# scope: document
has_object(parent, key) if is_object(parent[key])

# METADATA
# description: The list at a key; empty when it is absent, null or something else.
# scope: document
list_of(parent, key) := value if {
	value := parent[key]
	is_array(value)
} else := []

# METADATA
# description: |
#   Why a pod is not ours to place, reason to message. Each rule says what fails; a pod
#   that none of them holds for is ours.
# scope: document

# A pod with a node is past placement, and the API server refuses gates on it.
not_ours["NodeNameSet"] := sprintf("the pod is bound to node %s", [spec.nodeName]) if {
	is_string(spec.nodeName)
	spec.nodeName != ""
}

# A DaemonSet's controller pins each pod to its node, by matchFields.
not_ours["DaemonSetPod"] := sprintf("the pod belongs to DaemonSet %s, which pins it to its node", [name]) if {
	some owner in list_of(metadata, "ownerReferences")
	owner.kind == "DaemonSet"
	startswith(owner.apiVersion, "apps/")
	owner.controller == true
	name := object.get(owner, "name", "")
}

not_ours["OptedOut"] := "the label archkeeper.io/placement: disabled opts out" if {
	"disabled" in {
		object.get(object_of(metadata, "labels"), opt_out, ""),
		object.get(namespace_labels, opt_out, ""),
	}
}

not_ours["ExcludedNamespace"] := sprintf("namespace %s is excluded", [namespace_name]) if {
	name := namespace_name
	some pattern in settings.excludedNamespaces
	glob.match(pattern, null, name)
}

not_ours["ControlPlanePod"] := sprintf("nodeSelector %s pins the pod to the control plane", [key]) if {
	some key in ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"]
	_ := node_selector[key]
}

not_ours["NotSelected"] := "the configuration's selectors do not select the pod" if {
	not selected
}

not_ours["Exempt"] := concat("; ", sort(reasons)) if {
	reasons := {sprintf("%v", [reason]) | some reason in data.archkeeper.extension.exempt}
	count(reasons) > 0
}

# METADATA
# description: The first reason for which the pod is not ours; undefined when it is.
# scope: document
skip := [{"reason": reason, "message": not_ours[reason]} |
	some reason in [
		"NodeNameSet", "DaemonSetPod", "OptedOut", "ExcludedNamespace",
		"ControlPlanePod", "NotSelected", "Exempt",
	]
	_ := not_ours[reason]
][0] if {
	count(not_ours) > 0
}

# METADATA
# description: Namespace and pod match the configured label selectors. An empty selector matches everything.
# scope: document
selected if {
	matches(settings.namespaceSelector, namespace_labels)
	matches(settings.podSelector, object_of(metadata, "labels"))
}

# METADATA
# description: A label selector as metav1.LabelSelector has it.
# scope: document
matches(selector, labels) if {
	every key, value in object_of(selector, "matchLabels") {
		labels[key] == value
	}
	every requirement in list_of(selector, "matchExpressions") {
		meets(requirement, labels)
	}
}

# METADATA
# description: One requirement of a label selector. NotIn holds for an absent label too.
# scope: document
meets(requirement, labels) if {
	requirement.operator == "In"
	labels[requirement.key] in list_of(requirement, "values")
}

meets(requirement, labels) if {
	requirement.operator == "NotIn"
	not object.get(labels, requirement.key, null) in list_of(requirement, "values")
}

meets(requirement, labels) if {
	requirement.operator == "Exists"
	_ := labels[requirement.key]
}

meets(requirement, labels) if {
	requirement.operator == "DoesNotExist"
	not requirement.key in object.keys(labels)
}
