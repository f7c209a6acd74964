# The patch, RFC 6902, against the pod as given. Its order is fixed, so that equal
# inputs give equal bytes. The writer adds the resourceVersion.

package archkeeper.placement

# METADATA
# description: |
#   The operations: affinity, tolerations, digests, marks, and the gate last. A pod that
#   is not ours loses at most our gate.
# scope: document
patch := gate_removal if {
	skip
} else := array.concat(mark_removal, gate_addition) if {
	verdict.kind == "gate"
} else := [] if {
	verdict.kind == "hold"
} else := concatenated([affinity_ops, toleration_ops, pin_ops, metadata_ops, marks("annotations"), marks("labels"), gate_removal])

# METADATA
# description: Our labels and annotations that were there before we decided.
# scope: document
mark_removal := array.concat(marks("annotations"), marks("labels"))

# METADATA
# description: Where our gate stands among the pod's gates; -1 when it is not there.
# scope: document
gate_index := i if {
	some i, entry in list_of(spec, "schedulingGates")
	entry.name == settings.gate
} else := -1

# METADATA
# description: Our gate comes off; those of others stay.
# scope: document
gate_removal := [] if {
	gate_index < 0
} else := [{"op": "remove", "path": "/spec/schedulingGates"}] if {
	count(spec.schedulingGates) == 1
} else := [{"op": "remove", "path": sprintf("/spec/schedulingGates/%d", [gate_index])}]

# METADATA
# description: Our gate goes on, once.
# scope: document
gate_addition := [] if {
	gate_index >= 0
} else := [{"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": settings.gate}}] if {
	is_array(spec.schedulingGates)
} else := [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": settings.gate}]}]

# METADATA
# description: |
#   The preferred terms that are added: none beside an impossible requirement.
# scope: document
added_preferred := preferred_terms if {
	verdict.kind == "place"
} else := []

# METADATA
# description: The terms of a required affinity where there was none.
# scope: document
first_terms := [{"matchExpressions": list} |
	not has_required
	some list in gained[-1]
	list != []
]

# METADATA
# description: |
#   Changes of the node affinity. What is absent is added whole, parents included.
# scope: document
affinity_ops := [{"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": new_node_affinity}}] if {
	new_node_affinity != {}
	not has_object(spec, "affinity")
} else := [{"op": "add", "path": "/spec/affinity/nodeAffinity", "value": new_node_affinity}] if {
	new_node_affinity != {}
	not has_object(spec.affinity, "nodeAffinity")
} else := array.concat(required_ops, preferred_ops)

# METADATA
# description: A node affinity for a pod without one.
# scope: document
new_node_affinity := object.union(
	{key: value |
		some key in ["requiredDuringSchedulingIgnoredDuringExecution"]
		first_terms != []
		value := {"nodeSelectorTerms": first_terms}
	},
	{key: value |
		some key in ["preferredDuringSchedulingIgnoredDuringExecution"]
		added_preferred != []
		value := added_preferred
	},
)

# METADATA
# description: Changes of the required terms.
# scope: document
required_ops := [{
	"op": "add",
	"path": concat("/", [node_affinity_path, "requiredDuringSchedulingIgnoredDuringExecution"]),
	"value": {"nodeSelectorTerms": first_terms},
}] if {
	first_terms != []
} else := [] if {
	not has_required
} else := [{"op": "replace", "path": terms_path, "value": multiplied_terms}] if {
	some lists in gained
	count(lists) > 1
} else := [operation |
	some i, term in user_terms
	some operation in appended(i, term, concatenated(gained[i]))
]

# METADATA
# description: The path of the node affinity.
# scope: document
node_affinity_path := "/spec/affinity/nodeAffinity"

# METADATA
# description: The path of the required terms.
# scope: document
terms_path := concat("/", [node_affinity_path, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"])

# METADATA
# description: |
#   Each term once for each box; terms that gain nothing as they are, empty ones too.
# scope: document
multiplied_terms := [term |
	some i, original in user_terms
	some list in lists_for(i)
	term := extended(original, list)
]

# METADATA
# description: The lists that a term gains; one empty list where it stays as it is.
# scope: document
lists_for(i) := gained[i] if {
	count(gained[i]) > 0
} else := [[]]

# METADATA
# description: A term with expressions appended.
# scope: document
extended(term, list) := term if {
	count(list) == 0
} else := object.union(term, {"matchExpressions": array.concat(list_of(term, "matchExpressions"), list)})

# METADATA
# description: The operations that append expressions to a term in its place.
# scope: document
appended(i, term, list) := [] if {
	count(list) == 0
} else := [{"op": "add", "path": sprintf("%s/%d/matchExpressions/-", [terms_path, i]), "value": expression} |
	some expression in list
] if {
	is_array(term.matchExpressions)
} else := [{"op": "add", "path": sprintf("%s/%d/matchExpressions", [terms_path, i]), "value": list}]

# METADATA
# description: Preferred terms of an affinity that exists.
# scope: document
preferred_ops := [{"op": "add", "path": concat("/", [preferred_path, "-"]), "value": term} |
	some term in added_preferred
] if {
	is_array(node_affinity.preferredDuringSchedulingIgnoredDuringExecution)
} else := [{"op": "add", "path": preferred_path, "value": added_preferred} | added_preferred != []]

# METADATA
# description: The path of the preferred terms.
# scope: document
preferred_path := concat("/", [node_affinity_path, "preferredDuringSchedulingIgnoredDuringExecution"])

# METADATA
# description: Tolerations of a placed pod.
# scope: document
toleration_ops := [] if {
	verdict.kind != "place"
} else := [{"op": "add", "path": "/spec/tolerations/-", "value": toleration} | some toleration in new_tolerations] if {
	is_array(spec.tolerations)
} else := [{"op": "add", "path": "/spec/tolerations", "value": new_tolerations} | new_tolerations != []]

# METADATA
# description: Digests of a placed pod.
# scope: document
pin_ops := pins if {
	verdict.kind == "place"
} else := []

# METADATA
# description: The label by which a pod or a namespace opts out. It is the user's to set.
# scope: document
opt_out := "archkeeper.io/placement"

# METADATA
# description: A key whose prefix is ours.
# scope: document
our_key(key) if {
	key != opt_out
	startswith(key, "archkeeper.io/")
}

our_key(key) if endswith(split(key, "/")[0], ".archkeeper.io")

# METADATA
# description: |
#   The marks that belong on the pod: field to key to value. A pod that we did not place
#   carries none; where it says already what is true of it, that may stay.
# scope: document
true_marks := {"annotations": {}, "labels": {}} if {
	count(verdict.architectures) == 0
} else := {
	"annotations": {"archkeeper.io/architectures": concat(",", sort(verdict.architectures))},
	"labels": {sprintf("architecture.archkeeper.io/%s", [architecture]): "supported" | some architecture in verdict.architectures},
}

# METADATA
# description: The marks to set.
# scope: document
wanted_marks(field) := true_marks[field] if {
	verdict.kind == "place"
} else := {}

# METADATA
# description: Metadata for a pod that has none.
# scope: document
metadata_ops := [{"op": "add", "path": "/metadata", "value": {}} |
	not has_object(input.pod, "metadata")
	wanted_marks("labels") != {}
]

# METADATA
# description: |
#   The operations that bring our labels or annotations in line: what is wrong is
#   removed, what is missing is set. Keys in order.
# scope: document
marks(field) := [{"op": "add", "path": concat("/", ["", "metadata", field]), "value": wanted_marks(field)} | wanted_marks(field) != {}] if {
	not has_object(metadata, field)
} else := concatenated([stale_marks(field), [operation |
	some key in sort(object.keys(wanted_marks(field)))
	object.get(metadata[field], key, null) != wanted_marks(field)[key]
	operation := {"op": "add", "path": mark_path(field, key), "value": wanted_marks(field)[key]}
]])

# METADATA
# description: Removal of our keys that say what is not true of the pod.
# scope: document
stale_marks(field) := [{"op": "remove", "path": mark_path(field, key)} |
	some key in sort(object.keys(metadata[field]))
	our_key(key)
	not retained(field, key)
]

# METADATA
# description: The key is about to be set, or says what is true.
# scope: document
retained(field, key) if key in object.keys(wanted_marks(field))

retained(field, key) if true_marks[field][key] == metadata[field][key]

# METADATA
# description: The path of a label or an annotation, escaped as RFC 6901 says.
# scope: document
mark_path(field, key) := concat("/", ["", "metadata", field, replace(replace(key, "~", "~0"), "/", "~1")])
