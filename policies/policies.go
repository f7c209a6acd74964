// Package policies holds what administrators apply: ConstraintTemplates,
// mutations, expansion templates and native admission policies, each in a room
// of its own with its samples and their expected results.
package policies

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/archkeeper/archkeeper/rego/lib"
)

//go:generate go run ./generate -root ..

//go:embed constraints expansion mutations native
var files embed.FS

// FS gives the rooms: constraints/<name>/template.yaml, mutations/<name>/mutation.yaml,
// .../samples and so on.
func FS() fs.FS { return files }

// Constraint is the Rego of one constraint.
type Constraint struct {
	// Name of the room, such as "image-architectures".
	Name string
	// Query is the reference of its violations, such as
	// "data.archkeeper.constraints.image_architectures.violation". Its input is
	// {"review": <AdmissionRequest>, "parameters": {...}}.
	Query string
	// Modules are the policy and the libraries that it imports, from path to
	// source. They call the builtin external_data.
	Modules map[string]string
}

// Load gives the Rego of a named constraint with all the libraries that it
// imports. It fails for a name that has no Rego.
func Load(name string) (Constraint, error) {
	file := path.Join("constraints", name, "policy.rego")
	source, err := files.ReadFile(file)
	if err != nil {
		return Constraint{}, fmt.Errorf("constraint %q: %w", name, err)
	}
	modules, err := Modules(file, string(source))
	if err != nil {
		return Constraint{}, fmt.Errorf("constraint %q: %w", name, err)
	}
	module, err := ast.ParseModule(file, string(source))
	if err != nil {
		return Constraint{}, fmt.Errorf("constraint %q: %w", name, err)
	}
	return Constraint{Name: name, Query: module.Package.Path.String() + ".violation", Modules: modules}, nil
}

// Modules gives a Rego source with the libraries (packages below data.lib) that
// it imports, directly or through one another, from path to source.
func Modules(file, source string) (map[string]string, error) {
	modules := map[string]string{file: source}
	imports, err := libraries(file, source)
	if err != nil {
		return nil, err
	}
	for len(imports) > 0 {
		name := imports[0]
		imports = imports[1:]
		file := LibraryPath(name)
		if _, done := modules[file]; done {
			continue
		}
		source, err := lib.Source(name)
		if err != nil {
			return nil, err
		}
		modules[file] = source
		more, err := libraries(file, source)
		if err != nil {
			return nil, err
		}
		imports = append(imports, more...)
	}
	return modules, nil
}

// LibraryPath is the path under which Modules gives the package lib.<name>.
func LibraryPath(name string) string { return path.Join("lib", name+".rego") }

// libraries names the packages of data.lib that a source imports.
func libraries(file, source string) ([]string, error) {
	module, err := ast.ParseModule(file, source)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	var names []string
	for _, imported := range module.Imports {
		if name, ok := strings.CutPrefix(imported.Path.String(), "data.lib."); ok {
			names = append(names, name)
		}
	}
	return names, nil
}
