// Package architecture holds the rules of the design that a compiler does not
// know: who may import whom.
package architecture

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/archkeeper/archkeeper"

// pkg is the part of `go list -json` that the rules look at.
type pkg struct {
	ImportPath string
	Imports    []string
}

// rel is the import path below the module; ok is false for other modules.
func rel(path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// within tells whether path is one of the folders, or below one.
func within(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool {
		return path == f || strings.HasPrefix(path, f+"/")
	})
}

func load(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// pure are the packages that think: what they compute depends on their
// arguments alone.
var pure = []string{
	"provider/platform", "provider/imageref", "provider/manifest", "provider/mirrors", "provider/wire",
}

// impure are the standard packages and clients that a pure package may not import.
var impure = []string{
	"net", "net/http", "os", "os/exec", "log", "log/slog",
	"k8s.io/client-go", "k8s.io/klog", "k8s.io/utils/clock", "sigs.k8s.io/controller-runtime",
	"github.com/prometheus/client_golang", "github.com/google/go-containerregistry/pkg/v1/remote",
}

// rules judge one import: from and to are paths below the module for our own
// packages; to is the full import path for others. They answer "" or why not.
var rules = map[string]func(from, to string, own bool) string{
	"nothing imports cmd": func(from, to string, own bool) string {
		if own && within(to, "cmd") && !within(from, "cmd") {
			return "only cmd may import cmd"
		}
		return ""
	},
	"provider stands alone": func(from, to string, own bool) string {
		if own && within(from, "provider") && !within(to, "provider", "internal") {
			return "provider imports provider alone"
		}
		return ""
	},
	"a controller imports no other controller": func(from, to string, own bool) string {
		if !own || !within(from, "controllers") || !within(to, "controllers") {
			return ""
		}
		if a, b := strings.Split(from, "/"), strings.Split(to, "/"); len(a) > 1 && len(b) > 1 && a[1] != b[1] && b[1] != "config" {
			return "one question each: what two controllers share lives outside both"
		}
		return ""
	},
	"rego and policies do not import controllers": func(from, to string, own bool) string {
		if own && within(from, "rego", "policies") && within(to, "controllers") {
			return "the policy is evaluated by controllers, not the other way round"
		}
		return ""
	},
	"pure packages think only": func(from, to string, own bool) string {
		if to == "net/netip" { // addresses as values; it opens nothing
			return ""
		}
		if within(from, pure...) && !own && within(to, impure...) {
			return "a pure package does no I/O, reads no clock and logs nothing"
		}
		return ""
	},
	"production code imports no test helper": func(from, to string, own bool) string {
		if own && within(to, "tests") && !within(from, "tests") {
			return "test helpers stay in tests"
		}
		return ""
	},
	// Building the image of a release pushes it; no part of a cluster does.
	"only registry and reach speak to registries": func(from, to string, _ bool) string {
		if within(to, "github.com/google/go-containerregistry/pkg/v1/remote") && !within(from, "tests", "deploy/image") {
			return "provider/registry has the transport of the house"
		}
		return ""
	},
	// The node agent looks, through that package, into the node's own file alone.
	"only credentials read secrets": func(from, to string, own bool) string {
		if own && within(to, "provider/credentials") && !within(from, "provider/credentials", "provider/registry", "provider/server", "controllers/nodeagent", "cmd") {
			return "controllers ask the provider, which alone holds credentials"
		}
		return ""
	},
}

func TestImportsFollowTheDesign(t *testing.T) {
	pkgs := load(t)
	if len(pkgs) == 0 {
		t.Fatal("go list found no packages")
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, p := range pkgs {
				from, ok := rel(p.ImportPath)
				if !ok {
					continue
				}
				for _, imp := range p.Imports {
					to, own := rel(imp)
					if !own {
						to = imp
					}
					if why := rule(from, to, own); why != "" {
						t.Errorf("%s imports %s: %s", from, to, why)
					}
				}
			}
		})
	}
}

// The rules are functions, so they can be shown to be able to fail.
func TestEachRuleRefusesItsOwnExample(t *testing.T) {
	for name, example := range map[string]struct {
		from, to string
		own      bool
	}{
		"nothing imports cmd":                         {"provider/server", "cmd/archkeeper", true},
		"provider stands alone":                       {"provider/server", "controllers/placement", true},
		"a controller imports no other controller":    {"controllers/placement", "controllers/mirrors", true},
		"rego and policies do not import controllers": {"rego", "controllers/placement", true},
		"pure packages think only":                    {"provider/manifest", "net/http", false},
		"production code imports no test helper":      {"provider/registry", "tests/registrytest", true},
		"only registry and reach speak to registries": {"controllers/mirrors", "github.com/google/go-containerregistry/pkg/v1/remote", false},
		"only credentials read secrets":               {"controllers/placement", "provider/credentials", true},
	} {
		rule, ok := rules[name]
		if !ok {
			t.Errorf("no rule %q", name)
			continue
		}
		if rule(example.from, example.to, example.own) == "" {
			t.Errorf("rule %q let %s import %s", name, example.from, example.to)
		}
	}
	if want, got := len(rules), 8; want != got {
		t.Errorf("%d rules, %d examples: give each rule an example", want, got)
	}
}
