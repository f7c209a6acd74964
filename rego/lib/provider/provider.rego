# METADATA
# title: The image provider
# description: |
#   Asks the Archkeeper provider about images and gives one answer for each,
#   whatever happens. This is the only caller of external_data. An answer is one of
#
#     {"status":"known","architectures":[...],"platforms":[...],"digest":"...","kind":"..."}
#     {"status":"any", ...}      content only (an OLM bundle): it constrains nothing
#     {"status":"unknown","class":"...","message":"...","retryable":true}
#
#   the same three that the placement policy sees. Everything that can go wrong on
#   the way (no Provider object, no connection, null lists, a key left out, an
#   answer in another shape, the builtin undefined) is an unknown with a class of
#   the provider's closed list: never an image that is missing from the result.
# scope: package
package lib.provider

import data.lib.images

# The classes of unknown that last: asking again gives the same. The others may pass.
_durable := {"malformed", "blocked", "not-runnable", "invalid-content"}

_classes := _durable | {"not-found", "unauthorized", "rate-limited", "timeout", "unreachable", "internal"}

# METADATA
# description: |
#   The answers for the images (a set of references) of an admission review, as an
#   object from reference to answer, from one external_data call; no call when there
#   are no images. config is the constraint's parameters, of which it reads
#   "scope", "public" (the default: the provider's own credentials) or "namespaced"
#   (the credentials that the kubelet would find for this pod), and "provider", the
#   name of the Provider object, "archkeeper" or "archkeeper-namespaced" by default.
# scope: document
inspect(review, images, config) := answers if {
	count(images) > 0
	keys := {image: _key(review, image, config) | some image in images}
	answered := lookup(_provider(config), {key | some key in keys})
	answers := {image: answered[key] | some image, key in keys}
} else := {}

# METADATA
# description: |
#   The answers for keys (a set) of the Provider object of this name, as an object
#   from key to answer, from one call. A key that is no string is answered here, as
#   malformed: Gatekeeper would drop the whole call for it, silently.
# scope: document
lookup(name, keys) := answers if {
	texts := [key | some key in keys; is_string(key)]
	said := _heard(name, _ask(name, texts))
	answers := object.union(
		{key: _answer(key, said) | some key in texts},
		{key: _unknown("malformed", "the key is no text") | some key in keys; not is_string(key)},
	)
}

# METADATA
# description: |
#   The violations for the uses of images (as lib.images gives them) whose answer is
#   unknown, one a use: the message begins with "undetermined: ". None when the
#   parameter onUndetermined is "allow"; "deny" is the default. Images that no runtime
#   can run are no part of it: that is a verdict, see not_runnable.
# scope: document
undetermined(uses, answers, config) := {violation |
	object.get(config, "onUndetermined", "deny") != "allow"
	some use in uses
	answer := answers[use.image]
	answer.status == "unknown"
	not not_runnable(answer)
	violation := {
		"msg": sprintf("undetermined: %s: %s: %s", [images.label(use), answer.class, answer.message]),
		"details": {
			"reason": "Undetermined",
			"container": use.name,
			"image": use.image,
			"class": answer.class,
			"retryable": answer.retryable,
		},
	}
}

# METADATA
# description: |
#   Whether a constraint speaks of images that are known. One with onUndetermined
#   "warn" speaks of unknown images alone: Gatekeeper gives all violations of a
#   constraint the same enforcement action.
# scope: document
judges_known(config) if object.get(config, "onUndetermined", "deny") != "warn"

# METADATA
# description: Whether an answer is the verdict that no container runtime can run the image.
# scope: document
not_runnable(answer) if answer.class == "not-runnable"

# METADATA
# description: |
#   The structured key by which /v1/namespaced is asked about an image of the object
#   under review. It carries the namespace, service account and pull secrets whose
#   credentials may be used, because a key is all that Gatekeeper caches by.
# scope: document
structured_key(review, image) := json.marshal({
	"v": 1,
	"image": image,
	"namespace": _namespace(review),
	"serviceAccount": _text_or(spec, "serviceAccountName", "default"),
	"imagePullSecrets": [secret.name |
		some secret in _list(spec, "imagePullSecrets")
		_filled(secret.name)
	],
}) if {
	spec := images.pod_spec(object.get(review, "object", {}))
}

_key(review, image, config) := structured_key(review, image) if {
	config.scope == "namespaced"
} else := image

_provider(config) := config.provider if {
	_filled(config.provider)
} else := "archkeeper-namespaced" if {
	config.scope == "namespaced"
} else := "archkeeper"

# Not the object's own namespace first: the API server vouches for the review's.
_namespace(review) := review.namespace if {
	_filled(review.namespace)
} else := review.object.metadata.namespace if {
	_filled(review.object.metadata.namespace)
} else := "default"

# The builtin takes the keys as an array only, and is undefined when it fails.
_ask(name, keys) := response if {
	response := external_data({"provider": name, "keys": keys})
	is_object(response)
} else := {"system_error": "external_data gave no result"}

# What a response says of its keys, and what its silence about a key means. A pair
# may stand there twice: the same again is harmless, another value is not.
_heard(name, response) := {
	"values": values,
	"contradicted": {key | some [key, value] in pairs; values[key] != [value]},
	"errors": _by_key(_pairs(response, "errors")),
	"undetermined": _by_key([[entry.key, entry] | some entry in _undetermined(text)]),
	"silence": _silence(name, text),
} if {
	text := _text_or(response, "system_error", "")
	pairs := _pairs(response, "responses")
	values := _by_key(pairs)
}

# The pairs of a list; both lists are null after a failure on the way.
_pairs(response, field) := [pair | some pair in _list(response, field); is_array(pair); count(pair) == 2]

# From key to what was said about it last, in an array of one: values are not merged.
_by_key(pairs) := object.union_n([{key: [value]} | some [key, value] in pairs])

_answer(key, said) := _item_error(text) if {
	[text] := said.errors[key]
} else := _unknown("internal", "the provider gave two different answers") if {
	key in said.contradicted
} else := _value(value) if {
	[value] := said.values[key]
} else := _unknown(_class_or(entry.class, "internal"), _text_or(entry, "message", "")) if {
	[entry] := said.undetermined[key]
} else := said.silence

_value(value) := object.union(value, {"status": "any"}) if {
	value.contentOnly == true
} else := object.union(value, {"status": "known"}) if {
	is_array(value.architectures)
	is_array(value.platforms)
	count(value.platforms) > 0
} else := _unknown("internal", "the provider's answer names no platform")

# An item error is "<class>: <message>".
_item_error(text) := _unknown(class, message) if {
	[class, message] := _cut(text, ": ")
	class in _classes
} else := _unknown("internal", text)

_unknown(class, message) := {
	"status": "unknown",
	"class": class,
	"message": message,
	"retryable": _passing(class),
}

_passing(class) if {
	not class in _durable
} else := false

# The entries of a system error of ours; none when it is someone else's text.
_undetermined(text) := _list(parsed, "undetermined") if {
	json.is_valid(text)
	parsed := json.unmarshal(text)
	parsed.v == 1
} else := []

# Why a key that was asked for is not in the answer at all.
_silence(name, text) := _unknown("unreachable", sprintf("there is no Provider object %q", [name])) if {
	contains(text, "not found in provider cache")
} else := _unknown("timeout", sprintf("Provider %q did not answer in time: %s", [name, text])) if {
	contains(text, "deadline exceeded")
} else := _unknown("internal", sprintf("Provider %q left the image out of its answer", [name])) if {
	_ours(text)
} else := _unknown("unreachable", sprintf("Provider %q did not answer: %s", [name, text]))

_ours("")

_ours(text) if json.is_valid(text)

_class_or(class, otherwise) := class if {
	class in _classes
} else := otherwise

_text_or(parent, field, otherwise) := parent[field] if {
	_filled(parent[field])
} else := otherwise

_list(parent, field) := items if {
	items := parent[field]
	is_array(items)
} else := []

_cut(text, separator) := [substring(text, 0, at), substring(text, at + count(separator), -1)] if {
	at := indexof(text, separator)
	at >= 0
}

_filled(text) if {
	is_string(text)
	text != ""
}
