// Command build builds the control plane's programs, when they are not there,
// and prints their folder. The tests do the same by themselves; a cold build
// may outlast the ten minutes that go test grants by default.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/archkeeper/archkeeper/tests/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	dir, err := controlplane.Build(ctx, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
