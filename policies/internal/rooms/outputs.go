package rooms

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/open-policy-agent/opa/v1/format"
)

// Generate writes everything that follows from the sources below root, the root
// of the repository.
func Generate(root string) error {
	outputs, err := generate(root)
	if err != nil {
		return err
	}
	return write(root, outputs)
}

// Check writes nothing; its error names every file that Generate would change.
func Check(root string) error {
	outputs, err := generate(root)
	if err != nil {
		return err
	}
	return compare(root, outputs)
}

// Format writes the Rego as opa fmt does, and nothing else.
func Format(root string) error {
	formatted := map[string][]byte{}
	if err := formatRego(root, formatted); err != nil {
		return err
	}
	return writeFiles(root, formatted)
}

// generate gives everything that follows from the sources: path from the root of
// the repository to content. The same sources give the same bytes.
func generate(root string) (map[string][]byte, error) {
	outputs := map[string][]byte{}
	if err := formatRego(root, outputs); err != nil {
		return nil, err
	}
	var all []room
	for _, in := range []section{constraints, mutations} {
		rooms, err := readRooms(root, in)
		if err != nil {
			return nil, err
		}
		all = append(all, rooms...)
	}
	for _, r := range all {
		if r.section == constraints {
			template, err := r.template(root)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.dir, err)
			}
			outputs[filepath.Join(r.dir, "template.yaml")] = template
		}
		readme, err := r.readme(root)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.dir, err)
		}
		outputs[filepath.Join(r.dir, "README.md")] = readme
		outputs[filepath.Join(r.dir, "artifacthub-pkg.yml")] = r.artifactHub()
	}
	outputs[filepath.Join("policies", "README.md")] = index(all)
	library, err := libraryPage(root)
	if err != nil {
		return nil, err
	}
	outputs[filepath.Join("rego", "lib", "README.md")] = library
	return outputs, nil
}

// formatRego adds the Rego files of this part of the tree that opa fmt would change.
func formatRego(root string, outputs map[string][]byte) error {
	for _, dir := range []string{"policies", filepath.Join("rego", "lib")} {
		tree := os.DirFS(filepath.Join(root, dir))
		err := fs.WalkDir(tree, ".", func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".rego" {
				return err
			}
			source, err := fs.ReadFile(tree, path)
			if err != nil {
				return err
			}
			formatted, err := format.Source(filepath.Join(dir, path), source)
			if err != nil {
				return err
			}
			if !bytes.Equal(source, formatted) {
				outputs[filepath.Join(dir, path)] = formatted
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("formatting Rego: %w", err)
		}
	}
	return nil
}

// write writes the outputs that differ from what is there. A template is made
// from Rego as it is on disk: when Rego had to be formatted, it is made again.
func write(root string, outputs map[string][]byte) error {
	if err := writeFiles(root, outputs); err != nil {
		return err
	}
	for path := range outputs {
		if strings.HasSuffix(path, ".rego") {
			again, err := generate(root)
			if err != nil {
				return err
			}
			return writeFiles(root, again)
		}
	}
	return nil
}

func writeFiles(root string, outputs map[string][]byte) error {
	for _, path := range sortedKeys(outputs) {
		if old, err := os.ReadFile(filepath.Join(root, path)); err == nil && bytes.Equal(old, outputs[path]) {
			continue
		}
		if err := os.WriteFile(filepath.Join(root, path), outputs[path], 0o644); err != nil { //nolint:gosec // source files are for everyone to read
			return err
		}
	}
	return nil
}

// compare names every file that write would change.
func compare(root string, outputs map[string][]byte) error {
	var stale []error
	for _, path := range sortedKeys(outputs) {
		old, err := os.ReadFile(filepath.Join(root, path))
		if err != nil || !bytes.Equal(old, outputs[path]) {
			stale = append(stale, fmt.Errorf("%s is not up to date: run make generate", path))
		}
	}
	return errors.Join(stale...)
}
