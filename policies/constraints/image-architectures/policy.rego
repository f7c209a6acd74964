# METADATA
# title: Image architectures
# description: |
#   A pod whose images cannot run together on any node, lack an architecture that
#   the parameters ask for, or contradict the pod's own selectors.
# related_resources:
# - https://github.com/archkeeper/archkeeper/tree/main/policies/constraints/image-architectures
# scope: package
package archkeeper.constraints.image_architectures

import data.lib.arch
import data.lib.images
import data.lib.provider

parameters := object.union(
	{"architectures": [], "exemptRegistries": []},
	object.get(input, "parameters", {}),
)

spec := images.pod_spec(input.review.object)

uses := images.not_exempt(images.under_review(input.review), parameters.exemptRegistries)

# One call, whatever the number of containers.
answers := provider.inspect(input.review, {use.image | some use in uses}, parameters)

required := {arch.node_type(architecture) | some architecture in parameters.architectures}

# An image lacks an architecture that every image must have.
violation contains {"msg": msg, "details": details} if {
	provider.judges_known(parameters)
	some use in uses
	answer := answers[use.image]
	answer.status == "known"
	supported := arch.node_types(answer)
	missing := required - supported
	count(missing) > 0
	msg := sprintf("%s supports %s; required are %s; missing %s", [
		images.label(use),
		arch.words(supported),
		arch.words(required),
		arch.words(missing),
	])
	details := {
		"reason": "MissingArchitecture",
		"container": use.name,
		"image": use.image,
		"supported": sort(supported),
		"missing": sort(missing),
	}
}

# The images share no node on which all of them run: one message an image, each
# with what it supports.
violation contains {"msg": msg, "details": details} if {
	provider.judges_known(parameters)
	arch.common(answers) == set()
	some use in uses
	answer := answers[use.image]
	answer.status == "known"
	supported := arch.node_types(answer)
	msg := sprintf("%s supports %s, but no architecture is supported by all images of the pod", [
		images.label(use),
		arch.words(supported),
	])
	details := {
		"reason": "NoCommonArchitecture",
		"container": use.name,
		"image": use.image,
		"supported": sort(supported),
	}
}

# The pod's own selectors admit none of the nodes on which its images run. The
# images to blame are those that the selectors shut out by themselves; when each
# could run somewhere, all are named.
violation contains {"msg": msg, "details": details} if {
	provider.judges_known(parameters)
	common := arch.common(answers)
	common != set()
	arch.admitted(common, spec) == set()
	some use in uses
	answer := answers[use.image]
	answer.status == "known"
	blamed(answer)
	supported := arch.node_types(answer)
	selectors := arch.selectors(spec)
	msg := sprintf("%s supports %s, but the pod asks for %s", [
		images.label(use),
		arch.words(supported),
		concat(" and ", sort(selectors)),
	])
	details := {
		"reason": "SelectorConflict",
		"container": use.name,
		"image": use.image,
		"supported": sort(supported),
		"selectors": sort(selectors),
	}
}

# Content that no runtime can run: a verdict, not a failed look-up.
violation contains {"msg": msg, "details": details} if {
	provider.judges_known(parameters)
	some use in uses
	answer := answers[use.image]
	provider.not_runnable(answer)
	msg := sprintf("%s cannot run anywhere: %s", [images.label(use), answer.message])
	details := {"reason": "NotRunnable", "container": use.name, "image": use.image, "class": answer.class}
}

violation contains undetermined if {
	some undetermined in provider.undetermined(uses, answers, parameters)
}

blamed(answer) if arch.admitted(arch.node_types(answer), spec) == set()

blamed(_) if {
	every answer in known {
		arch.admitted(arch.node_types(answer), spec) != set()
	}
}

known := [answer | some answer in answers; answer.status == "known"]
