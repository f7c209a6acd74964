package archkeeper.constraints.require_multiarch_test

import data.archkeeper.constraints.require_multiarch as policy

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

messages(violations) := {violation.msg | some violation in violations}

test_images_that_support_all_pass if judge(pod(["multi", "bundle"]), {}) == set()

test_an_image_that_lacks_one if {
	messages(judge(pod(["multi", "amd"]), {})) == {`container "amd" image "registry.example/amd:1" supports amd64; required are amd64, arm64; missing arm64`}
}

test_the_list_can_be_chosen if {
	judge(pod(["amd"]), {"architectures": ["amd64"]}) == set()
	count(judge(pod(["multi"]), {"architectures": ["linux/s390x"]})) == 1
}

test_grace_by_repository if {
	judge(pod(["amd", "arm"]), {"grace": [{"repository": "registry.example"}]}) == set()
	count(judge(pod(["amd", "arm"]), {"grace": [{"repository": "registry.example/amd"}]})) == 1
}

test_grace_for_what_may_be_missing if {
	judge(pod(["amd"]), {"grace": [{"repository": "registry.example/amd", "missing": ["arm64"]}]}) == set()
	count(judge(pod(["amd"]), {"grace": [{"repository": "registry.example/amd", "missing": ["s390x"]}]})) == 1
}

day := time.parse_rfc3339_ns("2026-06-30T23:59:59Z")

test_grace_lasts_the_whole_last_day if {
	grace := {"grace": [{"repository": "registry.example/amd", "until": "2026-06-30"}]}
	judge(pod(["amd"]), grace) == set() with time.now_ns as day
	count(judge(pod(["amd"]), grace)) == 1 with time.now_ns as day + 1000000000
}

test_a_day_that_is_no_date_ends_the_grace if {
	count(judge(pod(["amd"]), {"grace": [{"repository": "registry.example/amd", "until": "2026-02-31"}]})) == 1
}

test_content_that_cannot_run_is_reported if {
	messages(judge(pod(["signature"]), {"onUndetermined": "allow"})) == {`container "signature" image "registry.example/signature:1" cannot run anywhere: attestations alone`}
}

test_warn_speaks_of_undetermined_images_alone if {
	count(judge(pod(["amd", "signature", "slow"]), {"onUndetermined": "warn"})) == 1
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
