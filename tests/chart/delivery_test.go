package chart

import (
	"fmt"
	"slices"
	"testing"
)

// may tells whether a role of that kind and name allows a verb on a resource,
// of all names.
func may(objects []object, kind, name, verb, resource string) bool {
	for _, o := range objects {
		if text(o, "kind") != kind || text(o, "metadata", "name") != name {
			continue
		}
		for _, rule := range list(o, "rules") {
			if slices.Contains(list(rule, "resources"), any(resource)) && slices.Contains(list(rule, "verbs"), any(verb)) {
				return true
			}
		}
	}
	return false
}

func TestTheNodeAgentHasWhatItsFlagsNeed(t *testing.T) {
	agent := func(settings object) (object, []object) {
		settings["enabled"] = true
		objects := render(t, map[string]any{"nodeAgent": settings})
		return pods(objects)["DaemonSet archkeeper-node-agent"], objects
	}
	pod, objects := agent(object{})
	if at(pod, "hostPID") != nil || slices.Contains(args(containers(pod)[0]), "--node-authfile=/etc/archkeeper/node/auth.json") {
		t.Error("without being asked it sees the node's processes or credentials")
	}
	if !may(objects, "ClusterRole", "archkeeper-node-agent", "get", "nodes") {
		t.Error("it may not read the version of its node's runtime")
	}
	for _, verb := range []string{"list", "watch", "update", "patch"} {
		if may(objects, "ClusterRole", "archkeeper-node-agent", verb, "nodes") {
			t.Errorf("it may %s nodes", verb)
		}
	}

	pod, _ = agent(object{"reload": "sighup", "authFile": "/var/lib/kubelet/config.json"})
	if at(pod, "hostPID") != true {
		t.Error("it is to signal CRI-O and does not see the node's processes")
	}
	line := args(containers(pod)[0])
	for _, want := range []string{"--reload=sighup", "--node-authfile=/etc/archkeeper/node/auth.json"} {
		if !slices.Contains(line, want) {
			t.Errorf("no %s in %v", want, line)
		}
	}
	mounted := false
	for _, v := range list(pod, "volumes") {
		mounted = mounted || text(v, "hostPath", "path") == "/var/lib/kubelet/config.json"
	}
	if !mounted {
		t.Error("the node's credentials are not mounted")
	}

	if _, err := renderFiles(t, release, namespace, map[string]any{"nodeAgent": object{"enabled": true, "runtime": "containerd", "reload": "sighup"}}); err == nil {
		t.Error("containerd is to be signalled")
	}
}

func TestOnlyDeliveryByMachineConfigMayWriteThem(t *testing.T) {
	for delivery, want := range map[string]bool{"auto": false, "nodes": false, "inspector": false, "machineconfig": true} {
		objects := render(t, map[string]any{"controllers": object{"mirrors": object{"delivery": delivery}}})
		for verb, resource := range map[string]string{"create": "machineconfigs", "update": "machineconfigs", "delete": "machineconfigs", "get": "machineconfigurations"} {
			if got := may(objects, "ClusterRole", "archkeeper-controllers", verb, resource); got != want {
				t.Errorf("delivery %s: may %s %s: %v, want %v", delivery, verb, resource, got, want)
			}
		}
		if line := args(containers(pods(objects)["Deployment archkeeper-controllers"])[0]); !slices.Contains(line, "--mirrors-delivery="+delivery) {
			t.Errorf("delivery %s is not among %v", delivery, line)
		}
	}
}

// The controllers make the secret part of the webhook's path, whoever keeps the
// certificates; and nothing else makes them write Secrets.
func TestWhoMayWriteSecrets(t *testing.T) {
	for _, c := range []struct {
		mode           string
		admission      bool
		create, update bool
	}{
		{"self", false, true, true},
		{"self", true, true, true},
		{"provided", false, false, false},
		{"provided", true, true, false},
		{"certManager", true, true, false},
	} {
		t.Run(fmt.Sprintf("%s, admission %v", c.mode, c.admission), func(t *testing.T) {
			objects := render(t, map[string]any{
				"tls":       object{"mode": c.mode, "providerSecret": "p", "controllersSecret": "c", "issuerRef": object{"name": "i"}},
				"admission": object{"enabled": c.admission},
			})
			if got := may(objects, "Role", "archkeeper-controllers", "create", "secrets"); got != c.create {
				t.Errorf("may create Secrets: %v", got)
			}
			if got := may(objects, "Role", "archkeeper-controllers", "update", "secrets"); got != c.update {
				t.Errorf("may update Secrets: %v", got)
			}
		})
	}
}

// One process takes the place of two, with the rights of both.
func TestAllInOneIsOneDeployment(t *testing.T) {
	objects := render(t, map[string]any{"mode": "allInOne", "admission": object{"enabled": true}})
	for where, pod := range pods(objects) {
		if where == "Job archkeeper-uninstall" {
			line := args(containers(pod)[0])
			if !slices.Contains(line, "--deployment=archkeeper-provider") || !slices.Contains(line, "--lease=archkeeper-controllers") {
				t.Errorf("removal ends another Deployment than the one there is: %v", line)
			}
			continue
		}
		if where != "Deployment archkeeper-provider" {
			t.Errorf("there is a %s", where)
			continue
		}
		if line := args(containers(pod)[0]); line[0] != "all-in-one" {
			t.Errorf("it runs %v", line)
		}
		for _, v := range list(pod, "volumes") {
			if secret, ok := at(v, "secret").(object); ok && secret["optional"] != true {
				t.Errorf("it waits for the Secret %v, which it makes itself", secret["secretName"])
			}
		}
	}
	bound := map[string]bool{}
	for _, o := range objects {
		if kind := text(o, "kind"); kind != "RoleBinding" && kind != "ClusterRoleBinding" {
			continue
		}
		for _, s := range list(o, "subjects") {
			bound[text(o, "roleRef", "kind")+" "+text(o, "roleRef", "name")+" to "+text(s, "name")] = true
		}
	}
	for _, want := range []string{
		"ClusterRole archkeeper-provider to archkeeper-provider", "ClusterRole archkeeper-controllers to archkeeper-provider", "Role archkeeper-controllers to archkeeper-provider",
	} {
		if !bound[want] {
			t.Errorf("not bound: %s", want)
		}
	}
}
