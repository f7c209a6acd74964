package archkeeper.placement_test

import data.archkeeper.placement

not_placed := {
	"a pod with a node": {"reason": "NodeNameSet", "change": {"pod": {"spec": {"nodeName": "n"}}}},
	"a pod of a DaemonSet": {"reason": "DaemonSetPod", "change": {"pod": {"metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "controller": true, "name": "d"}]}}}},
	"a pod that opted out": {"reason": "OptedOut", "change": {"pod": {"metadata": {"labels": {"archkeeper.io/placement": "disabled"}}}}},
	"a namespace that opted out": {"reason": "OptedOut", "change": {"namespace": {"metadata": {"name": "ns", "labels": {"archkeeper.io/placement": "disabled"}}}}},
	"a system namespace": {"reason": "ExcludedNamespace", "change": {"pod": {"metadata": {"namespace": "kube-system"}}}},
	"a listed namespace": {"reason": "ExcludedNamespace", "change": {"config": {"excludedNamespaces": ["n?"]}}},
	"a pod of the control plane": {"reason": "ControlPlanePod", "change": {"pod": {"spec": {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}}}},
	"a pod of the old control plane label": {"reason": "ControlPlanePod", "change": {"pod": {"spec": {"nodeSelector": {"node-role.kubernetes.io/master": ""}}}}},
	"a pod that the selector misses": {"reason": "NotSelected", "change": {"config": {"podSelector": {"matchLabels": {"place": "me"}}}}},
	"a namespace that the selector misses": {"reason": "NotSelected", "change": {"config": {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}}},
}

test_not_ours_at_admission_is_ignored_unchanged[name] if {
	some name, tc in not_placed
	d := decide(object.union(ask({}, {"a": both}), tc.change))
	d.action == "ignore"
	d.reason == tc.reason
	d.patch == []
}

test_not_ours_with_our_gate_is_released_at_once[name] if {
	some name, tc in not_placed
	d := decide(object.union(ask_gated({}, {"a": waiting}), tc.change))
	d.action == "release"
	d.reason == tc.reason
	d.patch == [{"op": "remove", "path": "/spec/schedulingGates"}]
}

placed := {
	"a DaemonSet of another group": {"pod": {"metadata": {"ownerReferences": [{"apiVersion": "x/v1", "kind": "DaemonSet", "controller": true, "name": "d"}]}}},
	"a DaemonSet that only owns": {"pod": {"metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d"}]}}},
	"an empty node name": {"pod": {"spec": {"nodeName": ""}}},
	"a host name": {"pod": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "n"}}}},
	"another value of the opt-out label": {"pod": {"metadata": {"labels": {"archkeeper.io/placement": "enabled"}}}},
}

test_ours[name] if {
	some name, change in placed
	decide(object.union(ask({}, {"a": both}), change)).action == "place"
}

test_the_namespace_object_names_the_namespace if {
	decide(object.union(ask({}, {"a": both}), {"namespace": {"metadata": {"name": "kube-system"}}})).reason == "ExcludedNamespace"
}

selector_cases := {
	"In": {"operator": "In", "values": ["b"], "key": "a", "matches": true},
	"In, another value": {"operator": "In", "values": ["c"], "key": "a", "matches": false},
	"NotIn": {"operator": "NotIn", "values": ["b"], "key": "a", "matches": false},
	"NotIn, another value": {"operator": "NotIn", "values": ["c"], "key": "a", "matches": true},
	"NotIn, absent": {"operator": "NotIn", "values": ["c"], "key": "x", "matches": true},
	"Exists": {"operator": "Exists", "key": "a", "matches": true},
	"Exists, absent": {"operator": "Exists", "key": "x", "matches": false},
	"DoesNotExist": {"operator": "DoesNotExist", "key": "a", "matches": false},
	"DoesNotExist, absent": {"operator": "DoesNotExist", "key": "x", "matches": true},
}

test_label_selectors if {
	got := {name |
		some name, tc in selector_cases
		placement.matches({"matchLabels": {"one": "1"}, "matchExpressions": [object.remove(tc, ["matches"])]}, {"a": "b", "one": "1"})
	}
	got == {name | some name, tc in selector_cases; tc.matches}
}

test_an_extension_exempts if {
	d := decide(ask({}, {"a": both})) with data.archkeeper.extension.exempt as {"virtual machines are placed elsewhere"}
	d.action == "ignore"
	d.reason == "Exempt"
	d.message == "virtual machines are placed elsewhere"
}
