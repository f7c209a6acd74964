package lib.provider_test

import data.lib.provider

value := {"architectures": ["amd64"], "platforms": ["linux/amd64"], "digest": "sha256:aa", "kind": "index"}

known := object.union(value, {"status": "known"})

review := {
	"namespace": "shop",
	"object": {
		"kind": "Pod",
		"spec": {
			"serviceAccountName": "till",
			"imagePullSecrets": [{"name": "first"}, {}, {"name": "second"}],
		},
	},
}

# The fakes check what they are asked, as Gatekeeper's builtin would.
good(request) := {
	"responses": [[key, value] | some key in request.keys],
	"errors": [],
	"status_code": 200,
	"system_error": "",
} if {
	is_array(request.keys)
	request.provider == "archkeeper"
}

cached(request) := object.union(good(request), {"status_code": 0})

namespaced(request) := {"responses": [[key, value] | some key in request.keys], "errors": []} if {
	request.provider == "archkeeper-namespaced"
	every key in request.keys {
		json.unmarshal(key).namespace == "shop"
	}
}

never(_) := 1 / 0

unreachable(_) := {
	"responses": null,
	"errors": null,
	"status_code": 500,
	"system_error": "failed to send external data request: dial tcp: connection refused",
}

late(_) := {
	"responses": null,
	"errors": null,
	"status_code": 500,
	"system_error": "failed to send external data request: context deadline exceeded",
}

no_object(_) := {
	"responses": null,
	"errors": null,
	"status_code": 400,
	"system_error": "key is not found in provider cache",
}

empty(_) := {"responses": [], "errors": [], "status_code": 200, "system_error": ""}

no_object_at_all(_) := "nonsense"

system_error := json.marshal({"v": 1, "undetermined": [
	{"key": "slow", "class": "timeout", "message": "registry.example took too long"},
	{"key": "odd", "class": "brand-new", "message": "who knows"},
	{"key": "bare", "class": "timeout"},
]})

partial(_) := {
	"responses": [["good", value]],
	"errors": [["bad", "not-runnable: attestations only"], ["strange", "no idea"], ["other", "brand-new: no idea"]],
	"status_code": 200,
	"system_error": system_error,
}

twice(_) := {
	"responses": [["same", value], ["same", value], ["differs", value], ["differs", {"architectures": [], "platforms": []}], ["broken"], "broken"],
	"errors": [["both", "malformed: no reference"]],
	"system_error": "",
}

shapes(_) := {
	"responses": [
		["bundle", {"architectures": [], "platforms": [], "contentOnly": true, "kind": "manifest"}],
		["text", "a string"],
		["null", null],
		["half", {"architectures": ["amd64"]}],
		["hollow", {"architectures": [], "platforms": []}],
	],
	"errors": null,
	"system_error": "",
}

test_one_call_for_all_images if {
	answers := provider.inspect(review, {"a", "b"}, {}) with external_data as good
	answers == {"a": known, "b": known}
}

test_cached_answers_have_status_0 if {
	provider.inspect(review, {"a"}, {}) == {"a": known} with external_data as cached
}

test_no_images_no_call if {
	provider.inspect(review, set(), {}) == {} with external_data as never
}

test_the_scope_chooses_key_and_provider if {
	answers := provider.inspect(review, {"a", "b"}, {"scope": "namespaced"}) with external_data as namespaced
	answers == {"a": known, "b": known}
}

test_the_provider_can_be_named if {
	config := {"provider": "archkeeper-namespaced", "scope": "namespaced"}
	provider.inspect(review, {"a"}, config) == {"a": known} with external_data as namespaced
	provider.inspect(review, {"a"}, {"provider": "archkeeper"}) == {"a": known} with external_data as good
}

test_structured_key if {
	provider.structured_key(review, "web:1") == `{"image":"web:1","imagePullSecrets":["first","second"],"namespace":"shop","serviceAccount":"till","v":1}`
}

test_structured_key_of_a_bare_object if {
	provider.structured_key({"object": {"kind": "Pod", "metadata": {"namespace": "shop"}}}, "web:1") == `{"image":"web:1","imagePullSecrets":[],"namespace":"shop","serviceAccount":"default","v":1}`
	provider.structured_key({}, "web:1") == `{"image":"web:1","imagePullSecrets":[],"namespace":"default","serviceAccount":"default","v":1}`
}

test_an_image_that_is_a_structured_key_stays_text if {
	key := provider.structured_key(review, `{"image":"x","namespace":"kube-system","v":1}`)
	json.unmarshal(key).namespace == "shop"
}

test_no_connection_is_unknown_for_every_key if {
	answers := provider.lookup("archkeeper", {"a", "b"}) with external_data as unreachable
	answers == {key: {
		"status": "unknown",
		"class": "unreachable",
		"message": `Provider "archkeeper" did not answer: failed to send external data request: dial tcp: connection refused`,
		"retryable": true,
	} |
		some key in {"a", "b"}
	}
}

test_a_late_provider_is_a_timeout if {
	provider.lookup("archkeeper", {"a"}).a.class == "timeout" with external_data as late
}

test_a_missing_provider_object_is_said if {
	answers := provider.lookup("archkeeper", {"a"}) with external_data as no_object
	answers.a.message == `there is no Provider object "archkeeper"`
	answers.a.class == "unreachable"
}

test_an_empty_answer_is_unknown if {
	answers := provider.lookup("archkeeper", {"a"}) with external_data as empty
	answers.a == {
		"status": "unknown",
		"class": "internal",
		"message": `Provider "archkeeper" left the image out of its answer`,
		"retryable": true,
	}
}

test_an_undefined_builtin_is_unknown if {
	provider.lookup("archkeeper", {"a"}).a.status == "unknown" with external_data as never
	provider.lookup("archkeeper", {"a"}).a.status == "unknown" with external_data as no_object_at_all
}

test_one_bad_image_does_not_sink_the_others if {
	keys := {"good", "bad", "strange", "other", "slow", "odd", "bare", "absent"}
	answers := provider.lookup("archkeeper", keys) with external_data as partial
	object.keys(answers) == keys
	answers.good == known
	answers.bad == {"status": "unknown", "class": "not-runnable", "message": "attestations only", "retryable": false}
	answers.strange == {"status": "unknown", "class": "internal", "message": "no idea", "retryable": true}
	answers.other == {"status": "unknown", "class": "internal", "message": "brand-new: no idea", "retryable": true}
	answers.slow == {"status": "unknown", "class": "timeout", "message": "registry.example took too long", "retryable": true}
	answers.odd == {"status": "unknown", "class": "internal", "message": "who knows", "retryable": true}
	answers.bare == {"status": "unknown", "class": "timeout", "message": "", "retryable": true}
	answers.absent.message == `Provider "archkeeper" left the image out of its answer`
}

test_duplicates if {
	answers := provider.lookup("archkeeper", {"same", "differs", "both"}) with external_data as twice
	answers.same == known
	answers.differs.message == "the provider gave two different answers"
	answers.both.class == "malformed"
}

test_shapes_of_values if {
	answers := provider.lookup("archkeeper", {"bundle", "text", "null", "half", "hollow"}) with external_data as shapes
	answers.bundle.status == "any"
	answers.text.class == "internal"
	answers["null"].class == "internal"
	answers.half.class == "internal"
	answers.hollow.class == "internal"
}

test_keys_that_are_no_text_never_reach_gatekeeper if {
	answers := provider.lookup("archkeeper", {"a", 7}) with external_data as good
	answers.a == known
	answers[7] == {"status": "unknown", "class": "malformed", "message": "the key is no text", "retryable": false}
}

uses := {
	{"kind": "container", "name": "web", "image": "good"},
	{"kind": "container", "name": "late", "image": "slow"},
	{"kind": "init container", "name": "later", "image": "slow"},
	{"kind": "container", "name": "signed", "image": "signature"},
}

some_answers := {
	"good": known,
	"slow": {"status": "unknown", "class": "timeout", "message": "too late", "retryable": true},
	"signature": {"status": "unknown", "class": "not-runnable", "message": "no", "retryable": false},
}

test_undetermined_uses if {
	violations := provider.undetermined(uses, some_answers, {})
	{violation.msg | some violation in violations} == {
		`undetermined: container "late" image "slow": timeout: too late`,
		`undetermined: init container "later" image "slow": timeout: too late`,
	}
	{violation.details | some violation in violations; violation.details.container == "late"} == {{
		"reason": "Undetermined",
		"container": "late",
		"image": "slow",
		"class": "timeout",
		"retryable": true,
	}}
}

test_modes_of_undetermined if {
	every mode in ["deny", "warn", "no such mode"] {
		count(provider.undetermined(uses, some_answers, {"onUndetermined": mode})) == 2
	}
	provider.undetermined(uses, some_answers, {"onUndetermined": "allow"}) == set()
}

test_modes_of_known if {
	provider.judges_known({})
	provider.judges_known({"onUndetermined": "deny"})
	provider.judges_known({"onUndetermined": "allow"})
	not provider.judges_known({"onUndetermined": "warn"})
}
