# METADATA
# title: Mirror flattened
# description: |
#   An image whose copy on a mirror lacks architectures that the source has.
# related_resources:
# - https://github.com/archkeeper/archkeeper/tree/main/policies/constraints/mirror-flattened
# scope: package
package archkeeper.constraints.mirror_flattened

import data.lib.arch
import data.lib.images
import data.lib.provider

parameters := object.union(
	{"exemptRegistries": [], "mirrors": []},
	object.get(input, "parameters", {}),
)

# Both locations of every use that lives below a listed source or mirror. The
# most specific source counts, as it does when a runtime reads its mirrors.
pairs := {pair |
	some use in images.not_exempt(images.under_review(input.review), parameters.exemptRegistries)
	some pair in array.concat(below(use, "source", "mirror"), below(use, "mirror", "source"))
}

below(use, here, there) := [{"use": use, here: use.image, there: moved} |
	some entry in parameters.mirrors
	moved := images.moved(use.image, entry[here], entry[there])
	not closer(use.image, entry, here)
]

closer(image, entry, here) if {
	some other in parameters.mirrors
	count(other[here]) > count(entry[here])
	images.exempt(image, [other[here]])
}

source_parameters := object.union(parameters, {"provider": parameters.sourceProvider}) if {
	parameters.sourceProvider
} else := parameters

one_provider if source_parameters == parameters

# One call when the same provider is asked, one for each when there are two.
answers := provider.inspect(input.review, sources | mirrors, parameters) if {
	one_provider
} else := provider.inspect(input.review, mirrors, parameters)

source_answers := answers if {
	one_provider
} else := provider.inspect(input.review, sources, source_parameters)

sources := {pair.source | some pair in pairs}

mirrors := {pair.mirror | some pair in pairs}

violation contains {"msg": msg, "details": details} if {
	provider.judges_known(parameters)
	some pair in pairs
	source := source_answers[pair.source]
	mirror := answers[pair.mirror]
	source.status == "known"
	mirror.status == "known"
	lost := arch.node_types(source) - arch.node_types(mirror)
	count(lost) > 0
	msg := sprintf("%s: mirror %s supports %s, but its source %s also supports %s", [
		images.label(pair.use),
		pair.mirror,
		arch.words(arch.node_types(mirror)),
		pair.source,
		arch.words(lost),
	])
	details := {
		"reason": "MirrorFlattened",
		"container": pair.use.name,
		"image": pair.use.image,
		"mirror": pair.mirror,
		"source": pair.source,
		"lost": sort(lost),
	}
}

violation contains undetermined if {
	some undetermined in provider.undetermined(
		{object.union(pair.use, {"image": pair.mirror}) | some pair in pairs},
		answers,
		parameters,
	)
}

violation contains undetermined if {
	some undetermined in provider.undetermined(
		{object.union(pair.use, {"image": pair.source}) | some pair in pairs},
		source_answers,
		parameters,
	)
}
