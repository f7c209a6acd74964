package lib_test

import (
	"testing"

	"github.com/archkeeper/archkeeper/rego/lib"
	"github.com/archkeeper/archkeeper/rego/lib/regotest"
)

func TestRego(t *testing.T) {
	regotest.Run(t, ".", nil)
}

func TestSource(t *testing.T) {
	for _, name := range lib.Names() {
		if source, err := lib.Source(name); err != nil || source == "" {
			t.Errorf("Source(%q): %d bytes, %v", name, len(source), err)
		}
	}
	if _, err := lib.Source("nothing"); err == nil {
		t.Error("a package that does not exist has a source")
	}
}
