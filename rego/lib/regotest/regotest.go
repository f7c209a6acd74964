// Package regotest holds Rego to the standard of this repository: formatted as
// opa fmt does, compiled as opa check --strict does, tested as opa test does with
// every rule body covered. It is for tests alone.
package regotest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/format"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/types"
)

// Capabilities are those of this OPA with the builtin that Gatekeeper adds for
// external data. Without "with external_data as ..." a test that reaches it fails.
func Capabilities() *ast.Capabilities {
	capabilities := ast.CapabilitiesForThisVersion()
	capabilities.Builtins = append(capabilities.Builtins, &ast.Builtin{
		Name: "external_data",
		Decl: types.NewFunction(types.Args(types.A), types.A),
	})
	return capabilities
}

// Run checks the .rego files of dir, recursively, beside the given library
// modules (path to source), which are compiled but neither checked nor covered.
// It is a subtest for each check and each Rego test.
func Run(t *testing.T, dir string, libs map[string]string) {
	t.Helper()
	sources := read(t, dir)
	modules := make(map[string]*ast.Module, len(sources)+len(libs))
	for path, source := range libs {
		modules[path] = parse(t, path, source)
	}
	for path, source := range sources {
		modules[path] = parse(t, path, source)
		t.Run("format/"+path, func(t *testing.T) {
			formatted, err := format.Source(path, []byte(source))
			if err != nil {
				t.Fatal(err)
			}
			if string(formatted) != source {
				t.Errorf("not as opa fmt writes it; run make fmt")
			}
		})
	}
	compiler := func() *ast.Compiler {
		return ast.NewCompiler().WithCapabilities(Capabilities()).WithStrict(true).WithEnablePrintStatements(true)
	}
	strict := compiler()
	strict.Compile(copies(modules))
	if strict.Failed() {
		t.Fatalf("opa check --strict: %v", strict.Errors)
	}
	coverage := cover.New()
	runTests(t, modules, compiler(), coverage)
	if t.Failed() {
		return // coverage of a failing run misleads
	}
	report := coverage.Report(modules)
	for path := range sources {
		if strings.HasSuffix(path, "_test.rego") {
			continue
		}
		t.Run("coverage/"+path, func(t *testing.T) {
			file, ok := report.Files[path]
			if !ok {
				t.Fatal("no test reaches this file")
			}
			for _, missed := range file.NotCovered {
				t.Errorf("no test reaches lines %d to %d", missed.Start.Row, missed.End.Row)
			}
		})
	}
}

func runTests(t *testing.T, modules map[string]*ast.Module, compiler *ast.Compiler, coverage *cover.Cover) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	store := inmem.New()
	txn, err := store.NewTransaction(ctx, storage.TransactionParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Abort(ctx, txn)
	results, err := tester.NewRunner().
		SetCompiler(compiler).
		SetStore(store).
		SetModules(copies(modules)).
		SetCoverageQueryTracer(coverage).
		CapturePrintOutput(true).
		SetTimeout(2*time.Minute).
		RunTests(ctx, txn)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for result := range results {
		count++
		t.Run(result.Package+"/"+result.Name, func(t *testing.T) {
			if result.Skip {
				t.Error("a test must not be skipped")
			}
			if result.Error != nil {
				t.Error(result.Error)
			}
			if !result.Pass() {
				t.Errorf("failed at %v\n%s", result.Location, result.Output)
			}
		})
	}
	if count == 0 {
		t.Error("no Rego tests")
	}
}

func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := rego(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Fatalf("no .rego files below %s", dir)
	}
	sources := make(map[string]string, len(paths))
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources[path] = string(source)
	}
	return sources
}

func rego(dir string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".rego" {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for .rego files: %w", err)
	}
	return paths, nil
}

func parse(t *testing.T, path, source string) *ast.Module {
	t.Helper()
	module, err := ast.ParseModuleWithOpts(path, source, ast.ParserOptions{
		RegoVersion:       ast.RegoV1,
		Capabilities:      Capabilities(),
		ProcessAnnotation: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// The compiler rewrites the modules that it is given.
func copies(modules map[string]*ast.Module) map[string]*ast.Module {
	out := make(map[string]*ast.Module, len(modules))
	for path, module := range modules {
		out[path] = module.Copy()
	}
	return out
}
