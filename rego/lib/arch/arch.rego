# METADATA
# title: Architectures of images and of pods
# description: |
#   Sets of node types. A node type is written "os/arch", in the values of the node
#   labels kubernetes.io/os and kubernetes.io/arch ("linux/arm64", "windows/amd64").
#   An answer of lib.provider gives the node types on which an image runs; a pod
#   spec says which node types it admits; the rest is intersection.
# scope: package
package lib.arch

# Both generations of the labels are on every node.
_arch_labels := {"kubernetes.io/arch", "beta.kubernetes.io/arch"}

_os_labels := {"kubernetes.io/os", "beta.kubernetes.io/os"}

_labels := _arch_labels | _os_labels

# METADATA
# description: |
#   The node types on which an image runs, from an answer with status "known".
#   For linux these are the answer's architectures (386 counts for amd64 nodes too);
#   for other systems they are read from its platforms.
# scope: document
node_types(answer) := {concat("/", ["linux", architecture]) | some architecture in answer.architectures} | {type |
	some platform in answer.platforms
	type := node_type(platform)
	not startswith(type, "linux/")
}

# METADATA
# description: |
#   The node type of a platform in containerd's form, or of a bare architecture, which
#   means linux: "windows(10.0.17763.1)/amd64" gives "windows/amd64", "linux/arm/v7"
#   gives "linux/arm", "arm64" gives "linux/arm64".
# scope: document
node_type(platform) := sprintf("linux/%s", [platform]) if {
	not contains(platform, "/")
} else := concat("/", [split(parts[0], "(")[0], parts[1]]) if {
	parts := split(platform, "/")
}

# METADATA
# description: |
#   The node types on which all images run, from an object from image to answer.
#   Only answers with status "known" count; undefined when there is none: images
#   that are unknown, or content only, constrain nothing.
# scope: document
common(answers) := intersection(sets) if {
	sets := {node_types(answer) | some answer in answers; answer.status == "known"}
	count(sets) > 0
}

# METADATA
# description: |
#   Those of the node types that a pod spec's own nodeSelector, spec.os and required
#   node affinity let it run on, as far as these speak of architecture and system.
#   Other expressions are taken as met: they are not ours to judge.
# scope: document
admitted(types, spec) := {type |
	some type in types
	[os, architecture] := split(type, "/")
	_os_allowed(spec, os)
	_selector_allows(spec, os, architecture)
	_affinity_allows(spec, os, architecture)
}

# METADATA
# description: |
#   The selectors of a pod spec that speak of architecture or system, written for a
#   message: `nodeSelector kubernetes.io/arch=arm64`, `node affinity kubernetes.io/arch In [arm64]`.
# scope: document
selectors(spec) := ({sprintf("nodeSelector %s=%s", [key, value]) |
	some key, value in _object(spec, "nodeSelector")
	key in _labels
} | {_expression_words(expression) |
	some term in terms(spec)
	some expression in _list(term, "matchExpressions")
	expression.key in _labels
}) | {sprintf("os.name %s", [name]) | name := spec.os.name}

# METADATA
# description: |
#   The terms of a pod spec's required node affinity, an array; empty when there are none.
#   They are alternatives.
# scope: document
terms(spec) := _list(spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution, "nodeSelectorTerms") if {
	spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
} else := []

# METADATA
# description: A pod spec as it would be with these terms in place of its own.
# scope: document
with_terms(spec, replacement) := object.union(
	spec,
	{"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": replacement}}}},
)

# METADATA
# description: |
#   Node types for a message, sorted: linux is understood, so that the usual case
#   reads "amd64, arm64"; "none" for the empty set.
# scope: document
words(types) := concat(", ", sort({trim_prefix(type, "linux/") | some type in types})) if {
	count(types) > 0
} else := "none"

_os_allowed(spec, _) if not spec.os.name

_os_allowed(spec, os) if spec.os.name == os

_selector_allows(spec, os, architecture) if {
	selector := _object(spec, "nodeSelector")
	every key, value in selector {
		_label_allows(key, {value}, os, architecture)
	}
}

_label_allows(key, values, _, architecture) if {
	key in _arch_labels
	architecture in values
}

_label_allows(key, values, os, _) if {
	key in _os_labels
	os in values
}

_label_allows(key, _, _, _) if not key in _labels

# No terms: no constraint. The API server refuses an empty list of terms.
_affinity_allows(spec, _, _) if count(terms(spec)) == 0

# Terms are ORed, the expressions in a term ANDed; an empty term matches no node.
_affinity_allows(spec, os, architecture) if {
	some term in terms(spec)
	count(_list(term, "matchExpressions")) + count(_list(term, "matchFields")) > 0
	every expression in _list(term, "matchExpressions") {
		_expression_allows(expression, os, architecture)
	}
}

_expression_allows(expression, os, architecture) if {
	expression.operator == "In"
	_label_allows(expression.key, _values(expression), os, architecture)
}

_expression_allows(expression, os, architecture) if {
	expression.operator == "NotIn"
	not _denied(expression, os, architecture)
}

_expression_allows(expression, _, _) if expression.operator == "Exists"

# Every node carries the labels of system and architecture, with values that are no numbers.
_expression_allows(expression, _, _) if {
	expression.operator in {"DoesNotExist", "Gt", "Lt"}
	not expression.key in _labels
}

_denied(expression, os, architecture) if {
	expression.key in _labels
	_label_allows(expression.key, _values(expression), os, architecture)
}

_expression_words(expression) := sprintf("node affinity %s %s [%s]", [
	expression.key,
	expression.operator,
	concat(", ", sort(_values(expression))),
])

_values(expression) := {value | some value in _list(expression, "values")}

_object(parent, field) := value if {
	value := parent[field]
	is_object(value)
} else := {}

_list(parent, field) := items if {
	items := parent[field]
	is_array(items)
} else := []
