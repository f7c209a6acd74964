# What the user said about nodes. The required node affinity is a choice between
# alternatives: its terms that can match a node, or one alternative without words
# when there is no affinity. Terms are ORed; what stands in a term, and nodeSelector
# beside it, is ANDed.

package archkeeper.placement

# METADATA
# description: The node label of the architecture.
# scope: document
arch_key := "kubernetes.io/arch"

# METADATA
# description: The node label of the operating system.
# scope: document
os_key := "kubernetes.io/os"

# METADATA
# description: The pod's nodeSelector.
# scope: document
node_selector := object_of(spec, "nodeSelector")

# METADATA
# description: The pod's node affinity.
# scope: document
node_affinity := object_of(object_of(spec, "affinity"), "nodeAffinity")

# METADATA
# description: The pod has a required node affinity, be it one without terms.
# scope: document
has_required if is_object(node_affinity.requiredDuringSchedulingIgnoredDuringExecution)

# METADATA
# description: The terms of the required node affinity, as the user wrote them.
# scope: document
user_terms := list_of(object_of(node_affinity, "requiredDuringSchedulingIgnoredDuringExecution"), "nodeSelectorTerms")

# METADATA
# description: |
#   Index to term, for the terms that can match a node; -1 stands for the absent
#   affinity. A term without expressions and fields matches nothing and must not be
#   made to match.
# scope: document
alternatives := {-1: {}} if {
	not has_required
} else := {i: term |
	some i, term in user_terms
	usable(term)
}

# METADATA
# description: The term can match a node.
# scope: document
usable(term) if count(list_of(term, "matchExpressions")) > 0

usable(term) if count(list_of(term, "matchFields")) > 0

# METADATA
# description: The expressions of an alternative.
# scope: document
expressions(i) := list_of(alternatives[i], "matchExpressions")

# METADATA
# description: |
#   The alternative chooses a value of the node label: by nodeSelector, or by In. NotIn,
#   Exists and the rest leave the choice open.
# scope: document
chooses(_, key) if node_selector[key]

chooses(i, key) if {
	some expression in expressions(i)
	expression.key == key
	expression.operator == "In"
}

# METADATA
# description: |
#   The alternative selects an operating system. spec.os counts for the whole pod.
# scope: document
selects_os(_) if object_of(spec, "os").name

selects_os(i) if chooses(i, os_key)

# METADATA
# description: The pod's words leave a value of a node label open.
# scope: document
open(i, key, value) if {
	object.get(node_selector, key, value) == value
	every expression in expressions(i) {
		admits(expression, key, value)
	}
}

# METADATA
# description: |
#   One expression leaves the value of a node label open. Every node carries the labels
#   of system and architecture with values that are no numbers, so that DoesNotExist,
#   Gt and Lt admit none.
# scope: document
admits(expression, key, _) if expression.key != key

admits(expression, _, value) if {
	expression.operator == "In"
	value in expression.values
}

admits(expression, _, value) if {
	expression.operator == "NotIn"
	not value in list_of(expression, "values")
}

admits(expression, _, _) if expression.operator == "Exists"

# METADATA
# description: The pod's words leave the operating system open.
# scope: document
open_os(i, os) if {
	object.get(object_of(spec, "os"), "name", os) == os
	open(i, os_key, os)
}

# METADATA
# description: Those of the node types that the pod's words leave open in an alternative.
# scope: document
open_pairs(i, pairs) := {pair |
	some pair in pairs
	open_os(i, pair[0])
	open(i, arch_key, pair[1])
}

# METADATA
# description: Everything that the pod's words leave open is outside of what its images run on.
# scope: document
contradiction if {
	count(known) > 0
	every i, _ in alternatives {
		count(open_pairs(i, target)) == 0
	}
}

# METADATA
# description: |
#   The alternative is the user's own choice and stays as it is, also where it does not
#   fit the images: an architecture (unless the configuration tightens it), or an
#   operating system that the images lack.
# scope: document
kept(i) if respected(i)

kept(i) if {
	count(target) > 0
	selects_os(i)
	every pair in target {
		not open_os(i, pair[0])
	}
}

# METADATA
# description: The alternative chooses its architecture and the configuration preserves that.
# scope: document
respected(i) if {
	settings.userArchitecture != "tighten"
	chooses(i, arch_key)
}

# METADATA
# description: Every alternative chooses its architecture.
# scope: document
chosen_everywhere if {
	every i, _ in alternatives { respected(i) }
}

# METADATA
# description: The architectures that an alternative chooses by name.
# scope: document
chosen_values(i) := {node_selector[arch_key]} if {
	node_selector[arch_key]
} else := {value |
	some expression in expressions(i)
	expression.key == arch_key
	expression.operator == "In"
	some value in expression.values
}

# METADATA
# description: |
#   The architectures that the user chose, as far as the images that are known run on
#   them.
# scope: document
chosen_architectures := {value |
	some i, _ in alternatives
	some value in chosen_values(i)
	open(i, arch_key, value)
	possible(i, value)
}

# METADATA
# description: Nothing that is known of the images speaks against an architecture.
# scope: document
possible(_, _) if count(known) == 0

possible(i, value) if {
	some pair in open_pairs(i, common)
	pair[1] == value
}
