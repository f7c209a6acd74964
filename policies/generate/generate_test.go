package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

func TestWhatIsGeneratedIsUpToDate(t *testing.T) {
	if err := run(root, true, false); err != nil {
		t.Error(err)
	}
}

func TestTheSameSourcesGiveTheSameBytes(t *testing.T) {
	first, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	second, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != len(second) {
		t.Errorf("%d files, then %d", len(first), len(second))
	}
	for path, content := range first {
		if string(second[path]) != string(content) {
			t.Errorf("%s differs", path)
		}
	}
}

func TestAMissingWallIsNamed(t *testing.T) {
	tests := map[string]struct {
		remove string // file of the room, or
		edit   func(room string) string
		want   string
	}{
		"no Rego tests":                  {remove: "policy_test.rego", want: "policy_test.rego is missing"},
		"no provider fixture":            {remove: "provider.yaml", want: "provider.yaml is missing"},
		"no suite":                       {remove: "suite.yaml", want: "suite.yaml is missing"},
		"no undetermined sample":         {remove: "samples/undetermined.yaml", want: "samples/undetermined*.yaml is missing"},
		"no reason to exist":             {edit: withoutWhy, want: "why is empty"},
		"no version":                     {edit: replace("version: 1.0.0", "version: one"), want: `version "one" is not semantic`},
		"a kind that is no name":         {edit: replace("kind: ImageArchitectures", "kind: image-architectures"), want: "is no CamelCase name"},
		"a shared parameter of no name":  {edit: replace("shared: [exemptRegistries,", "shared: [nothing,"), want: `no shared parameter "nothing"`},
		"an unknown field":               {edit: replace("title:", "titel:"), want: "unknown field"},
		"a parameter without a type":     {edit: replace("    type: array\n", ""), want: `parameter "architectures" has no description or no type`},
		"a parameter that is had twice":  {edit: replace("  architectures:", "  scope:"), want: "both shared and the room's own"},
		"a room without its description": {remove: "room.yaml", want: "room.yaml"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			const room = "policies/constraints/image-architectures"
			if err := os.CopyFS(filepath.Join(dir, room), os.DirFS(filepath.Join(root, room))); err != nil {
				t.Fatal(err)
			}
			if test.remove != "" {
				if err := os.Remove(filepath.Join(dir, room, test.remove)); err != nil {
					t.Fatal(err)
				}
			}
			if test.edit != nil {
				path := filepath.Join(dir, room, "room.yaml")
				source, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				edited := test.edit(string(source))
				if edited == string(source) {
					t.Fatal("the edit changed nothing")
				}
				if err := os.WriteFile(path, []byte(edited), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := readRooms(dir, constraints)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}

func TestAStaleFileIsNamedAndWritten(t *testing.T) {
	dir := t.TempDir()
	for _, part := range []string{"policies", "rego/lib"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(root, part))); err != nil {
			t.Fatal(err)
		}
	}
	policy := filepath.Join(dir, "policies/constraints/image-architectures/policy.rego")
	source, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	// Not as opa fmt writes it, and new to the template.
	if err := os.WriteFile(policy, append(source, "\nmore   :=   1\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	err = run(dir, true, false)
	for _, want := range []string{"policy.rego is not up to date", "template.yaml is not up to date"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if err := run(dir, false, true); err != nil {
		t.Fatal(err)
	}
	if formatted, err := os.ReadFile(policy); err != nil || !strings.HasSuffix(string(formatted), "\nmore := 1\n") {
		t.Errorf("-fmt did not format the policy: %v", err)
	}
	if err := run(dir, true, false); err == nil || !strings.Contains(err.Error(), "template.yaml is not up to date") {
		t.Errorf("-fmt wrote more than Rego: %v", err)
	}
	if err := run(dir, false, false); err != nil {
		t.Fatal(err)
	}
	if err := run(dir, true, false); err != nil {
		t.Errorf("after generating: %v", err)
	}
	template, err := os.ReadFile(filepath.Join(filepath.Dir(policy), "template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(template), "\n              more := 1\n") {
		t.Error("the template does not hold the formatted policy")
	}
}

func withoutWhy(source string) string {
	before, rest, _ := strings.Cut(source, "why: |")
	_, after, _ := strings.Cut(rest, "cost: |")
	return before + "cost: |" + after
}

func replace(old, replacement string) func(string) string {
	return func(source string) string { return strings.Replace(source, old, replacement, 1) }
}
