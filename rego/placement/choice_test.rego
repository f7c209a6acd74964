package archkeeper.placement_test

import data.archkeeper.placement

choice_cases := {
	"nodeSelector": {"spec": {"nodeSelector": {"kubernetes.io/arch": "amd64"}}, "chooses": true},
	"In": {"spec": required([term([in_amd64])]), "chooses": true},
	"NotIn": {"spec": required([term([object.union(in_amd64, {"operator": "NotIn"})])]), "chooses": false},
	"Exists": {"spec": required([term([{"key": "kubernetes.io/arch", "operator": "Exists"}])]), "chooses": false},
	"another key": {"spec": required([term([zone])]), "chooses": false},
}

test_a_choice_is_nodeSelector_or_In if {
	got := {name |
		some name, tc in choice_cases
		placement.chooses(0, "kubernetes.io/arch") with input as {"pod": {"spec": tc.spec}}
	}
	got == {name | some name, tc in choice_cases; tc.chooses}
}

operator_cases := {
	"In, listed": {"operator": "In", "values": ["v"], "admits": true},
	"In, not listed": {"operator": "In", "values": ["w"], "admits": false},
	"NotIn, listed": {"operator": "NotIn", "values": ["v"], "admits": false},
	"NotIn, not listed": {"operator": "NotIn", "values": ["w"], "admits": true},
	"Exists": {"operator": "Exists", "admits": true},
	"DoesNotExist": {"operator": "DoesNotExist", "admits": false},
	"Gt": {"operator": "Gt", "values": ["1"], "admits": false},
	"Lt": {"operator": "Lt", "values": ["1"], "admits": false},
	"another key": {"key": "zone", "operator": "In", "values": ["w"], "admits": true},
}

test_operators_leave_values_open if {
	got := {name |
		some name, tc in operator_cases
		placement.admits(object.union({"key": "k"}, object.remove(tc, ["admits"])), "k", "v")
	}
	got == {name | some name, tc in operator_cases; tc.admits}
}

test_an_empty_term_is_no_alternative if {
	alternatives := placement.alternatives with input as {"pod": {"spec": required([{}, term([zone]), {"matchExpressions": []}, {"matchFields": [{}]}])}}
	object.keys(alternatives) == {1, 3}
}

test_no_affinity_is_one_alternative if {
	placement.alternatives == {-1: {}} with input as {"pod": {"spec": {}}}
	placement.alternatives == {} with input as {"pod": {"spec": required([])}}
}

test_a_contradiction_is_left_to_the_user[name] if {
	some name, spec in {
		"nodeSelector": {"nodeSelector": {"kubernetes.io/arch": "arm64"}},
		"In": required([term([is_in("kubernetes.io/arch", ["arm64"])])]),
		"spec.os": {"os": {"name": "windows"}},
		"nodeSelector os": {"nodeSelector": {"kubernetes.io/os": "windows"}},
		"a term's os": required([term([on_windows])]),
	}
	d := decide(ask(spec, {"a": amd64}))
	d.action == "ignore"
	d.reason == "ArchitectureContradiction"
	d.architectures == []
	d.patch == []
}

test_one_contradicting_term_of_several_is_a_remark if {
	d := decide(ask(required([term([is_in("kubernetes.io/arch", ["s390x"])]), term([zone])]), {"a": both}))
	d.action == "place"
	d.architectures == ["amd64", "arm64"]
	contains(d.message, "term 0 chooses nodes that the images do not run on")
}

test_an_In_wider_than_the_images_is_a_remark if {
	d := decide(ask(required([term([is_in("kubernetes.io/arch", ["amd64", "s390x"])])]), {"a": both}))
	d.reason == "UserArchitecture"
	d.architectures == ["amd64"]
	contains(d.message, "the pod also allows s390x")
}

test_the_users_choice_counts_when_images_are_unknown if {
	d := decide(ask({"nodeSelector": {"kubernetes.io/arch": "arm64"}}, {"a": waiting}))
	d.action == "ignore"
	d.architectures == ["arm64"]
	e := decide(ask(required([term([in_both])]), {"a": waiting, "b": amd64}))
	e.architectures == ["amd64"]
}
