package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/archkeeper/archkeeper/internal/inputs"
	"github.com/archkeeper/archkeeper/provider/report"
	"github.com/archkeeper/archkeeper/provider/workloads"
)

func newCheckCommand(std streams) *cobra.Command {
	var (
		ask     askFlags
		require []string
		paths   []string
	)
	formats := []report.Format{report.Table, report.Wide, report.JSON, report.YAML, report.Name}
	cmd := &cobra.Command{
		Use:   "check --require PLATFORM[,PLATFORM...] (IMAGE... | -f FILE|DIR|-)",
		Short: "Fail when images do not run on required platforms",
		Long: `Check tells whether images run on every one of the required platforms: made for a
pipeline, before anything reaches a cluster.

A requirement is met by what a node of that platform would run: windows/amd64 by
any version of Windows, linux/arm/v7 by linux/arm/v6, linux/amd64 by linux/386,
and linux/amd64 not by linux/amd64/v3.

With -f the images are those of the containers, init containers, ephemeral
containers and image volumes of everything that holds a pod: Pod, Deployment,
StatefulSet, DaemonSet, ReplicaSet, Job, CronJob, PodTemplate, Lists of them, and
custom kinds with a pod template in the usual place. Other objects are passed
over. An image that is only mounted may be data.

Exit status: 0 every requirement is met; 1 usage error, a file that is missing or
broken, or no image at all; 2 a requirement is not met, or an image can run
nowhere; 3 an image could not be determined (2 wins over 3).`,
		Example: `  # Does this image run on both kinds of nodes?
  archkeeper check --require linux/amd64,linux/arm64 busybox

  # All images of a folder of manifests
  archkeeper check --require linux/arm64 -f deploy/

  # What a chart or a kustomization renders
  helm template my-chart | archkeeper check --require linux/amd64,linux/arm64 -f -

  # Only the names of those that fail
  archkeeper check --require linux/s390x -f deploy/ -o name`,
		GroupID:           groupAsk,
		ValidArgsFunction: cobra.NoFileCompletions, // images are no files
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := report.ParseFormat(ask.output, formats...)
			if err != nil {
				return err
			}
			required, err := report.ParseRequirement(require)
			if err != nil {
				return err
			}
			images, err := namedOrRead(std, args, paths)
			if err != nil {
				return err
			}
			rows, err := ask.ask(cmd.Context(), std, images)
			if err != nil {
				return err
			}
			report.Judge(rows, required)
			if err := ask.print(std, format, rows); err != nil {
				return err
			}
			fmt.Fprintln(std.err, report.Summary(rows))
			return exitWith(report.Status(rows))
		},
	}
	ask.add(cmd, "table, wide, json, yaml or name (those that do not meet a requirement)")
	ask.complete(cmd, formats...)
	cmd.Flags().StringSliceVar(&require, "require", nil, "`PLATFORM` on which every image must run, os/architecture[/variant]; may be repeated or a list")
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "`PATH` of manifests: a file, a folder, or - for standard input; may be repeated")
	platforms := []string{"linux/amd64", "linux/arm64", "linux/ppc64le", "linux/s390x", "windows/amd64"}
	defined(cmd, errors.Join(
		cmd.MarkFlagRequired("require"),
		cmd.RegisterFlagCompletionFunc("require", cobra.FixedCompletions(platforms, cobra.ShellCompDirectiveNoFileComp)),
	))
	return cmd
}

// namedOrRead gives the images of the arguments or those of the files, and an
// error for both or neither.
func namedOrRead(std streams, args, paths []string) ([]workloads.Image, error) {
	switch {
	case len(args) > 0 && len(paths) > 0:
		return nil, errors.New("name images or give -f, not both")
	case len(args) > 0:
		return workloads.Named(args), nil
	case len(paths) > 0:
		images, err := readImages(std, paths)
		if err == nil && len(images) == 0 {
			err = fmt.Errorf("no image found in %q", paths)
		}
		return images, err
	}
	return nil, errors.New("name at least one image, or give -f")
}

// readImages gives the images of the manifests that -f names.
func readImages(std streams, paths []string) ([]workloads.Image, error) {
	files, err := inputs.Read(std.in, paths...)
	if err != nil {
		return nil, err
	}
	var uses []workloads.Use
	for _, file := range files {
		found, err := workloads.Extract(file.Name, file.Data)
		if err != nil {
			return nil, err
		}
		uses = append(uses, found...)
	}
	return workloads.ByImage(uses), nil
}
