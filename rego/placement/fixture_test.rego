package archkeeper.placement_test

import data.archkeeper.placement

# What the tests share: images, pods and a decision about them.

known(platforms) := {
	"status": "known",
	"architectures": [split(p, "/")[1] | some p in platforms; startswith(p, "linux/")],
	"platforms": platforms,
}

amd64 := known(["linux/amd64"])

arm64 := known(["linux/arm64"])

both := known(["linux/amd64", "linux/arm64"])

lopsided := known(["linux/amd64", "linux/arm64", "windows(10.0.17763.1)/amd64"])

any := {"status": "any"}

waiting := {"status": "unknown", "class": "timeout", "retryable": true, "message": "no answer within 5s"}

broken := {"status": "unknown", "class": "malformed", "retryable": false, "message": "no reference"}

gates := [{"name": "archkeeper.io/architecture"}]

pod_of(spec, images) := {
	"metadata": {"name": "p", "namespace": "ns"},
	"spec": object.union({"containers": [{"name": ref, "image": ref} | some ref, _ in images]}, spec),
}

ask(spec, images) := {"phase": "admit", "controller_alive": true, "pod": pod_of(spec, images), "images": images}

ask_gated(spec, images) := object.union(
	ask(object.union(spec, {"schedulingGates": gates}), images),
	{"phase": "resolve", "held_seconds": 1},
)

decide(question) := decision if {
	decision := placement.decision with input as question
}

decide_with(question, config) := decide(object.union(question, {"config": config}))

required(terms) := {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}

term(expressions) := {"matchExpressions": expressions}

is_in(key, values) := {"key": key, "operator": "In", "values": values}

zone := is_in("zone", ["a"])

in_amd64 := is_in("kubernetes.io/arch", ["amd64"])

in_both := is_in("kubernetes.io/arch", ["amd64", "arm64"])

on_linux := is_in("kubernetes.io/os", ["linux"])

on_windows := is_in("kubernetes.io/os", ["windows"])

no_common := {"key": "archkeeper.io/no-common-architecture", "operator": "Exists"}

# The patched pod: what the API server would make of the decision.
patched(question) := json.patch(question.pod, decide(question).patch)

terms_after(question) := patched(question).spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms
