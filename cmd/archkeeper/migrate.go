package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/archkeeper/archkeeper/deploy/migrate"
	"github.com/archkeeper/archkeeper/internal/inputs"
)

func newMigrateCommand(std streams) *cobra.Command {
	var paths []string
	cmd := &cobra.Command{
		Use:   "migrate -f PATH...",
		Short: "Turn the multiarch-tuning-operator's configuration into ours",
		Long: `Migrate reads ClusterPodPlacementConfig and PodPlacementConfig objects of the
multiarch-tuning-operator, passes over all other kinds, and prints our
Configuration and one Gatekeeper mutation for each PodPlacementConfig. What has no
counterpart is named on standard error, one line each. The Configuration says
mode: observe; set it to enforce when the operator no longer acts.

Exit status: 0 everything has a counterpart; 1 usage error, or a file that is
missing or broken: nothing was printed; 2 something has no counterpart, and the
rest was printed.`,
		Example: `  oc get clusterpodplacementconfigs,podplacementconfigs -A -o yaml | archkeeper migrate -f -`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			files, err := inputs.Read(std.in, paths...)
			if err != nil {
				return err
			}
			var result migrate.Result
			for _, f := range files {
				if err := result.Add(f.Name, f.Data); err != nil {
					return err
				}
			}
			text, err := result.YAML()
			if err != nil {
				return err
			}
			if len(text) == 0 && len(result.Lost) == 0 {
				return errors.New("no ClusterPodPlacementConfig and no PodPlacementConfig was found")
			}
			for _, line := range result.Lost {
				fmt.Fprintln(std.err, line)
			}
			if _, err := std.out.Write(text); err != nil {
				return fmt.Errorf("write standard output: %w", err)
			}
			if len(result.Lost) > 0 {
				return exitWith(statusUnmet)
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "file or folder with the operator's objects, or - for standard input; may be repeated")
	if err := cmd.MarkFlagRequired("filename"); err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}
	return cmd
}
