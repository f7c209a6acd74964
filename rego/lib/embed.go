// Package lib holds the Rego library for authors of constraints: who is asked
// about images (lib.provider), which images an object runs (lib.images) and what
// their architectures mean for its nodes (lib.arch). The packages are named as
// Gatekeeper wants the libs of a ConstraintTemplate to be named.
package lib

import (
	"embed"
	"fmt"
)

//go:embed arch/arch.rego images/images.rego provider/provider.rego
var files embed.FS

// Names lists the library's packages, sorted: "arch" for data.lib.arch.
func Names() []string { return []string{"arch", "images", "provider"} }

// Source gives the Rego source of the package lib.<name>. It fails for a name
// that is not in Names.
func Source(name string) (string, error) {
	source, err := files.ReadFile(name + "/" + name + ".rego")
	if err != nil {
		return "", fmt.Errorf("rego library lib.%s: %w", name, err)
	}
	return string(source), nil
}
