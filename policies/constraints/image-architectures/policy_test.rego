package archkeeper.constraints.image_architectures_test

import data.archkeeper.constraints.image_architectures as policy

images := {
	"registry.example/multi:1": {"architectures": ["amd64", "arm64"], "platforms": ["linux/amd64", "linux/arm64"], "kind": "index"},
	"registry.example/amd:1": {"architectures": ["amd64"], "platforms": ["linux/amd64"], "kind": "manifest"},
	"registry.example/arm:1": {"architectures": ["arm64"], "platforms": ["linux/arm64"], "kind": "manifest"},
	"registry.example/windows:1": {"architectures": [], "platforms": ["windows(10.0.20348.1)/amd64"], "kind": "manifest"},
	"registry.example/bundle:1": {"architectures": [], "platforms": [], "contentOnly": true, "kind": "manifest"},
}

errors := {
	"registry.example/signature:1": "not-runnable: attestations alone",
	"registry.example/broken:1": "invalid-content: the manifest is not JSON",
}

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

pod(names) := pod_with(names, {})

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

reasons(violations) := {[violation.details.reason, violation.details.container] | some violation in violations}

messages(violations) := {violation.msg | some violation in violations}

test_images_that_share_an_architecture_pass if {
	judge(pod(["multi", "arm"]), {}) == set()
	judge(pod(["windows"]), {}) == set()
	judge(pod(["bundle", "arm"]), {}) == set()
	judge(pod(["bundle"]), {}) == set()
}

test_images_that_share_none_are_named if {
	violations := judge(pod(["amd", "arm", "multi"]), {})
	reasons(violations) == {
		["NoCommonArchitecture", "amd"],
		["NoCommonArchitecture", "arm"],
		["NoCommonArchitecture", "multi"],
	}
	`container "arm" image "registry.example/arm:1" supports arm64, but no architecture is supported by all images of the pod` in messages(violations)
}

test_linux_and_windows_share_nothing if {
	count(judge(pod(["amd", "windows"]), {})) == 2
}

test_a_required_architecture_that_is_missing if {
	violations := judge(pod(["multi", "amd", "bundle"]), {"architectures": ["amd64", "linux/arm64"]})
	messages(violations) == {`container "amd" image "registry.example/amd:1" supports amd64; required are amd64, arm64; missing arm64`}
	reasons(violations) == {["MissingArchitecture", "amd"]}
}

test_a_node_selector_that_contradicts if {
	violations := judge(pod_with(["multi", "amd"], {"nodeSelector": {"kubernetes.io/arch": "arm64"}}), {})
	messages(violations) == {`container "amd" image "registry.example/amd:1" supports amd64, but the pod asks for nodeSelector kubernetes.io/arch=arm64`}
	reasons(violations) == {["SelectorConflict", "amd"]}
}

test_selectors_that_only_together_contradict_name_all_images if {
	spec := {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{
		"key": "kubernetes.io/arch",
		"operator": "NotIn",
		"values": ["amd64"],
	}]}]}}}}
	all := object.union(images, {"registry.example/other:1": {"architectures": ["amd64", "s390x"], "platforms": ["linux/amd64", "linux/s390x"]}})
	violations := judge(pod_with(["multi", "other"], spec), {}) with data.archkeeper.constraints.image_architectures_test.images as all
	reasons(violations) == {["SelectorConflict", "multi"], ["SelectorConflict", "other"]}
}

test_selectors_that_fit_pass if {
	judge(pod_with(["multi"], {"nodeSelector": {"kubernetes.io/arch": "arm64"}}), {}) == set()
	judge(pod_with(["windows"], {"os": {"name": "windows"}}), {}) == set()
}

test_content_that_cannot_run_is_denied_whatever_is_undetermined if {
	violations := judge(pod(["signature"]), {"onUndetermined": "allow"})
	messages(violations) == {`container "signature" image "registry.example/signature:1" cannot run anywhere: attestations alone`}
}

test_undetermined_is_denied_by_default if {
	violations := judge(pod(["amd", "slow", "broken"]), {})
	messages(violations) == {
		`undetermined: container "slow" image "registry.example/slow:1": timeout: too late`,
		`undetermined: container "broken" image "registry.example/broken:1": invalid-content: the manifest is not JSON`,
	}
	{violation.details.retryable | some violation in violations} == {true, false}
}

test_undetermined_can_be_allowed if judge(pod(["amd", "slow"]), {"onUndetermined": "allow"}) == set()

test_an_unknown_image_hides_no_known_conflict if {
	violations := judge(pod(["amd", "arm", "slow"]), {"onUndetermined": "allow"})
	reasons(violations) == {["NoCommonArchitecture", "amd"], ["NoCommonArchitecture", "arm"]}
}

test_warn_speaks_of_undetermined_images_alone if {
	violations := judge(pod(["amd", "arm", "slow", "signature"]), {"onUndetermined": "warn"})
	reasons(violations) == {["Undetermined", "slow"]}
}

test_exempt_registries_cost_no_call if {
	policy.violation == set() with input as {
		"review": {"object": pod(["amd", "arm"])},
		"parameters": {"exemptRegistries": ["registry.example"]},
	}
		with external_data as never
}

test_an_update_that_changes_no_image_costs_no_call if {
	policy.violation == set() with input as {"review": {"operation": "UPDATE", "object": pod(["amd", "arm"]), "oldObject": pod(["amd", "arm"])}}
		with external_data as never
}

test_a_provider_that_is_down_is_undetermined_for_every_container if {
	violations := policy.violation with input as {"review": {"object": pod(["amd", "arm"])}}
		with external_data as never
	reasons(violations) == {["Undetermined", "amd"], ["Undetermined", "arm"]}
}
