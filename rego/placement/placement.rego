# METADATA
# title: Placement
# description: |
#   Where may this pod go? The pod and what is known of its images come in; an action
#   and an RFC 6902 patch come out. The policy reads no clock, no cluster and no
#   registry: everything it judges by is in its input, so that the admission webhook,
#   the placement controller and `archkeeper explain` decide alike.
#
#   Who may be placed is in scope.rego, what the images say in images.rego, what the
#   user said in choice.rego, what is added in requirement.rego, and how it is written
#   down in patch.rego. Other packages extend the policy as data.archkeeper.extension.
# scope: package
package archkeeper.placement

# METADATA
# title: Decision
# description: |
#   What happens to the pod, and why. `architectures` are those of the nodes that the
#   pod may go to and its images run on, whatever their system; empty when nothing
#   constrains the pod or nothing is left.
# entrypoint: true
decision := {
	"action": action,
	"architectures": sort(verdict.architectures),
	"patch": patch,
	"reason": verdict.reason,
	"message": verdict.message,
}

# METADATA
# description: |
#   A pod that is left alone is ignored at admission. One that already carries our gate
#   must lose it: nobody else would take it off.
# scope: document
action := "release" if {
	verdict.kind == "leave"
	held
} else := "ignore" if {
	verdict.kind == "leave"
} else := verdict.kind

# METADATA
# description: The pod waits on our gate, or is said to.
# scope: document
held if input.phase == "resolve"

held if gate_index >= 0

# METADATA
# description: |
#   The verdict, first match first. Its kind is leave, place, gate or hold. What is
#   certain already, whatever the images still unknown turn out to be, comes before
#   any waiting.
# scope: document
verdict := leave(skip.reason, skip.message, set()) if {
	skip
} else := leave("NoUsableTerm", "the required node affinity has no term that matches a node; nothing is added to it", set()) if {
	count(alternatives) == 0
} else := leave("ArchitectureContradiction", contradiction_message, set()) if {
	contradiction
	every i, _ in alternatives { kept(i) }
} else := place("NoCommonArchitecture", no_common_message, set()) if {
	shares_nothing
} else := leave("ImageUnusable", unknown_message("left to the kubelet, which will say the same"), set()) if {
	count(bad) > 0
} else := leave("UserArchitecture", "the pod chooses its architecture itself; its images are not known and need not be", chosen_architectures) if {
	count(unknown) > 0
	chosen_everywhere
} else := gate if {
	count(unknown) > 0
	input.phase == "admit"
} else := hold if {
	count(unknown) > 0
	not expired
} else := place("FallbackArchitecture", unknown_message(sprintf("held for %v, placed on the fallback architecture", [settings.holdDeadline])), architectures) if {
	falls_back
} else := leave("DeadlineExceeded", unknown_message(sprintf("held for %v, released unchanged", [settings.holdDeadline])), set()) if {
	count(unknown) > 0
} else := leave("ContentOnly", "none of the images says where it runs; there is nothing to require", set()) if {
	count(known) == 0
} else := place("ArchitectureContradiction", contradiction_message, set()) if {
	contradiction
} else := place("RunsEverywhere", "the images run on every architecture of the cluster", architectures) if {
	runs_everywhere
} else := leave("UserArchitecture", placed_message, architectures) if {
	nothing_to_add
} else := place("Placed", placed_message, architectures)

# METADATA
# description: A verdict that leaves the pod as it is.
# scope: document
leave(reason, message, archs) := {"kind": "leave", "reason": reason, "message": message, "architectures": archs}

# METADATA
# description: A verdict that writes to the pod.
# scope: document
place(reason, message, archs) := {"kind": "place", "reason": reason, "message": message, "architectures": archs}

# METADATA
# description: |
#   An unknown image at admission: the pod waits on the gate, but only while someone
#   is alive to take the gate off.
# scope: document
gate := {
	"kind": "gate",
	"reason": "ImagesUnknown",
	"message": unknown_message("waiting for an answer"),
	"architectures": set(),
} if {
	object.get(input, "controller_alive", false) == true
} else := leave("ControllerNotAlive", unknown_message("not held, because no controller is alive that would release it"), set())

# METADATA
# description: An unknown image of a gated pod before its deadline.
# scope: document
hold := {
	"kind": "hold",
	"reason": "ImagesUnknown",
	"message": unknown_message("asked again later"),
	"architectures": set(),
}

# METADATA
# description: The pod has been held, from its creation, for as long as it may be.
# scope: document
expired if object.get(input, "held_seconds", 0) * 1000000000 >= time.parse_duration_ns(settings.holdDeadline)

# METADATA
# description: |
#   The deadline has come, an administrator named a fallback, and neither the images
#   that are known nor the pod itself speak against it.
# scope: document
falls_back if {
	count(unknown) > 0
	count(bad) == 0
	input.phase == "resolve"
	expired
	some i, _ in alternatives
	count(open_pairs(i, fallback_pairs)) > 0
}

# METADATA
# description: The node types of the fallback architecture that the known images allow; linux when none is known.
# scope: document
fallback_pairs := set() if {
	settings.fallbackArchitecture == ""
} else := {pair |
	some pair in common
	pair[1] == settings.fallbackArchitecture
} if {
	count(known) > 0
} else := {["linux", settings.fallbackArchitecture]}

# METADATA
# description: "The node types that the pod is placed on: [operating system, architecture] pairs."
# scope: document
target := fallback_pairs if {
	falls_back
} else := common

# METADATA
# description: The architectures of the nodes that the pod may go to and its images run on.
# scope: document
architectures := {pair[1] |
	some i, _ in alternatives
	some pair in open_pairs(i, target)
	reached(i, pair)
}

# METADATA
# description: |
#   A node type is within what is written down of an alternative: on a gated pod that may
#   be less than what its images run on.
# scope: document
reached(i, pair) if {
	some box in fitting_boxes(i)
	pair[0] in box.os
	pair[1] in box.arch
}

reached(_, _) if runs_everywhere

# METADATA
# description: |
#   The administrator wants no requirement where the images run on every node type that
#   the cluster has. An unknown cluster is not one on which everything runs.
# scope: document
runs_everywhere if {
	settings.constrainAlways == false
	count(list_of(cluster, "architectures")) > 0
	every architecture in cluster.architectures {
		every os in cluster_systems { [os, architecture] in target }
	}
}

# METADATA
# description: Neither requirement, preference, toleration nor digest is missing from the pod.
# scope: document
nothing_to_add if {
	every _, lists in requirement { concatenated(lists) == [] }
	preferred_terms == []
	new_tolerations == []
	pins == []
}

# METADATA
# description: The lists of a list, one behind the other.
# scope: document
concatenated(lists) := [item | some list in lists; some item in list]

# METADATA
# description: What a person reads of a pod whose images share nothing.
# scope: document
no_common_message := sprintf("no architecture is common to all images: %s", [images_words]) if {
	count(settings.schedulableArchitectures) == 0
} else := sprintf("no schedulable architecture (%s) is common to all images, which run there: %s", [
	concat(", ", settings.schedulableArchitectures),
	images_words,
])

# METADATA
# description: What a person reads of a pod that contradicts its images.
# scope: document
contradiction_message := sprintf("the pod's own choice of nodes contradicts its images: %s", [images_words])

# METADATA
# description: What a person reads of a placed pod, with remarks on what the user should look at.
# scope: document
placed_message := concat("; ", array.concat(
	[sprintf("runs on %s", [concat(", ", sort(architectures))])],
	sort(remarks),
))

# METADATA
# description: Remarks that do not change the decision.
# scope: document
remarks contains sprintf("no node of the cluster is of %s", [concat(", ", sort(architectures))]) if {
	count(list_of(cluster, "architectures")) > 0
	count(architectures & {a | some a in cluster.architectures}) == 0
}

remarks contains sprintf("required node affinity term %d chooses nodes that the images do not run on", [i]) if {
	some i, _ in alternatives
	i >= 0
	count(open_pairs(i, target)) == 0
}

remarks contains sprintf("the pod also allows %s, on which its images do not run", [concat(", ", sort(wider))]) if {
	wider := {value |
		some i, _ in alternatives
		count(open_pairs(i, target)) > 0
		some value in chosen_values(i)
		not value in {pair[1] | some pair in target}
	}
	count(wider) > 0
}

# METADATA
# description: What a person reads of images that are not known.
# scope: document
unknown_message(what) := sprintf("%s; %s", [what, concat("; ", [words |
	some ref in sort(unknown)
	answer := answers[ref]
	words := sprintf("image %s: %s: %s", [ref, answer.class, answer.message])
])])

# METADATA
# description: "Each known image with its node types: busybox on amd64, arm64; ..."
# scope: document
images_words := concat("; ", [words |
	some ref in sort(known)
	words := sprintf("%s on %s", [ref, pairs_words(answers[ref].pairs)])
])

# METADATA
# description: Node types for a person; linux is understood.
# scope: document
pairs_words(pairs) := "nothing" if {
	count(pairs) == 0
} else := concat(", ", sort({trim_prefix(concat("/", pair), "linux/") | some pair in pairs}))
