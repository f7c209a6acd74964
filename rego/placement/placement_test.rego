package archkeeper.placement_test

# Verdicts, in the order in which they are looked for.

test_verdicts[name] if {
	some name, tc in {
		"nothing that could match": {"question": ask(required([]), {"a": both}), "want": ["ignore", "NoUsableTerm"]},
		"images that share nothing": {"question": ask({}, {"a": amd64, "b": arm64}), "want": ["place", "NoCommonArchitecture"]},
		"images that share nothing, one more unknown": {"question": ask({}, {"a": amd64, "b": arm64, "c": waiting}), "want": ["place", "NoCommonArchitecture"]},
		"a choice and unknown images": {"question": ask({"nodeSelector": {"kubernetes.io/arch": "amd64"}}, {"a": waiting}), "want": ["ignore", "UserArchitecture"]},
		"a choice and a bad image": {"question": ask({"nodeSelector": {"kubernetes.io/arch": "amd64"}}, {"a": broken}), "want": ["ignore", "ImageUnusable"]},
		"a bad image": {"question": ask({}, {"a": broken, "b": waiting}), "want": ["ignore", "ImageUnusable"]},
		"an unknown image": {"question": ask({}, {"a": waiting}), "want": ["gate", "ImagesUnknown"]},
		"an unknown image, nobody alive": {"question": object.union(ask({}, {"a": waiting}), {"controller_alive": false}), "want": ["ignore", "ControllerNotAlive"]},
		"an unknown image, nobody said to be alive": {"question": object.remove(ask({}, {"a": waiting}), ["controller_alive"]), "want": ["ignore", "ControllerNotAlive"]},
		"an unknown image, gated": {"question": ask_gated({}, {"a": waiting}), "want": ["hold", "ImagesUnknown"]},
		"an unknown image at the deadline": {"question": object.union(ask_gated({}, {"a": waiting}), {"held_seconds": 120}), "want": ["release", "DeadlineExceeded"]},
		"an unknown image at the deadline, with a fallback": {"question": object.union(ask_gated({}, {"a": waiting}), {"held_seconds": 120, "config": {"fallbackArchitecture": "arm64"}}), "want": ["place", "FallbackArchitecture"]},
		"a fallback that fits the others": {"question": object.union(ask_gated({}, {"a": waiting, "b": both}), {"held_seconds": 120, "config": {"fallbackArchitecture": "arm64"}}), "want": ["place", "FallbackArchitecture"]},
		"a fallback that does not fit the others": {"question": object.union(ask_gated({}, {"a": waiting, "b": amd64}), {"held_seconds": 120, "config": {"fallbackArchitecture": "arm64"}}), "want": ["release", "DeadlineExceeded"]},
		"content alone": {"question": ask({}, {"a": any}), "want": ["ignore", "ContentOnly"]},
		"content beside an image": {"question": ask({}, {"a": any, "b": amd64}), "want": ["place", "Placed"]},
		"a contradiction that is no choice": {"question": ask(required([term([object.union(in_amd64, {"operator": "NotIn"})])]), {"a": amd64}), "want": ["place", "ArchitectureContradiction"]},
		"nothing to add": {"question": ask(required([term([in_amd64])]), {"a": both}), "want": ["ignore", "UserArchitecture"]},
		"something to add": {"question": ask({}, {"a": both}), "want": ["place", "Placed"]},
	}
	d := decide(tc.question)
	[d.action, d.reason] == tc.want
	d.message != ""
}

test_a_cluster_without_a_node_for_the_images_is_a_remark if {
	d := decide(object.union(ask({}, {"a": amd64}), {"cluster": {"architectures": ["arm64"]}}))
	d.reason == "Placed"
	contains(d.message, "no node of the cluster is of amd64")
}

test_messages_name_image_and_class if {
	contains(decide(ask({}, {"a": waiting})).message, "image a: timeout: no answer within 5s")
	contains(decide(ask({}, {"a": amd64, "b": known(["windows/arm64"])})).message, "a on amd64; b on windows/arm64")
	contains(decide(ask({}, {"a": known([]), "b": amd64})).message, "a on nothing")
}
