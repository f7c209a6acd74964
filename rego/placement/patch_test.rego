package archkeeper.placement_test

import data.archkeeper.placement

test_the_gate_comes_off_and_others_stay if {
	question := object.union(ask_gated({}, {"a": amd64}), {"pod": {"spec": {"schedulingGates": [{"name": "x"}, {"name": "archkeeper.io/architecture"}, {"name": "y"}]}}})
	patched(question).spec.schedulingGates == [{"name": "x"}, {"name": "y"}]
}

test_the_gate_goes_on_once if {
	patched(ask({}, {"a": waiting})).spec.schedulingGates == gates
	patched(ask({"schedulingGates": [{"name": "x"}]}, {"a": waiting})).spec.schedulingGates == [{"name": "x"}, {"name": "archkeeper.io/architecture"}]
	decide(ask({"schedulingGates": gates}, {"a": waiting})).patch == []
}

test_a_gate_of_another_mutation_comes_off_at_admission if {
	question := ask({"schedulingGates": gates}, {"a": both})
	decide(question).action == "place"
	not patched(question).spec.schedulingGates
	decide(ask({"schedulingGates": gates}, {"a": broken})).action == "release"
}

test_the_gate_has_the_configured_name if {
	d := decide_with(ask({}, {"a": waiting}), {"gate": "example.com/x"})
	d.patch == [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "example.com/x"}]}]
}

preset := {"metadata": {
	"labels": {"app": "x", "archkeeper.io/placement": "enabled", "architecture.archkeeper.io/s390x": "supported", "architecture.archkeeper.io/amd64": "no", "notarchkeeper.io/x": "y"},
	"annotations": {"archkeeper.io/architectures": "s390x", "note": "x"},
}}

test_preset_marks_are_replaced_on_a_placed_pod if {
	metadata := patched(object.union(ask({}, {"a": amd64}), {"pod": preset})).metadata
	metadata.labels == {"app": "x", "archkeeper.io/placement": "enabled", "architecture.archkeeper.io/amd64": "supported", "notarchkeeper.io/x": "y"}
	metadata.annotations == {"archkeeper.io/architectures": "amd64", "note": "x"}
}

test_preset_marks_are_removed_from_a_pod_that_is_not_placed[name] if {
	some name, image in {"gated": waiting, "bad": broken}
	metadata := patched(object.union(ask({}, {"a": image}), {"pod": preset})).metadata
	metadata.labels == {"app": "x", "archkeeper.io/placement": "enabled", "notarchkeeper.io/x": "y"}
	metadata.annotations == {"note": "x"}
}

test_a_pod_that_is_held_is_not_touched if {
	decide(object.union(ask_gated({}, {"a": waiting}), {"pod": preset})).patch == []
}

test_a_second_pass_changes_nothing if {
	question := ask({"affinity": {"podAffinity": {}}}, {"a": both})
	decide(object.union(question, {"pod": patched(question)})).patch == []
}

test_a_pod_without_metadata if {
	d := decide({"phase": "admit", "pod": {"spec": {"containers": [{"image": "a"}]}}, "images": {"a": amd64}})
	[op.path | some op in d.patch] == ["/spec/affinity", "/metadata", "/metadata/annotations", "/metadata/labels"]
}

test_keys_are_escaped if placement.mark_path("labels", "a~b/c") == "/metadata/labels/a~0b~1c"

test_the_order_is_fixed if {
	question := object.union(
		ask_gated({}, {"a": object.union(both, {"pinned": "a@sha256:1"})}),
		{"config": {"pin": true, "tolerateArchitectureTaints": true, "preferred": [{"architecture": "arm64", "weight": 1}]}},
	)
	[op.path | some op in decide(question).patch] == [
		"/spec/affinity", "/spec/tolerations", "/spec/containers/0/image",
		"/metadata/annotations", "/metadata/labels", "/spec/schedulingGates",
	]
}
