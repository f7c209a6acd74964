package policies_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/policies"
	"github.com/archkeeper/archkeeper/rego/lib"
	"github.com/archkeeper/archkeeper/rego/lib/regotest"
)

// TestRego runs the Rego tests of every constraint that has Rego.
func TestRego(t *testing.T) {
	libs := make(map[string]string)
	for _, name := range lib.Names() {
		source, err := lib.Source(name)
		if err != nil {
			t.Fatal(err)
		}
		libs[policies.LibraryPath(name)] = source
	}
	rooms, err := filepath.Glob("constraints/*/policy.rego")
	if err != nil {
		t.Fatal(err)
	}
	if len(rooms) == 0 {
		t.Fatal("no constraints")
	}
	for _, room := range rooms {
		dir := filepath.Dir(room)
		t.Run(filepath.Base(dir), func(t *testing.T) { regotest.Run(t, dir, libs) })
	}
}

func TestLoad(t *testing.T) {
	constraint, err := policies.Load("image-architectures")
	if err != nil {
		t.Fatal(err)
	}
	if want := "data.archkeeper.constraints.image_architectures.violation"; constraint.Query != want {
		t.Errorf("Query = %s, want %s", constraint.Query, want)
	}
	for _, file := range []string{"constraints/image-architectures/policy.rego", "lib/arch.rego", "lib/images.rego", "lib/provider.rego"} {
		if constraint.Modules[file] == "" {
			t.Errorf("no module %s", file)
		}
	}
	if len(constraint.Modules) != 4 {
		t.Errorf("%d modules, want 4", len(constraint.Modules))
	}
	if _, err := policies.Load("nothing"); err == nil {
		t.Error("a constraint that does not exist was loaded")
	}
}

// TestFS compares what is embedded with what is on disk.
func TestFS(t *testing.T) {
	for _, file := range []string{"constraints/image-architectures/template.yaml", "mutations/scheduling-gate/mutation.yaml"} {
		embedded, err := fs.ReadFile(policies.FS(), file)
		if err != nil {
			t.Fatal(err)
		}
		disk, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(embedded) != string(disk) {
			t.Errorf("%s is not embedded as it is", file)
		}
	}
}

// TestOnlyTheLibraryAsks: what can go wrong on the way to the provider is dealt
// with in one place.
func TestOnlyTheLibraryAsks(t *testing.T) {
	err := fs.WalkDir(policies.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".rego" || strings.HasSuffix(path, "_test.rego") {
			return err
		}
		source, err := fs.ReadFile(policies.FS(), path)
		if err != nil {
			return err
		}
		if strings.Contains(string(source), "external_data") {
			t.Errorf("%s calls external_data; lib.provider does", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range lib.Names() {
		source, err := lib.Source(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(source, "external_data(") != (name == "provider") {
			t.Errorf("lib.%s: lib.provider alone calls external_data", name)
		}
	}
}
