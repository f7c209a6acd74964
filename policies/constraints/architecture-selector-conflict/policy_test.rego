package archkeeper.constraints.architecture_selector_conflict_test

import data.archkeeper.constraints.architecture_selector_conflict as policy

images := {
	"registry.example/multi:1": {"architectures": ["amd64", "arm64"], "platforms": ["linux/amd64", "linux/arm64"], "kind": "index"},
	"registry.example/amd:1": {"architectures": ["amd64"], "platforms": ["linux/amd64"], "kind": "manifest"},
	"registry.example/arm:1": {"architectures": ["arm64"], "platforms": ["linux/arm64"], "kind": "manifest"},
	"registry.example/bundle:1": {"architectures": [], "platforms": [], "contentOnly": true, "kind": "manifest"},
}

errors := {"registry.example/signature:1": "not-runnable: attestations alone"}

fake(request) := {
	"responses": [[key, images[key]] | some key in request.keys],
	"errors": [[key, errors[key]] | some key in request.keys],
	"status_code": 200,
	"system_error": json.marshal({"v": 1, "undetermined": [{"key": key, "class": "timeout", "message": "too late"} |
		some key in request.keys
		contains(key, "slow")
	]}),
} if {
	is_array(request.keys)
}

never(_) := 1 / 0

pod(names) := pod_with(names, {"nodeSelector": {"kubernetes.io/arch": "arm64"}})

pod_with(names, spec) := {"kind": "Pod", "spec": object.union(spec, {"containers": [container |
	some name in names
	container := {"name": name, "image": sprintf("registry.example/%s:1", [name])}
]})}

judge(object_, parameters) := violations if {
	violations := policy.violation with input as {
		"review": {"operation": "CREATE", "namespace": "shop", "object": object_},
		"parameters": parameters,
	}
		with external_data as fake
}

messages(violations) := {violation.msg | some violation in violations}

affinity(values) := {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{
	"key": "kubernetes.io/arch",
	"operator": "In",
	"values": [value],
}]} |
	some value in values
]}}}}

test_selectors_that_fit_pass if judge(pod(["multi", "arm", "bundle"]), {}) == set()

test_a_contradiction_names_selector_and_images if {
	messages(judge(pod(["amd", "multi"]), {})) == {`the pod asks for nodeSelector kubernetes.io/arch=arm64, but its images run together on amd64: container "amd" image "registry.example/amd:1" supports amd64; container "multi" image "registry.example/multi:1" supports amd64, arm64`}
}

test_a_pod_that_asks_for_nothing_costs_no_call if {
	policy.violation == set() with input as {"review": {"object": pod_with(["amd", "slow"], {})}}
		with external_data as never
}

test_one_term_that_can_be_met_is_enough if judge(pod_with(["amd"], affinity(["arm64", "amd64"])), {}) == set()

test_every_term_can_be_judged if {
	messages(judge(pod_with(["amd"], affinity(["arm64", "amd64"])), {"everyTerm": true})) == {"node selector term 0 can never be met: it asks for node affinity kubernetes.io/arch In [arm64], but the images run together on amd64"}
}

test_a_whole_conflict_is_said_once if {
	count(judge(pod_with(["amd"], affinity(["arm64", "s390x"])), {"everyTerm": true})) == 1
}

test_images_that_share_nothing_are_named if {
	messages(judge(pod(["amd", "arm"]), {})) == {`the pod asks for nodeSelector kubernetes.io/arch=arm64, but its images run together on none: container "amd" image "registry.example/amd:1" supports amd64; container "arm" image "registry.example/arm:1" supports arm64`}
}

test_content_alone_contradicts_nothing if judge(pod(["bundle"]), {}) == set()

test_warn_speaks_of_undetermined_images_alone if {
	count(judge(pod(["amd", "slow"]), {"onUndetermined": "warn", "everyTerm": true})) == 1
}

test_undetermined_is_reported_by_default if {
	messages(judge(pod(["multi", "slow"]), {})) == {`undetermined: container "slow" image "registry.example/slow:1": timeout: too late`}
}

test_undetermined_can_be_allowed if judge(pod(["multi", "slow"]), {"onUndetermined": "allow"}) == set()

test_no_call_without_a_change if {
	policy.violation == set() with input as {"review": {"operation": "UPDATE", "object": pod(["amd"]), "oldObject": pod(["amd"])}}
		with external_data as never
	policy.violation == set() with input as {"review": {"operation": "DELETE", "object": pod(["amd"]), "oldObject": pod(["amd"])}}
		with external_data as never
}

test_exempt_registries_cost_no_call if {
	policy.violation == set() with input as {
		"review": {"object": pod(["amd", "slow"])},
		"parameters": {"exemptRegistries": ["registry.example"]},
	}
		with external_data as never
}
