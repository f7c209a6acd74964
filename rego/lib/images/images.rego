# METADATA
# title: Images of a workload
# description: |
#   Finds every image that a Kubernetes object would run: containers, init
#   containers (sidecars included), ephemeral containers and image volumes, of a
#   Pod or of the pod template of a workload. Nothing here asks anybody anything.
# scope: package
package lib.images

# METADATA
# description: |
#   The images of a Kubernetes object, one member a use: {"kind","name","image"}.
#   kind is "container", "init container", "ephemeral container" or "image volume".
#   A container without an image (a workload may leave it out) is no member.
# scope: document
of(object_) := uses if {
	spec := pod_spec(object_)
	uses := _containers(spec) | _image_volumes(spec)
}

# METADATA
# description: |
#   The pod spec inside a Pod, PodTemplate, CronJob or any object with
#   spec.template.spec (Deployment, StatefulSet, DaemonSet, ReplicaSet, Job, ...).
#   An empty object when there is none.
# scope: document
pod_spec(object_) := object_.spec if {
	object_.kind == "Pod"
	is_object(object_.spec)
} else := object_.spec.jobTemplate.spec.template.spec if {
	is_object(object_.spec.jobTemplate.spec.template.spec)
} else := object_.spec.template.spec if {
	is_object(object_.spec.template.spec)
} else := object_.template.spec if {
	is_object(object_.template.spec)
} else := {}

# METADATA
# description: |
#   The images that an admission review must be judged by, as `of` gives them.
#   None for DELETE, and none for an UPDATE whose images are those of the old
#   object: nothing new would run, so nobody is asked. Audit and gator give no
#   operation and are judged whole.
# scope: document
under_review(review) := uses if {
	object.get(review, "operation", "") != "DELETE"
	uses := of(object.get(review, "object", {}))
	not _unchanged(review, uses)
} else := set()

# METADATA
# description: |
#   The members of uses that none of the prefixes exempts. A prefix is a
#   registry host ("registry.example:5000") or a host and the first parts of a
#   repository ("docker.io/library"); it ends at a part's border, so that
#   "docker.io/lib" exempts nothing of docker.io/library.
# scope: document
not_exempt(uses, prefixes) := {use |
	some use in uses
	not exempt(use.image, prefixes)
}

# METADATA
# description: Whether one of the prefixes covers the repository of an image reference.
# scope: document
exempt(image, prefixes) if {
	count(prefixes) > 0
	name := repository(image)
	some prefix in prefixes
	_covers(trim_suffix(prefix, "/"), name)
}

# METADATA
# description: |
#   Registry and repository of an image reference, without tag and digest, with
#   the hub's short forms written out: "busybox:1" gives "docker.io/library/busybox".
#   Follows the reference grammar of github.com/distribution/reference. Text that
#   is no reference gives some text back: the provider is the judge of that.
# scope: document
repository(image) := name if {
	untagged := _without_tag(split(image, "@")[0])
	parts := split(untagged, "/")
	count(parts) > 1
	_is_host(parts[0])
	name := concat("/", array.concat([_host(parts[0])], _hub_path(_host(parts[0]), array.slice(parts, 1, count(parts)))))
} else := concat("/", array.concat(["docker.io"], _hub_path("docker.io", split(_without_tag(split(image, "@")[0]), "/"))))

# METADATA
# description: |
#   An image reference without its tag and digest, as it was written.
# scope: document
location(image) := _without_tag(split(image, "@")[0])

# METADATA
# description: |
#   The reference of the same image (tag and digest kept) at another location: the
#   prefix from of its repository replaced by to. Undefined when from does not cover it.
# scope: document
moved(image, from, to) := concat("", [trim_suffix(to, "/"), rest, written]) if {
	exempt(image, [from])
	rest := trim_prefix(repository(image), trim_suffix(from, "/"))
	written := substring(image, count(location(image)), -1)
}

# METADATA
# description: The tag of an image reference, "" when it has none.
# scope: document
tag(image) := substring(rest, count(_without_tag(rest)) + 1, -1) if {
	rest := split(image, "@")[0]
	rest != _without_tag(rest)
} else := ""

# METADATA
# description: The digest ("sha256:...") of an image reference, "" when it has none.
# scope: document
digest(image) := parts[1] if {
	parts := split(image, "@")
	count(parts) == 2
} else := ""

# METADATA
# description: |
#   How to name a use in a message: `container "web" image "registry.example/web:1"`.
# scope: document
label(use) := sprintf("%s %q image %q", [use.kind, use.name, use.image])

_containers(spec) := {{"kind": kind, "name": object.get(container, "name", ""), "image": container.image} |
	some field, kind in {
		"containers": "container",
		"initContainers": "init container",
		"ephemeralContainers": "ephemeral container",
	}
	some container in _list(spec, field)
	_filled(container.image)
}

_image_volumes(spec) := {{"kind": "image volume", "name": object.get(volume, "name", ""), "image": volume.image.reference} |
	some volume in _list(spec, "volumes")
	_filled(volume.image.reference)
}

_list(spec, field) := items if {
	items := spec[field]
	is_array(items)
} else := []

_filled(text) if {
	is_string(text)
	text != ""
}

_unchanged(review, uses) if {
	object.get(review, "operation", "") == "UPDATE"
	is_object(review.oldObject)
	of(review.oldObject) == uses
}

_covers(prefix, name) if prefix == name

_covers(prefix, name) if {
	prefix != ""
	startswith(name, concat("", [prefix, "/"]))
}

_without_tag(rest) := untagged if {
	parts := split(rest, "/")
	last := parts[count(parts) - 1]
	at := indexof(last, ":")
	at >= 0
	untagged := substring(rest, 0, (count(rest) - count(last)) + at)
} else := rest

# The first part is a host when it could not be a part of a repository.
_is_host(part) if contains(part, ".")

_is_host(part) if contains(part, ":")

_is_host("localhost")

_is_host(part) if lower(part) != part

_host(part) := "docker.io" if {
	part in {"index.docker.io", "registry-1.docker.io"}
} else := part

_hub_path(host, parts) := array.concat(["library"], parts) if {
	host == "docker.io"
	count(parts) == 1
} else := parts
