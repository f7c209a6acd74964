// Command table writes docs/registries.md from the cases of registrytest.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/archkeeper/archkeeper/tests/registrytest"
)

func main() {
	output := flag.String("o", "docs/registries.md", "`file` to write")
	flag.Parse()
	if err := os.WriteFile(*output, registrytest.Page(), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
