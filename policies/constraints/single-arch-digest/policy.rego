# METADATA
# title: Single-arch digest
# description: |
#   An image pinned to the manifest of one architecture where its tag names a
#   multi-arch index: the pod can never run anywhere else.
# related_resources:
# - https://github.com/archkeeper/archkeeper/tree/main/policies/constraints/single-arch-digest
# scope: package
package archkeeper.constraints.single_arch_digest

import data.lib.arch
import data.lib.images
import data.lib.provider

parameters := object.union(
	{"exemptRegistries": [], "untagged": "allow"},
	object.get(input, "parameters", {}),
)

uses := {use |
	some use in images.not_exempt(images.under_review(input.review), parameters.exemptRegistries)
	images.digest(use.image) != ""
}

# The same image by its tag alone, where there is one.
by_tag[use.image] := concat(":", [images.location(use.image), images.tag(use.image)]) if {
	some use in uses
	images.tag(use.image) != ""
}

# One call for digests and tags.
answers := provider.inspect(
	input.review,
	{use.image | some use in uses} | {tagged | some tagged in by_tag},
	parameters,
)

violation contains {"msg": msg, "details": details} if {
	provider.judges_known(parameters)
	some use in uses
	pinned := single(use.image)
	tagged := answers[by_tag[use.image]]
	tagged.kind == "index"
	more := arch.node_types(tagged) - arch.node_types(pinned)
	count(more) > 0
	msg := sprintf("%s is pinned to a single manifest for %s; tag %s also supports %s: pin %s instead", [
		images.label(use),
		arch.words(arch.node_types(pinned)),
		images.tag(use.image),
		arch.words(more),
		tagged.digest,
	])
	details := {
		"reason": "SingleArchDigest",
		"container": use.name,
		"image": use.image,
		"lost": sort(more),
		"index": tagged.digest,
	}
}

violation contains {"msg": msg, "details": details} if {
	provider.judges_known(parameters)
	parameters.untagged == "deny"
	some use in uses
	not by_tag[use.image]
	pinned := single(use.image)
	msg := sprintf("%s is pinned to a single manifest for %s, without a tag that tells what was meant", [
		images.label(use),
		arch.words(arch.node_types(pinned)),
	])
	details := {"reason": "UntaggedManifest", "container": use.name, "image": use.image}
}

violation contains undetermined if {
	some undetermined in provider.undetermined(uses, answers, parameters)
}

# The answer for an image whose digest names one manifest.
single(image) := answer if {
	answer := answers[image]
	answer.status == "known"
	answer.kind in {"manifest", "schema1"}
}
