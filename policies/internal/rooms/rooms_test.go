package rooms

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/policies"
	"github.com/archkeeper/archkeeper/rego/lib"
	"github.com/archkeeper/archkeeper/rego/lib/regotest"
)

const root = "../../.."

func TestWhatIsGeneratedIsUpToDate(t *testing.T) {
	if err := Check(root); err != nil {
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
		"no day":                         {edit: replace("created: \"2026-11-30\"", "created: yesterday"), want: `created "yesterday" is no day`},
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
	dir := copyTree(t)
	policy := filepath.Join(dir, "policies/constraints/image-architectures/policy.rego")
	source, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	// Not as opa fmt writes it, and new to the template.
	if err := os.WriteFile(policy, append(source, "\nmore   :=   1\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	err = Check(dir)
	for _, want := range []string{"policy.rego is not up to date", "template.yaml is not up to date"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if err := Format(dir); err != nil {
		t.Fatal(err)
	}
	if formatted, err := os.ReadFile(policy); err != nil || !strings.HasSuffix(string(formatted), "\nmore := 1\n") {
		t.Errorf("Format did not format the policy: %v", err)
	}
	if err := Check(dir); err == nil || !strings.Contains(err.Error(), "template.yaml is not up to date") {
		t.Errorf("Format wrote more than Rego: %v", err)
	}
	if err := Generate(dir); err != nil {
		t.Fatal(err)
	}
	if err := Check(dir); err != nil {
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

// TestANewRoomPassesItsOwnTests makes a room in a copy of the tree and tests its
// Rego; Gatekeeper's part is in tests/policy.
func TestANewRoomPassesItsOwnTests(t *testing.T) {
	dir := copyTree(t)
	day := time.Date(2027, time.March, 1, 12, 0, 0, 0, time.UTC)
	room, err := New(dir, "my-new-rule", day)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "policies/constraints/my-new-rule"); room != want {
		t.Errorf("made %s, want %s", room, want)
	}
	if err := Check(dir); err != nil {
		t.Errorf("the new room is not complete: %v", err)
	}
	for _, file := range []string{"template.yaml", "README.md", "artifacthub-pkg.yml"} {
		if content, err := os.ReadFile(filepath.Join(room, file)); err != nil || !strings.Contains(string(content), "y new rule") {
			t.Errorf("%s does not speak of the rule: %v", file, err)
		}
	}
	libs := make(map[string]string)
	for _, name := range lib.Names() {
		source, err := lib.Source(name)
		if err != nil {
			t.Fatal(err)
		}
		libs[policies.LibraryPath(name)] = source
	}
	regotest.Run(t, room, libs)
	for name, want := range map[string]string{
		"my-new-rule": "is there already",
		"My_Rule":     "is not lower-case words",
		"../escape":   "is not lower-case words",
		"":            "is not lower-case words",
	} {
		if _, err := New(dir, name, day); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%q): %v, want an error that says %q", name, err, want)
		}
	}
}

func copyTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, part := range []string{"policies", "rego/lib"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(root, part))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func replace(old, replacement string) func(string) string {
	return func(source string) string { return strings.Replace(source, old, replacement, 1) }
}
