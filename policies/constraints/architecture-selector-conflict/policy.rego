# METADATA
# title: Architecture selector conflict
# description: |
#   A pod whose own selectors admit none of the nodes on which its images run.
# related_resources:
# - https://github.com/archkeeper/archkeeper/tree/main/policies/constraints/architecture-selector-conflict
# scope: package
package archkeeper.constraints.architecture_selector_conflict

import data.lib.arch
import data.lib.images
import data.lib.provider

parameters := object.union(
	{"everyTerm": false, "exemptRegistries": []},
	object.get(input, "parameters", {}),
)

spec := images.pod_spec(input.review.object)

# Whoever says nothing contradicts nothing: no call.
uses := images.not_exempt(images.under_review(input.review), parameters.exemptRegistries) if {
	count(arch.selectors(spec)) > 0
} else := set()

answers := provider.inspect(input.review, {use.image | some use in uses}, parameters)

common := arch.common(answers)

violation contains {"msg": msg, "details": details} if {
	conflict
	msg := sprintf("the pod asks for %s, but its images run together on %s: %s", [
		concat(" and ", sort(arch.selectors(spec))),
		arch.words(common),
		concat("; ", sort(supports)),
	])
	details := {"reason": "SelectorConflict", "selectors": sort(arch.selectors(spec)), "supported": sort(common)}
}

violation contains {"msg": msg, "details": details} if {
	parameters.everyTerm
	provider.judges_known(parameters)
	not conflict
	some index, term in arch.terms(spec)
	alone := arch.with_terms(spec, [term])
	arch.admitted(common, alone) == set()
	msg := sprintf("node selector term %d can never be met: it asks for %s, but the images run together on %s", [
		index,
		concat(" and ", sort(arch.selectors(alone))),
		arch.words(common),
	])
	details := {"reason": "DeadTerm", "term": index, "supported": sort(common)}
}

violation contains undetermined if {
	some undetermined in provider.undetermined(uses, answers, parameters)
}

conflict if {
	provider.judges_known(parameters)
	arch.admitted(common, spec) == set()
}

# One sentence an image, for the reader who wants to know which one to change.
supports := {sentence |
	some use in uses
	answer := answers[use.image]
	answer.status == "known"
	sentence := sprintf("%s supports %s", [images.label(use), arch.words(arch.node_types(answer))])
}
