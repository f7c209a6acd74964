# What is added to each alternative, so that whatever it matches can run the pod:
# the architecture, the operating system where it matters, preferences and
# tolerations. Nothing of the user's is ever taken away.

package archkeeper.placement

# METADATA
# description: |
#   Alternative to the lists of expressions that it gains, one list for each box. More
#   than one list means that the alternative has to be multiplied. A list is empty
#   where the alternative says already what is required.
# scope: document
requirement := {i: [additions(i, box, count(boxes(i)) > 1) | some box in fitting_boxes(i)] |
	some i, _ in alternatives
}

# METADATA
# description: |
#   The node types that an alternative is held to: those whose system its words leave
#   open and, where the user's choice of architecture is preserved, whose architecture
#   they leave open too.
# scope: document
alternative_pairs(i) := open_pairs(i, target) if {
	respected(i)
} else := pairs if {
	pairs := {pair |
		some pair in target
		open_os(i, pair[0])
	}
	count(pairs) > 0
} else := set() if {
	selects_os(i)
} else := target

# METADATA
# description: |
#   The node types of an alternative as boxes, each a product of systems and
#   architectures: one when every system has the same architectures, else one for each
#   system, linux first.
# scope: document
boxes(i) := grouped(alternative_pairs(i))

# METADATA
# description: Node types as boxes.
# scope: document
grouped(pairs) := [] if {
	count(pairs) == 0
} else := [box(systems_of(pairs), {pair[1] | some pair in pairs})] if {
	count({architectures_on(pairs, os) | some os in systems_of(pairs)}) == 1
} else := [box({os}, architectures_on(pairs, os)) | some os in linux_first(systems_of(pairs))]

# METADATA
# description: A product of systems and architectures, sorted.
# scope: document
box(oses, archs) := {"os": sort(oses), "arch": sort(archs)}

# METADATA
# description: The operating systems of node types.
# scope: document
systems_of(pairs) := {pair[0] | some pair in pairs}

# METADATA
# description: The architectures of one operating system.
# scope: document
architectures_on(pairs, os) := {pair[1] | some pair in pairs; pair[0] == os}

# METADATA
# description: Operating systems in the order of alternatives.
# scope: document
linux_first(oses) := array.concat(
	[os | some os in ["linux"]; os in oses],
	sort(oses - {"linux"}),
)

# METADATA
# description: |
#   The boxes that can be written down. The API server lets the terms of a gated pod
#   gain expressions but not multiply: there the largest box is taken, so that a pair
#   that does not run is never allowed.
# scope: document
fitting_boxes(i) := [largest(reachable_pairs(i))] if {
	count(boxes(i)) > 1
	has_required
	input.phase == "resolve"
} else := boxes(i)

# METADATA
# description: |
#   The node types of an alternative that its words leave open, so that the one box of a
#   gated pod is one that can match; all of them where the words leave none open.
# scope: document
reachable_pairs(i) := pairs if {
	pairs := open_pairs(i, target)
	count(pairs) > 0
} else := alternative_pairs(i)

# METADATA
# description: |
#   The largest product of systems and architectures within node types; of equal ones
#   the one with more of linux.
# scope: document
largest(pairs) := {"os": best[3], "arch": best[2]} if {
	best := max({[count(oses) * count(archs), count(linux), sort(archs), sort(oses)] |
		some first in systems_of(pairs)
		some second in systems_of(pairs)
		archs := architectures_on(pairs, first) & architectures_on(pairs, second)
		count(archs) > 0
		oses := {os |
			some os in systems_of(pairs)
			count(archs - architectures_on(pairs, os)) == 0
		}
		linux := {a | some a in archs; "linux" in oses}
	})
}

# METADATA
# description: The expressions that an alternative lacks to stay within a box.
# scope: document
additions(i, box, divided) := array.concat(
	[{"key": arch_key, "operator": "In", "values": box.arch} | lacks_architecture(i, box, divided)],
	[{"key": os_key, "operator": "In", "values": box.os} | lacks_os(i, box, divided)],
)

# METADATA
# description: The architecture has to be added.
# scope: document
lacks_architecture(i, box, divided) if {
	not within(i, arch_key, box.arch)
	needs_architecture(i, divided)
}

# METADATA
# description: The architecture is ours to add, unless the user's choice stands.
# scope: document
needs_architecture(i, _) if not respected(i)

needs_architecture(_, true)

# METADATA
# description: |
#   The operating system has to be added: it matters, and nobody has selected one.
# scope: document
lacks_os(i, box, divided) if {
	not within(i, os_key, box.os)
	needs_os(i, divided)
}

# METADATA
# description: |
#   The operating system matters when an image runs on another than linux or the
#   cluster has other nodes.
# scope: document
needs_os(i, _) if {
	count((systems_of(target) | cluster_systems) - {"linux"}) > 0
	not selects_os(i)
}

needs_os(_, true)

# METADATA
# description: The alternative is within the values already, by an expression of its own.
# scope: document
within(i, key, values) if {
	some expression in expressions(i)
	expression.key == key
	expression.operator == "In"
	every value in expression.values { value in values }
}

# METADATA
# description: |
#   Nothing can run the pod: a requirement that no node meets, which says why. An empty
#   In is not legal, and a pod without requirement would go where it cannot run.
# scope: document
unsatisfiable := {"key": "archkeeper.io/no-common-architecture", "operator": "Exists"}

# METADATA
# description: The unsatisfiable requirement for each alternative that is not the user's own choice.
# scope: document
impossible := {i: [[unsatisfiable | not unsatisfiable in expressions(i)]] |
	some i, _ in alternatives
	not kept(i)
}

# METADATA
# description: What the alternatives gain, by verdict.
# scope: document
gained := impossible if {
	verdict.kind == "place"
	verdict.reason == "NoCommonArchitecture"
} else := requirement if {
	verdict.kind == "place"
	verdict.reason != "RunsEverywhere"
} else := {}

# METADATA
# description: |
#   Architecture to weight: the configuration's, and an extension's before it; the
#   heaviest where an extension says several.
# scope: document
weights := object.union(
	{p.architecture: p.weight | some p in settings.preferred},
	{architecture: max(heavy) |
		some p in data.archkeeper.extension.preferred
		architecture := p.architecture
		heavy := {q.weight | some q in data.archkeeper.extension.preferred; q.architecture == architecture}
	},
)

# METADATA
# description: The user prefers architectures already; that preference wins.
# scope: document
prefers_architecture if {
	some term in list_of(node_affinity, "preferredDuringSchedulingIgnoredDuringExecution")
	some expression in list_of(object_of(term, "preference"), "matchExpressions")
	expression.key == arch_key
}

# METADATA
# description: One preferred term for each weighted architecture that the pod may go to.
# scope: document
preferred_terms := [] if {
	prefers_architecture
} else := [term |
	some architecture in sort(architectures)
	term := {
		"weight": weights[architecture],
		"preference": {"matchExpressions": [{"key": arch_key, "operator": "In", "values": [architecture]}]},
	}
]

# METADATA
# description: |
#   Tolerations that are missing: for node pools that are tainted by architecture, and
#   those of an extension.
# scope: document
new_tolerations := array.concat(
	[toleration |
		settings.tolerateArchitectureTaints == true
		some architecture in sort(architectures)
		toleration := {"key": arch_key, "operator": "Equal", "value": architecture, "effect": "NoSchedule"}
		not tolerated(architecture)
	],
	[toleration |
		some toleration in sort({t | some t in data.archkeeper.extension.tolerations})
		not toleration in list_of(spec, "tolerations")
	],
)

# METADATA
# description: The pod tolerates the taint of an architecture.
# scope: document
tolerated(architecture) if {
	some toleration in list_of(spec, "tolerations")
	object.get(toleration, "effect", "") in {"", "NoSchedule"}
	tolerates_value(toleration, architecture)
}

# METADATA
# description: A toleration covers the taint's key and value. An empty key with Exists covers everything.
# scope: document
tolerates_value(toleration, _) if {
	toleration.operator == "Exists"
	object.get(toleration, "key", "") in {"", arch_key}
}

tolerates_value(toleration, architecture) if {
	object.get(toleration, "operator", "") in {"", "Equal"}
	toleration.key == arch_key
	toleration.value == architecture
}

# METADATA
# description: |
#   Containers whose image is to be set to its digest: whoever asked gives the pinned
#   reference beside the answer, and only where that is safe. Image volumes of an
#   existing pod cannot be changed and are left out.
# scope: document
pins := [{"op": "replace", "path": sprintf("/spec/%s/%d/image", [field, i]), "value": pinned} |
	settings.pin == true
	some field in ["initContainers", "containers"]
	some i, container in list_of(spec, field)
	pinned := input.images[container.image].pinned
	pinned != container.image
]
