// Command generate writes what follows from the sources of the policy rooms: the
// ConstraintTemplates (policy.rego, the libraries that it imports and the schema
// of its parameters), the README of each room, the table of all rooms and the
// Artifact Hub metadata. It also formats the Rego. Run it through make generate.
//
//	go run ./policies/generate [-check | -fmt] [-root DIR]
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/archkeeper/archkeeper/policies/internal/rooms"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail when something is not as it would be written")
	only := flag.Bool("fmt", false, "format the Rego and write nothing else")
	root := flag.String("root", ".", "the root of the repository")
	flag.Parse()
	act := rooms.Generate
	switch {
	case *check:
		act = rooms.Check
	case *only:
		act = rooms.Format
	}
	if err := act(*root); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
