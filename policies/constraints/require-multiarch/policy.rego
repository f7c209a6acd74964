# METADATA
# title: Require multi-arch
# description: |
#   An image that lacks an architecture which every image must support, unless its
#   repository is on the grace list.
# related_resources:
# - https://github.com/archkeeper/archkeeper/tree/main/policies/constraints/require-multiarch
# scope: package
package archkeeper.constraints.require_multiarch

import data.lib.arch
import data.lib.images
import data.lib.provider

parameters := object.union(
	{"architectures": ["amd64", "arm64"], "exemptRegistries": [], "grace": []},
	object.get(input, "parameters", {}),
)

uses := images.not_exempt(images.under_review(input.review), parameters.exemptRegistries)

# One call, whatever the number of containers.
answers := provider.inspect(input.review, {use.image | some use in uses}, parameters)

required := {arch.node_type(architecture) | some architecture in parameters.architectures}

violation contains {"msg": msg, "details": details} if {
	provider.judges_known(parameters)
	some use in uses
	answer := answers[use.image]
	answer.status == "known"
	supported := arch.node_types(answer)
	missing := (required - supported) - pardoned(use.image)
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

# Content that no runtime can run supports nothing.
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

# What an image may lack, by all grace entries for its repository that have not ended.
pardoned(image) := {arch.node_type(architecture) |
	some entry in parameters.grace
	images.exempt(image, [entry.repository])
	lasts(entry)
	some architecture in object.get(entry, "missing", parameters.architectures)
}

lasts(entry) if not entry.until

# The day counts whole.
lasts(entry) if time.now_ns() < time.add_date(time.parse_ns("2006-01-02", entry.until), 0, 0, 1)
