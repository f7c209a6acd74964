package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestTheClusterShowsAnAdmittedAndARefusedPod(t *testing.T) {
	var out, progress bytes.Buffer
	if err := run(t.Context(), &out, &progress, true); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	for _, words := range []string{
		"admitted; Gatekeeper has put the gate on it: [map[name:archkeeper.io/architecture]]",
		"refused:",
		"no architecture is supported by all images of the pod",
		"export KUBECONFIG=",
		"curl -sS --cacert",
	} {
		if !strings.Contains(out.String(), words) {
			t.Errorf("the output does not say %q:\n%s", words, out.String())
		}
	}
}
