// Command archkeeper keeps pods off nodes that cannot run them. It is one
// binary: the tools for people (inspect, check, images, explain, mirrors ...)
// and the services of a cluster (provider, controllers, node-agent). It also
// works as a kubectl plugin under the name kubectl-archkeeper.
//
// Each subcommand has a file of its own here: its flags, then its constructors
// in reading order. What they do lives in packages that can be tested without a
// process around them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit statuses that scripts rely on.
const (
	statusSatisfied    = 0
	statusFailed       = 1 // usage or internal error
	statusUnmet        = 2 // a requirement is not met
	statusUndetermined = 3
)

// streams are the process's standard streams: stdout for data alone, stderr for
// everything else.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// statusError is the error of a command that has printed all there is to say.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// exitWith gives the error that ends the process with a status; nil for 0.
func exitWith(status int) error {
	if status == statusSatisfied {
		return nil
	}
	return statusError(status)
}

func main() {
	// net/http writes to the standard logger, which follows slog's, what a registry
	// sent out of turn. Here stderr is for the user, and services have a logger of
	// their own.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	status := run(ctx, os.Args, streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(status)
}

// run executes one command line, args[0] being the name of the program, and
// gives the exit status.
func run(ctx context.Context, args []string, std streams) int {
	root := newRootCommand(std) //nolint:contextcheck // commands take theirs from ExecuteContext
	if filepath.Base(args[0]) == "kubectl-archkeeper" {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl archkeeper"}
	}
	root.SetArgs(args[1:])
	err := root.ExecuteContext(ctx)
	var status statusError
	switch {
	case err == nil:
		return statusSatisfied
	case errors.As(err, &status):
		return int(status)
	}
	fmt.Fprintln(std.err, "archkeeper:", err)
	return statusFailed
}

// defined makes a command say what is wrong with the definition of its flags.
func defined(cmd *cobra.Command, err error) {
	if err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}
}

func newRootCommand(std streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "archkeeper",
		Short: "Keep pods off nodes that cannot run them",
		Long: `Archkeeper answers one question, which platforms can this image run on, and lets
Kubernetes policy act on the answer.

Exit status: 0 all is well; 1 usage or internal error; 2 a requirement is not
met; 3 undetermined, because a registry did not give an answer.`,
		Example: `  # Which platforms does an image run on?
  archkeeper inspect busybox

  # Do all images of my manifests run on both kinds of nodes?
  archkeeper check --require linux/amd64,linux/arm64 -f deploy/`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(std.in)
	root.SetOut(std.out)
	root.SetErr(std.err)
	root.AddGroup(
		&cobra.Group{ID: groupAsk, Title: "Ask about images and pods:"},
		&cobra.Group{ID: groupServe, Title: "Serve a cluster:"},
		&cobra.Group{ID: groupOperate, Title: "Operate:"},
	)
	root.AddCommand(
		newMirrorsCommand(std),
		newNodeAgentCommand(std),
		newInspectCommand(std),
		newCheckCommand(std),
		newImagesCommand(std),
		newExplainCommand(std),
		newDemoCommand(std),
		newProviderCommand(std),
		newControllersCommand(std),
		newAllInOneCommand(std),
		newImportModeCommand(std),
		newUngateCommand(std),
		newMigrateCommand(std),
		newDoctorCommand(std),
		newVersionCommand(std),
		newDocsCommand(),
	)
	return root
}

// The groups in which --help lists the subcommands.
const (
	groupAsk     = "ask"
	groupServe   = "serve"
	groupOperate = "operate"
)
