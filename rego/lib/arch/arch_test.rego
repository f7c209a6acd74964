package lib.arch_test

import data.lib.arch

multi := {"status": "known", "architectures": ["amd64", "arm64"], "platforms": ["linux/amd64", "linux/arm64"]}

amd := {"status": "known", "architectures": ["amd64"], "platforms": ["linux/386"]}

windows := {"status": "known", "architectures": [], "platforms": ["windows(10.0.17763.1)/amd64", "windows(10.0.20348.1)/amd64"]}

all := {"linux/amd64", "linux/arm64", "windows/amd64"}

affinity(terms) := {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}

expression(key, operator, values) := {"key": key, "operator": operator, "values": values}

test_node_types_of_answers if {
	arch.node_types(multi) == {"linux/amd64", "linux/arm64"}
	arch.node_types(amd) == {"linux/amd64"}
	arch.node_types(windows) == {"windows/amd64"}
}

test_node_types_of_words if {
	arch.node_type("arm64") == "linux/arm64"
	arch.node_type("linux/arm/v7") == "linux/arm"
	arch.node_type("windows(10.0.17763.1)/amd64") == "windows/amd64"
}

test_common_is_the_intersection if {
	arch.common({"a": multi, "b": amd}) == {"linux/amd64"}
	arch.common({"a": amd, "b": windows}) == set()
	arch.common({"a": multi, "b": {"status": "any"}, "c": {"status": "unknown"}}) == {"linux/amd64", "linux/arm64"}
}

test_common_of_nothing_known_is_undefined if {
	not arch.common({})
	not arch.common({"b": {"status": "any"}, "c": {"status": "unknown"}})
}

test_a_spec_that_says_nothing_admits_all if {
	arch.admitted(all, {}) == all
	arch.admitted(all, {"nodeSelector": {"disk": "ssd"}}) == all
	arch.admitted(all, affinity([])) == all
	arch.admitted(all, {"affinity": {"nodeAffinity": {}}}) == all
}

test_node_selector if {
	arch.admitted(all, {"nodeSelector": {"kubernetes.io/arch": "arm64"}}) == {"linux/arm64"}
	arch.admitted(all, {"nodeSelector": {"beta.kubernetes.io/arch": "arm64"}}) == {"linux/arm64"}
	arch.admitted(all, {"nodeSelector": {"kubernetes.io/os": "windows"}}) == {"windows/amd64"}
	arch.admitted(all, {"nodeSelector": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}}) == {"linux/amd64"}
}

test_pod_os if {
	arch.admitted(all, {"os": {"name": "windows"}}) == {"windows/amd64"}
	arch.admitted(all, {"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/arch": "amd64"}}) == {"linux/amd64"}
}

operators := [
	["In", ["arm64", "s390x"], {"linux/arm64"}],
	["NotIn", ["arm64"], {"linux/amd64", "windows/amd64"}],
	["Exists", [], all],
	["DoesNotExist", [], set()],
	["Gt", ["1"], set()],
	["Lt", ["1"], set()],
]

test_every_operator_on_the_architecture if {
	every row in operators {
		[operator, values, want] := row
		arch.admitted(all, affinity([{"matchExpressions": [expression("kubernetes.io/arch", operator, values)]}])) == want
	}
}

test_expressions_on_other_keys_are_taken_as_met if {
	every operator in {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"} {
		arch.admitted(all, affinity([{"matchExpressions": [expression("zone", operator, ["1"])]}])) == all
	}
}

test_os_by_affinity if {
	arch.admitted(all, affinity([{"matchExpressions": [expression("kubernetes.io/os", "In", ["windows"])]}])) == {"windows/amd64"}
	arch.admitted(all, affinity([{"matchExpressions": [expression("kubernetes.io/os", "NotIn", ["windows"])]}])) == {"linux/amd64", "linux/arm64"}
}

test_terms_are_ored_and_expressions_anded if {
	arch.admitted(all, affinity([
		{"matchExpressions": [expression("kubernetes.io/arch", "In", ["arm64"])]},
		{"matchExpressions": [expression("kubernetes.io/os", "In", ["windows"])]},
	])) == {"linux/arm64", "windows/amd64"}
	arch.admitted(all, affinity([{"matchExpressions": [
		expression("kubernetes.io/arch", "In", ["arm64"]),
		expression("kubernetes.io/os", "In", ["windows"]),
	]}])) == set()
}

test_an_empty_term_admits_nothing if {
	arch.admitted(all, affinity([{}])) == set()
	arch.admitted(all, affinity([{}, {"matchFields": [expression("metadata.name", "In", ["node-1"])]}])) == all
}

test_selectors_in_words if {
	spec := object.union(
		affinity([{"matchExpressions": [
			expression("kubernetes.io/arch", "In", ["s390x", "arm64"]),
			expression("zone", "In", ["a"]),
		]}]),
		{"nodeSelector": {"kubernetes.io/arch": "arm64", "disk": "ssd"}, "os": {"name": "linux"}},
	)
	arch.selectors(spec) == {
		"nodeSelector kubernetes.io/arch=arm64",
		"node affinity kubernetes.io/arch In [arm64, s390x]",
		"os.name linux",
	}
	arch.selectors({}) == set()
}

test_words if {
	arch.words({"linux/arm64", "linux/amd64", "windows/amd64"}) == "amd64, arm64, windows/amd64"
	arch.words(set()) == "none"
}

test_terms_are_alternatives if {
	term := {"matchExpressions": [expression("kubernetes.io/arch", "In", ["arm64"])]}
	arch.terms(affinity([term, {}])) == [term, {}]
	arch.terms({}) == []
	arch.with_terms(affinity([{}, {}]), [term]) == affinity([term])
	arch.with_terms({"nodeName": "a"}, [term]) == object.union(affinity([term]), {"nodeName": "a"})
}
