# What the images say. A node type is a pair [operating system, architecture] in the
# values of the node labels kubernetes.io/os and kubernetes.io/arch.

package archkeeper.placement

# METADATA
# description: |
#   The images that the pod starts with. Ephemeral containers arrive when the pod has
#   its node.
# scope: document
refs contains container.image if some container in list_of(spec, "containers")

refs contains container.image if some container in list_of(spec, "initContainers")

refs contains volume.image.reference if some volume in list_of(spec, "volumes")

# METADATA
# description: Image to what is known of it, after an extension has had its say.
# scope: document
answers := {ref: answer(ref) | some ref in refs}

# METADATA
# description: |
#   One image's answer: known with its node types, any (places no constraint), or
#   unknown with a class. An image without an answer is unknown, never unconstrained.
# scope: document
answer(ref) := {"status": "known", "pairs": narrowed({["linux", a] | some a in data.archkeeper.extension.architectures[ref]})} if {
	data.archkeeper.extension.architectures[ref]
} else := {"status": "known", "pairs": narrowed(node_types(input.images[ref]))} if {
	input.images[ref].status == "known"
} else := {"status": "any"} if {
	input.images[ref].status == "any"
} else := {
	"status": "unknown",
	"class": object.get(input.images[ref], "class", "internal"),
	"message": object.get(input.images[ref], "message", "no message"),
	"retryable": object.get(input.images[ref], "retryable", true),
} if {
	input.images[ref]
} else := {"status": "unknown", "class": "internal", "message": "nobody answered", "retryable": true}

# METADATA
# description: |
#   The node types of a known image. For linux its architectures, which have been
#   judged by who asked the registry; for other systems its platforms, which have the
#   form "windows(10.0.17763.1)/amd64". Systems that no node has do not count.
# scope: document
node_types(image) := {["linux", a] | some a in list_of(image, "architectures")} | {[os, parts[1]] |
	some platform in list_of(image, "platforms")
	not startswith(platform, "linux/")
	parts := split(platform, "/")
	os := split(parts[0], "(")[0]
	os != "linux"
	os in systems
}

# METADATA
# description: |
#   Node types whose architecture can be the value of a node label and which the
#   administrator lets pods be placed on.
# scope: document
narrowed(pairs) := {pair |
	some pair in pairs
	placeable(pair[1])
}

# METADATA
# description: The architecture can be the value of a node label, and pods may be placed on it.
# scope: document
placeable(architecture) if {
	schedulable(architecture)
	regex.match(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`, architecture)
}

# METADATA
# description: The configuration narrows the architectures; an empty list does not.
# scope: document
schedulable(_) if count(settings.schedulableArchitectures) == 0

schedulable(architecture) if architecture in settings.schedulableArchitectures

# METADATA
# description: The operating systems that nodes of a Kubernetes cluster have, and those that this one is said to have.
# scope: document
systems := {"linux", "windows"} | cluster_systems

# METADATA
# description: The operating systems of the cluster's nodes; linux when nobody says.
# scope: document
cluster_systems := {os | some os in cluster.operatingSystems} if {
	count(list_of(cluster, "operatingSystems")) > 0
} else := {"linux"}

# METADATA
# description: The images that are known and say where they run.
# scope: document
known contains ref if {
	some ref, answer in answers
	answer.status == "known"
}

# METADATA
# description: The images that are not known.
# scope: document
unknown contains ref if {
	some ref, answer in answers
	answer.status == "unknown"
}

# METADATA
# description: The unknown images for which waiting does not help.
# scope: document
bad contains ref if {
	some ref in unknown
	answers[ref].retryable == false
}

# METADATA
# description: The node types on which all known images run. More answers can only make it smaller.
# scope: document
common := intersection({answers[ref].pairs | some ref in known})

# METADATA
# description: The known images have no node type in common, and no answer still to come can give them one.
# scope: document
shares_nothing if {
	count(known) > 0
	count(common) == 0
}
