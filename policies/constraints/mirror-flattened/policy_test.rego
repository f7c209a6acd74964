package archkeeper.constraints.mirror_flattened_test

import data.archkeeper.constraints.mirror_flattened as policy

multi := {"architectures": ["amd64", "arm64"], "platforms": ["linux/amd64", "linux/arm64"], "kind": "index"}

amd := {"architectures": ["amd64"], "platforms": ["linux/amd64"], "kind": "manifest"}

known := {
	"busybox:1": multi,
	"docker.io/library/busybox:1": multi,
	"mirror.example/hub/library/busybox:1": amd,
	"grafana/grafana:1": multi,
	"mirror.example/hub/grafana/grafana:1": multi,
	"docker.io/special/app:1": multi,
	"special.example/app:1": amd,
}

fake(request) := {"responses": [[key, known[key]] | some key in request.keys], "errors": null, "system_error": ""}

# Asked about sources, the first knows mirrors alone.
two(request) := fake(request) if {
	request.provider == "second"
	every key in request.keys {
		not startswith(key, "mirror.example")
	}
} else := fake(request) if {
	every key in request.keys {
		startswith(key, "mirror.example")
	}
}

never(_) := 1 / 0

hub := {"mirrors": [
	{"source": "docker.io", "mirror": "mirror.example/hub"},
	{"source": "docker.io/special", "mirror": "special.example"},
]}

review(image) := {"object": {"kind": "Pod", "spec": {"containers": [{"name": "app", "image": image}]}}}

judge(image, parameters) := {violation.msg |
	some violation in policy.violation with input as {"review": review(image), "parameters": object.union(hub, parameters)}
		with external_data as fake
}

flattened(image, source) := sprintf("container \"app\" image %q: mirror mirror.example/hub/library/busybox:1 supports amd64, but its source %s also supports arm64", [image, source])

test_an_image_of_the_source if judge("busybox:1", {}) == {flattened("busybox:1", "busybox:1")}

test_an_image_of_the_mirror if {
	image := "mirror.example/hub/library/busybox:1"
	judge(image, {}) == {flattened(image, "docker.io/library/busybox:1")}
}

test_a_whole_copy_passes if judge("grafana/grafana:1", {}) == set()

test_the_closest_source_counts if {
	judge("docker.io/special/app:1", {}) == {`container "app" image "docker.io/special/app:1": mirror special.example/app:1 supports amd64, but its source docker.io/special/app:1 also supports arm64`}
}

test_images_elsewhere_cost_no_call if {
	policy.violation == set() with input as {"review": review("registry.example/app:1"), "parameters": hub}
		with external_data as never
}

test_exempt_registries_cost_no_call if {
	policy.violation == set() with input as {
		"review": review("busybox:1"),
		"parameters": object.union(hub, {"exemptRegistries": ["docker.io"]}),
	}
		with external_data as never
}

test_two_providers if {
	violations := policy.violation with input as {"review": review("busybox:1"), "parameters": object.union(hub, {"sourceProvider": "second"})}
		with external_data as two
	{violation.msg | some violation in violations} == {flattened("busybox:1", "busybox:1")}
}

test_both_locations_can_be_undetermined if {
	judge("nginx:1", {}) == {
		`undetermined: container "app" image "nginx:1": internal: Provider "archkeeper" left the image out of its answer`,
		`undetermined: container "app" image "mirror.example/hub/library/nginx:1": internal: Provider "archkeeper" left the image out of its answer`,
	}
	judge("nginx:1", {"onUndetermined": "allow"}) == set()
}

test_warn_speaks_of_undetermined_images_alone if judge("busybox:1", {"onUndetermined": "warn"}) == set()
