package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/archkeeper/archkeeper/internal/batch"
	"github.com/archkeeper/archkeeper/internal/terminal"
	"github.com/archkeeper/archkeeper/provider/report"
	"github.com/archkeeper/archkeeper/provider/workloads"
)

// askFlags are those of the commands that ask about images and print what they
// learn: inspect, check, images.
type askFlags struct {
	registries registryFlags
	timeout    time.Duration
	output     string
	verbose    bool
}

func (f *askFlags) add(cmd *cobra.Command, formats string) {
	flags := cmd.Flags()
	f.registries.add(flags)
	flags.Var((*timeLimit)(&f.timeout), "timeout", "deadline for each image, such as 10s; none when 0")
	flags.StringVarP(&f.output, "output", "o", string(report.Table), "`FORMAT` of the output: "+formats)
	flags.BoolVar(&f.verbose, "verbose", false, "log to stderr what messages leave out")
}

// timeLimit is the value of a flag: a duration, 0 or more.
type timeLimit time.Duration

func (l *timeLimit) Set(text string) error {
	duration, err := time.ParseDuration(text)
	if err != nil {
		return errors.New(`must be a duration like "30s" or "5m"`)
	}
	if duration < 0 {
		return errors.New("must not be negative")
	}
	*l = timeLimit(duration)
	return nil
}

func (l *timeLimit) Type() string { return "duration" }

func (l *timeLimit) String() string {
	if *l == 0 {
		return "" // no default to show
	}
	return time.Duration(*l).String()
}

// complete lets a shell complete the formats of -o.
func (f *askFlags) complete(cmd *cobra.Command, formats ...report.Format) {
	names := make([]string, len(formats))
	for i, format := range formats {
		names[i] = string(format)
	}
	defined(cmd, cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)))
}

// someImages asks for at least one argument, an image.
func someImages(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("name at least one image")
	}
	return nil
}

func (f *askFlags) log(std streams) *slog.Logger {
	if !f.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(std.err, nil))
}

// ask gives a row for each image, in their order.
func (f *askFlags) ask(ctx context.Context, std streams, images []workloads.Image) ([]report.Row, error) {
	inspector, err := f.registries.openInspector(ctx, f.log(std))
	if err != nil {
		return nil, err
	}
	defer inspector.Close()
	names := make([]string, len(images))
	for i, image := range images {
		names[i] = image.Image
	}
	bar := terminal.NewBar(std.err, "images", len(names))
	answers := batch.Inspect(ctx, inspector, names, f.timeout, bar.Step)
	bar.Close()
	return report.Rows(images, answers), nil
}

// print writes the rows to stdout, and to stderr what a person should know
// beside them.
func (f *askFlags) print(std streams, format report.Format, rows []report.Row) error {
	writer := report.Writer{Format: format, Colour: terminal.Colour(std.out, os.Getenv)}
	if err := writer.Write(std.out, rows); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	for _, note := range report.Notes(rows, format) {
		fmt.Fprintln(std.err, note)
	}
	return nil
}

func newInspectCommand(std streams) *cobra.Command {
	var ask askFlags
	formats := []report.Format{report.Table, report.Wide, report.JSON, report.YAML, report.Name}
	cmd := &cobra.Command{
		Use:   "inspect IMAGE...",
		Short: "Tell which platforms images run on",
		Long: `Inspect asks the registries which platforms each image runs on, as a node would
see it. Most images cost one request, and no layer is ever pulled.

Platforms are written as containerd writes them: linux/arm64, linux/arm/v7,
windows(10.0.17763.1)/amd64. The architectures in the JSON are values of the
node label kubernetes.io/arch.

Without --authfile the credentials of your own docker login or podman login are
used where there are any.

Exit status: 0 every image is known; 1 usage error, or a file that is missing or
broken; 3 at least one image has an error.`,
		Example: `  # One image
  archkeeper inspect busybox

  # Several, with digest, kind and mirror
  archkeeper inspect -o wide quay.io/prometheus/prometheus ghcr.io/cli/cli:latest

  # For a script: the nodes' architectures of an image
  archkeeper inspect -o json busybox | jq -r '.[].architectures[]'

  # Through a cluster's mirrors, with its pull secret and its authority
  archkeeper inspect --registries-conf /etc/containers/registries.conf \
    --authfile /var/lib/kubelet/config.json --ca-file ca.crt registry.corp.example/app:1

  # A registry on this machine, no more than two seconds an image
  archkeeper inspect --plain-http-host localhost:5000 --timeout 2s localhost:5000/app`,
		GroupID:           groupAsk,
		ValidArgsFunction: cobra.NoFileCompletions, // images are no files
		Args:              someImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := report.ParseFormat(ask.output, formats...)
			if err != nil {
				return err
			}
			rows, err := ask.ask(cmd.Context(), std, workloads.Named(args))
			if err != nil {
				return err
			}
			if err := ask.print(std, format, rows); err != nil {
				return err
			}
			return exitWith(report.InspectStatus(rows))
		},
	}
	ask.add(cmd, "table, wide, json, yaml or name (canonical references)")
	ask.complete(cmd, formats...)
	return cmd
}
