package policy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/policies"
	"github.com/archkeeper/archkeeper/rego/lib"
	"github.com/archkeeper/archkeeper/rego/lib/regotest"
)

const root = "../.."

// TestTutorial does what docs/write-a-constraint.md says, in its order, in a copy
// of the tree: code blocks with a path become that file, commands are run.
func TestTutorial(t *testing.T) {
	dir := t.TempDir()
	for _, part := range []string{"policies", "rego/lib"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(root, part))); err != nil {
			t.Fatal(err)
		}
	}
	source, err := os.ReadFile(filepath.Join(root, "docs/write-a-constraint.md"))
	if err != nil {
		t.Fatal(err)
	}
	const room = "own-images-on-arm64"
	w := newWorld(t)
	commands := map[string]func(t *testing.T){
		"make new-policy NAME=" + room: func(t *testing.T) { tool(t, dir, "newpolicy", room) },
		"make generate":                func(t *testing.T) { tool(t, dir, "generate") },
		"make test-rego": func(t *testing.T) {
			regotest.Run(t, filepath.Join(dir, "policies/constraints", room), libraries(t))
		},
		"make test-policy": func(t *testing.T) {
			fixture, err := os.ReadFile(filepath.Join(dir, "policies/constraints", room, "provider.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			w.learn(t, fixture)
			runSuite(t, w, os.DirFS(filepath.Join(dir, "policies")), "constraints/"+room+"/suite.yaml")
		},
	}
	ran := 0
	for _, block := range codeBlocks(string(source)) {
		language, path, _ := strings.Cut(block.info, " ")
		switch {
		case path != "":
			if err := os.WriteFile(filepath.Join(dir, path), []byte(block.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case language == "sh":
			for command := range strings.Lines(block.text) {
				command = strings.TrimSpace(command)
				if file, ok := strings.CutPrefix(command, "kubectl apply -f "); ok {
					readObject(t, os.DirFS(dir), file)
					continue
				}
				run, known := commands[command]
				if !known {
					t.Fatalf("the tutorial says %q, which this test does not know", command)
				}
				ran++
				if !t.Run(command, run) {
					t.FailNow()
				}
			}
		default:
			t.Errorf("a code block of %q that this test does nothing with:\n%s", block.info, block.text)
		}
	}
	if ran != len(commands) {
		t.Errorf("%d commands ran, want each of %d", ran, len(commands))
	}
}

// TestScaffold runs the suite of a room that nobody has changed yet.
func TestScaffold(t *testing.T) {
	dir := t.TempDir()
	for _, part := range []string{"policies", "rego/lib"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(root, part))); err != nil {
			t.Fatal(err)
		}
	}
	tool(t, dir, "newpolicy", "fresh-rule")
	fixture, err := os.ReadFile(filepath.Join(dir, "policies/constraints/fresh-rule/provider.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.learn(t, fixture)
	runSuite(t, w, os.DirFS(filepath.Join(dir, "policies")), "constraints/fresh-rule/suite.yaml")
}

// tool runs one of the policy commands on the tree in dir.
func tool(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{"run", "./policies/" + name, "-root", dir}, args...)...)
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

func libraries(t *testing.T) map[string]string {
	t.Helper()
	libs := make(map[string]string)
	for _, name := range lib.Names() {
		source, err := lib.Source(name)
		if err != nil {
			t.Fatal(err)
		}
		libs[policies.LibraryPath(name)] = source
	}
	return libs
}

// codeBlock is a fenced code block of a Markdown page.
type codeBlock struct{ info, text string }

func codeBlocks(source string) []codeBlock {
	var blocks []codeBlock
	open := false
	for line := range strings.Lines(source) {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && !open:
			blocks = append(blocks, codeBlock{info: strings.TrimSpace(info)})
			open = true
		case fence:
			open = false
		case open:
			blocks[len(blocks)-1].text += line
		}
	}
	return blocks
}
