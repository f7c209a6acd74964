package lib.images_test

import data.lib.images

pod := {
	"kind": "Pod",
	"spec": {
		"containers": [
			{"name": "web", "image": "registry.example/web:1"},
			{"name": "later"},
		],
		"initContainers": [{"name": "proxy", "image": "registry.example/proxy:1", "restartPolicy": "Always"}],
		"ephemeralContainers": [{"name": "debug", "image": "busybox"}],
		"volumes": [
			{"name": "model", "image": {"reference": "registry.example/model:1"}},
			{"name": "empty", "image": {}},
			{"name": "scratch", "emptyDir": {}},
		],
	},
}

uses := {
	{"kind": "container", "name": "web", "image": "registry.example/web:1"},
	{"kind": "init container", "name": "proxy", "image": "registry.example/proxy:1"},
	{"kind": "ephemeral container", "name": "debug", "image": "busybox"},
	{"kind": "image volume", "name": "model", "image": "registry.example/model:1"},
}

test_every_kind_of_use_is_found if images.of(pod) == uses

test_workloads_are_read_through_their_template if {
	images.of({"kind": "Deployment", "spec": {"template": {"spec": pod.spec}}}) == uses
	images.of({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": {"spec": pod.spec}}}}}) == uses
	images.of({"kind": "PodTemplate", "template": {"spec": pod.spec}}) == uses
}

test_an_object_without_pods_has_no_images if {
	images.of({"kind": "ConfigMap", "data": {}}) == set()
	images.of({}) == set()
}

test_null_lists_are_empty if images.of({"kind": "Pod", "spec": {"containers": null, "volumes": null}}) == set()

test_a_create_is_judged if images.under_review({"operation": "CREATE", "object": pod, "oldObject": null}) == uses

test_audit_and_gator_are_judged if images.under_review({"object": pod}) == uses

test_a_delete_is_not_judged if images.under_review({"operation": "DELETE", "object": pod, "oldObject": pod}) == set()

test_an_update_of_the_same_images_is_not_judged if {
	labelled := object.union(pod, {"metadata": {"labels": {"a": "b"}}})
	images.under_review({"operation": "UPDATE", "object": labelled, "oldObject": pod}) == set()
}

test_an_update_of_an_image_is_judged_whole if {
	old := json.patch(pod, [{"op": "remove", "path": "/spec/ephemeralContainers"}])
	images.under_review({"operation": "UPDATE", "object": pod, "oldObject": old}) == uses
}

test_an_update_without_the_old_object_is_judged if {
	images.under_review({"operation": "UPDATE", "object": pod, "oldObject": null}) == uses
}

repositories := {
	"busybox": "docker.io/library/busybox",
	"busybox:1.36": "docker.io/library/busybox",
	"busybox@sha256:aa": "docker.io/library/busybox",
	"grafana/grafana:11": "docker.io/grafana/grafana",
	"docker.io/busybox": "docker.io/library/busybox",
	"index.docker.io/library/busybox:1": "docker.io/library/busybox",
	"registry.example/team/app:1@sha256:aa": "registry.example/team/app",
	"registry.example:5000/app": "registry.example:5000/app",
	"localhost/app:1": "localhost/app",
	"localhost:5000/app:1": "localhost:5000/app",
	"Host/app": "Host/app",
	"": "docker.io/library/",
}

test_repositories_are_written_out if {
	every image, want in repositories {
		images.repository(image) == want
	}
}

test_tag_and_digest if {
	images.tag("registry.example:5000/app") == ""
	images.tag("registry.example:5000/app:1.2@sha256:aa") == "1.2"
	images.tag("busybox:1") == "1"
	images.digest("registry.example:5000/app:1.2@sha256:aa") == "sha256:aa"
	images.digest("busybox:1") == ""
}

test_prefixes_end_at_a_border if {
	images.exempt("busybox", ["docker.io/library"])
	images.exempt("busybox", ["docker.io/library/busybox"])
	images.exempt("registry.example:5000/team/app:1", ["registry.example:5000"])
	images.exempt("registry.example/team/app:1", ["registry.example/team/"])
	not images.exempt("busybox", ["docker.io/lib"])
	not images.exempt("registry.example/team/app", ["registry.example/tea", "", "registry"])
	not images.exempt("registry.example/team/app", [])
}

test_exempt_uses_are_left_out if {
	images.not_exempt(uses, ["registry.example"]) == {{
		"kind": "ephemeral container",
		"name": "debug",
		"image": "busybox",
	}}
}

test_a_label_names_kind_name_and_image if {
	images.label({"kind": "container", "name": "web", "image": "registry.example/web:1"}) == "container \"web\" image \"registry.example/web:1\""
}

test_location_is_what_was_written if {
	images.location("busybox:1@sha256:aa") == "busybox"
	images.location("registry.example:5000/app") == "registry.example:5000/app"
}

test_an_image_moved if {
	images.moved("busybox:1", "docker.io", "mirror.example/hub") == "mirror.example/hub/library/busybox:1"
	images.moved("registry.example/a/b:1@sha256:aa", "registry.example/a/", "m.example/") == "m.example/b:1@sha256:aa"
	images.moved("registry.example/a@sha256:aa", "registry.example/a", "m.example/c") == "m.example/c@sha256:aa"
	not images.moved("registry.example/ab:1", "registry.example/a", "m.example")
}
