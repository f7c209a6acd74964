// Command newpolicy makes the room of a new constraint, which passes its own
// tests and suite, to be changed from there. Run it through make new-policy.
//
//	go run ./policies/newpolicy [-root DIR] NAME
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/archkeeper/archkeeper/policies/internal/rooms"
)

func main() {
	root := flag.String("root", ".", "the root of the repository")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: newpolicy [-root DIR] NAME\n\nNAME is lower-case words joined by hyphens, such as my-rule.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || flag.Arg(0) == "" {
		flag.Usage()
		os.Exit(1)
	}
	dir, err := rooms.New(*root, flag.Arg(0), time.Now())
	if err != nil {
		fmt.Fprintln(os.Stderr, "newpolicy:", err)
		os.Exit(1)
	}
	fmt.Printf("%s\n", dir)
	fmt.Fprintln(os.Stderr, "Change policy.rego, room.yaml and the samples there, then: make generate test-rego test-policy")
}
