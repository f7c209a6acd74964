package archkeeper.placement_test

import data.archkeeper.placement

test_every_kind_of_container_counts_but_the_ephemeral if {
	refs := placement.refs with input as {"pod": {"spec": {
		"containers": [{"image": "a"}],
		"initContainers": [{"image": "b"}],
		"ephemeralContainers": [{"image": "x"}],
		"volumes": [{"name": "v", "image": {"reference": "c"}}, {"name": "w", "emptyDir": {}}],
	}}}
	refs == {"a", "b", "c"}
}

test_windows_platforms_are_read_with_their_version_left_out if {
	pairs := placement.node_types(lopsided) with input as {"cluster": {}}
	pairs == {["linux", "amd64"], ["linux", "arm64"], ["windows", "amd64"]}
}

test_a_system_counts_when_the_cluster_has_it if {
	image := known(["freebsd/amd64"])
	placement.node_types(image) == set() with input as {"cluster": {"operatingSystems": ["linux"]}}
	placement.node_types(image) == {["freebsd", "amd64"]} with input as {"cluster": {"operatingSystems": ["linux", "freebsd"]}}
}

test_an_answer_that_is_missing_is_unknown if {
	d := decide(ask({"containers": [{"image": "other"}]}, {}))
	d.action == "gate"
	contains(d.message, "image other: internal: nobody answered")
}

test_an_answer_without_words_is_unknown if {
	d := decide(ask({}, {"a": {"status": "unknown"}}))
	d.action == "gate"
	contains(d.message, "image a: internal: no message")
}

test_an_extension_overrides_an_answer if {
	d := decide(ask({}, {"a": waiting, "b": both})) with data.archkeeper.extension.architectures as {"a": {"arm64"}}
	d.action == "place"
	d.architectures == ["arm64"]
}

test_the_configuration_narrows if {
	decide_with(ask({}, {"a": both}), {"schedulableArchitectures": ["arm64"]}).architectures == ["arm64"]
	d := decide_with(ask({}, {"a": amd64}), {"schedulableArchitectures": ["arm64"]})
	d.reason == "NoCommonArchitecture"
	contains(d.message, "no schedulable architecture (arm64) is common")
}

test_hostile_architectures_never_reach_a_pod if {
	image := {"status": "known", "architectures": ["amd64", "a,b", "", "-x", concat("", [c | some i in numbers.range(1, 64); c := "y"])], "platforms": []}
	decide(ask({}, {"a": image})).architectures == ["amd64"]
}
