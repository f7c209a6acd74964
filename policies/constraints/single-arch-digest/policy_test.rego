package archkeeper.constraints.single_arch_digest_test

import data.archkeeper.constraints.single_arch_digest as policy

amd := {"architectures": ["amd64"], "platforms": ["linux/amd64"], "digest": "sha256:aa", "kind": "manifest"}

multi := {"architectures": ["amd64", "arm64"], "platforms": ["linux/amd64", "linux/arm64"], "digest": "sha256:bb", "kind": "index"}

narrow := {"architectures": ["amd64"], "platforms": ["linux/amd64"], "digest": "sha256:cc", "kind": "index"}

known := {
	"registry.example/app:1@sha256:aa": amd,
	"registry.example/app@sha256:aa": amd,
	"registry.example/app:1@sha256:bb": multi,
	"registry.example/app:1": multi,
	"registry.example/narrow:1@sha256:aa": amd,
	"registry.example/narrow:1": narrow,
	"registry.example/single:1@sha256:aa": amd,
	"registry.example/single:1": amd,
	"registry.example/gone:1@sha256:aa": amd,
}

fake(request) := {"responses": [[key, known[key]] | some key in request.keys], "errors": null, "system_error": ""}

never(_) := 1 / 0

judge(image, parameters) := {violation.msg |
	some violation in policy.violation with input as {
		"review": {"object": {"kind": "Pod", "spec": {"containers": [{"name": "app", "image": image}]}}},
		"parameters": parameters,
	}
		with external_data as fake
}

test_one_architecture_of_an_index if {
	judge("registry.example/app:1@sha256:aa", {}) == {`container "app" image "registry.example/app:1@sha256:aa" is pinned to a single manifest for amd64; tag 1 also supports arm64: pin sha256:bb instead`}
}

test_digests_that_lose_nothing_pass if {
	judge("registry.example/app:1@sha256:bb", {}) == set()
	judge("registry.example/narrow:1@sha256:aa", {}) == set()
	judge("registry.example/single:1@sha256:aa", {}) == set()
}

test_a_tag_that_is_gone_is_no_finding if judge("registry.example/gone:1@sha256:aa", {}) == set()

test_a_digest_without_a_tag if {
	judge("registry.example/app@sha256:aa", {}) == set()
	judge("registry.example/app@sha256:aa", {"untagged": "deny"}) == {`container "app" image "registry.example/app@sha256:aa" is pinned to a single manifest for amd64, without a tag that tells what was meant`}
	judge("registry.example/app:1@sha256:bb", {"untagged": "deny"}) == set()
}

test_a_digest_that_is_not_known if {
	judge("registry.example/new:1@sha256:aa", {}) == {`undetermined: container "app" image "registry.example/new:1@sha256:aa": internal: Provider "archkeeper" left the image out of its answer`}
	judge("registry.example/new:1@sha256:aa", {"onUndetermined": "allow"}) == set()
}

test_warn_speaks_of_undetermined_images_alone if {
	judge("registry.example/app:1@sha256:aa", {"onUndetermined": "warn"}) == set()
	judge("registry.example/app@sha256:aa", {"onUndetermined": "warn", "untagged": "deny"}) == set()
}

test_images_without_a_digest_cost_no_call if {
	policy.violation == set() with input as {"review": {"object": {"kind": "Pod", "spec": {"containers": [{"name": "app", "image": "registry.example/app:1"}]}}}}
		with external_data as never
}

test_exempt_registries_cost_no_call if {
	policy.violation == set() with input as {
		"review": {"object": {"kind": "Pod", "spec": {"containers": [{"name": "app", "image": "registry.example/app:1@sha256:aa"}]}}},
		"parameters": {"exemptRegistries": ["registry.example"]},
	}
		with external_data as never
}
