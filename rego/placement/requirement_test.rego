package archkeeper.placement_test

import data.archkeeper.placement

test_terms_after[name] if {
	some name, tc in {
		"no affinity": {"spec": {}, "image": both, "terms": [term([in_both])]},
		"each term gains it": {"spec": required([term([zone]), term([zone])]), "image": both, "terms": [term([zone, in_both]), term([zone, in_both])]},
		"a chosen term is kept": {"spec": required([term([in_amd64]), term([zone])]), "image": both, "terms": [term([in_amd64]), term([zone, in_both])]},
		"fields alone": {"spec": required([{"matchFields": [{"key": "metadata.name"}]}]), "image": amd64, "terms": [{"matchFields": [{"key": "metadata.name"}], "matchExpressions": [in_amd64]}]},
		"an empty term stays": {"spec": required([{}, term([zone])]), "image": amd64, "terms": [{}, term([zone, in_amd64])]},
		"systems that differ": {"spec": {}, "image": lopsided, "terms": [term([in_both, on_linux]), term([in_amd64, on_windows])]},
		"terms are multiplied": {"spec": required([term([zone]), {}]), "image": lopsided, "terms": [term([zone, in_both, on_linux]), term([zone, in_amd64, on_windows]), {}]},
		"a kept term among multiplied ones": {
			"spec": required([term([is_in("kubernetes.io/arch", ["s390x"])]), term([zone])]),
			"image": lopsided,
			"terms": [term([is_in("kubernetes.io/arch", ["s390x"])]), term([zone, in_both, on_linux]), term([zone, in_amd64, on_windows])],
		},
		"a choice of both architectures is divided": {"spec": required([term([in_both])]), "image": lopsided, "terms": [term([in_both, on_linux]), term([in_both, in_amd64, on_windows])]},
		"a choice of both systems is divided": {
			"spec": required([term([is_in("kubernetes.io/os", ["linux", "windows"])])]),
			"image": lopsided,
			"terms": [term([is_in("kubernetes.io/os", ["linux", "windows"]), in_both, on_linux]), term([is_in("kubernetes.io/os", ["linux", "windows"]), in_amd64, on_windows])],
		},
		"a selected system is not said again": {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}, "image": lopsided, "terms": [term([in_both])]},
		"a choice does not waive the system": {"spec": {"nodeSelector": {"kubernetes.io/arch": "amd64"}}, "image": known(["windows/amd64"]), "terms": [term([on_windows])]},
		"a term that refuses the system": {
			"spec": required([term([{"key": "kubernetes.io/os", "operator": "NotIn", "values": ["linux"]}]), term([zone])]),
			"image": amd64,
			"terms": [term([{"key": "kubernetes.io/os", "operator": "NotIn", "values": ["linux"]}, in_amd64]), term([zone, in_amd64])],
		},
		"a term that selects a system without the images": {"spec": required([term([on_windows]), term([zone])]), "image": amd64, "terms": [term([on_windows]), term([zone, in_amd64])]},
	}
	terms_after(ask(tc.spec, {"a": tc.image})) == tc.terms
}

test_a_gated_pod_takes_the_largest_box if {
	terms_after(ask_gated(required([term([zone])]), {"a": lopsided})) == [term([zone, in_both, on_linux])]
	terms_after(ask_gated({}, {"a": lopsided})) == [term([in_both, on_linux]), term([in_amd64, on_windows])]
	windows_rich := known(["linux/amd64", "windows/amd64", "windows/arm64"])
	terms_after(ask_gated(required([term([zone])]), {"a": windows_rich})) == [term([zone, in_amd64, is_in("kubernetes.io/os", ["linux", "windows"])])]
}

test_a_gated_pod_goes_where_its_box_lets_it if {
	crossed := known(["linux/arm64", "windows/amd64"])
	not_arm64 := {"key": "kubernetes.io/arch", "operator": "NotIn", "values": ["arm64"]}
	in_arm64 := is_in("kubernetes.io/arch", ["arm64"])
	every tc in [
		{"terms": [term([zone])], "after": [term([zone, in_arm64, on_linux])], "architectures": ["arm64"]},
		{"terms": [term([in_both])], "after": [term([in_both, in_arm64, on_linux])], "architectures": ["arm64"]},
		{"terms": [term([zone]), term([not_arm64])], "after": [term([zone, in_arm64, on_linux]), term([not_arm64, in_amd64, on_windows])], "architectures": ["amd64", "arm64"]},
		{"terms": [term([not_arm64])], "after": [term([not_arm64, in_amd64, on_windows])], "architectures": ["amd64"]},
	] {
		question := ask_gated(required(tc.terms), {"a": crossed})
		terms_after(question) == tc.after
		decide(question).architectures == tc.architectures
		patched(question).metadata.annotations["archkeeper.io/architectures"] == concat(",", tc.architectures)
	}
	decide(ask(required([term([zone])]), {"a": crossed})).architectures == ["amd64", "arm64"]
	neither := object.union(in_both, {"operator": "NotIn"})
	terms_after(ask_gated(required([term([neither])]), {"a": lopsided})) == [term([neither, in_both, on_linux])]
	unconstrained := decide_with(
		object.union(
			ask_gated(required([term([zone])]), {"a": known(["linux/amd64", "windows/amd64", "windows/arm64"])}),
			{"cluster": {"architectures": ["amd64"], "operatingSystems": ["linux", "windows"]}},
		),
		{"constrainAlways": false},
	)
	[unconstrained.reason, unconstrained.architectures] == ["RunsEverywhere", ["amd64", "arm64"]]
}

test_images_that_share_nothing if {
	terms_after(ask({}, {"a": amd64, "b": arm64})) == [term([no_common])]
	terms_after(ask(required([term([zone]), {}]), {"a": amd64, "b": arm64})) == [term([zone, no_common]), {}]
	decide(ask(required([term([zone, no_common])]), {"a": amd64, "b": arm64})).patch == []
}

test_tightened if {
	question := object.union(ask({"nodeSelector": {"kubernetes.io/arch": "amd64"}}, {"a": both}), {"config": {"userArchitecture": "tighten"}})
	terms_after(question) == [term([in_both])]
}

test_not_always_constrained if {
	d := decide_with(object.union(ask({}, {"a": both}), {"cluster": {"architectures": ["amd64", "arm64"], "operatingSystems": ["linux"]}}), {"constrainAlways": false})
	d.action == "place"
	d.reason == "RunsEverywhere"
	{op.path | some op in d.patch} == {"/metadata/annotations", "/metadata/labels"}
}

preferences(question) := patched(question).spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution

prefer(weight, architecture) := {"weight": weight, "preference": term([is_in("kubernetes.io/arch", [architecture])])}

weighted := {"config": {"preferred": [{"architecture": "arm64", "weight": 60}, {"architecture": "amd64", "weight": 20}, {"architecture": "s390x", "weight": 5}]}}

test_weights_become_preferred_terms if {
	preferences(object.union(ask({}, {"a": both}), weighted)) == [prefer(20, "amd64"), prefer(60, "arm64")]
	preferences(object.union(ask(required([term([zone])]), {"a": both}), weighted)) == [prefer(20, "amd64"), prefer(60, "arm64")]
	own := {"weight": 1, "preference": term([zone])}
	preferences(object.union(ask({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [own]}}}, {"a": amd64}), weighted)) == [own, prefer(20, "amd64")]
}

test_the_users_preference_wins if {
	preferences(object.union(ask({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefer(1, "arm64")]}}}, {"a": both}), weighted)) == [prefer(1, "arm64")]
}

test_an_extension_prefers if {
	preferences(object.union(ask({}, {"a": both}), weighted)) == [prefer(20, "amd64"), prefer(90, "arm64")] with data.archkeeper.extension.preferred as {
		{"architecture": "arm64", "weight": 90},
		{"architecture": "arm64", "weight": 10},
	}
}

tolerate(architecture) := {"key": "kubernetes.io/arch", "operator": "Equal", "value": architecture, "effect": "NoSchedule"}

test_tolerations_for_tainted_pools[name] if {
	some name, tc in {
		"none before": {"before": null, "after": [tolerate("amd64"), tolerate("arm64")]},
		"another before": {"before": [{"key": "x", "operator": "Exists"}], "after": [{"key": "x", "operator": "Exists"}, tolerate("amd64"), tolerate("arm64")]},
		"one of them before": {"before": [{"key": "kubernetes.io/arch", "value": "arm64"}], "after": [{"key": "kubernetes.io/arch", "value": "arm64"}, tolerate("amd64")]},
		"the key before": {"before": [{"key": "kubernetes.io/arch", "operator": "Exists", "effect": "NoSchedule"}], "after": [{"key": "kubernetes.io/arch", "operator": "Exists", "effect": "NoSchedule"}]},
		"everything before": {"before": [{"operator": "Exists"}], "after": [{"operator": "Exists"}]},
		"another effect before": {"before": [{"operator": "Exists", "effect": "NoExecute"}], "after": [{"operator": "Exists", "effect": "NoExecute"}, tolerate("amd64"), tolerate("arm64")]},
	}
	question := object.union(ask({"tolerations": tc.before}, {"a": both}), {"config": {"tolerateArchitectureTaints": true}})
	patched(question).spec.tolerations == tc.after
}

test_an_extension_tolerates if {
	toleration := {"key": "gpu", "operator": "Exists"}
	patched(ask({"nodeSelector": {"kubernetes.io/arch": "amd64"}}, {"a": both})).spec.tolerations == [toleration] with data.archkeeper.extension.tolerations as {toleration}
	decide(ask({"nodeSelector": {"kubernetes.io/arch": "amd64"}, "tolerations": [toleration]}, {"a": both})).action == "ignore" with data.archkeeper.extension.tolerations as {toleration}
}

test_digests_where_they_are_offered if {
	question := object.union(
		ask({"initContainers": [{"image": "b"}]}, {"a": object.union(both, {"pinned": "a@sha256:1"}), "b": both}),
		{"config": {"pin": true}},
	)
	{c.image | some c in patched(question).spec.containers} == {"a@sha256:1", "b"}
	decide(object.union(question, {"config": {"pin": false}})).patch == decide(object.union(question, {"images": {"a": {"pinned": ""}}, "config": {"pin": false}})).patch
}

test_boxes_of_nothing if placement.grouped(set()) == []
