package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/archkeeper/archkeeper/internal/inputs"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/mirrors/report"
)

func newMirrorsCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mirrors",
		Short: "Render and explain mirror objects",
		Long: `Mirror objects are ImageDigestMirrorSet, ImageTagMirrorSet,
ImageContentSourcePolicy and the registry sources of Image/cluster. These
commands read them from files and need no cluster.`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
	}
	cmd.AddCommand(newMirrorsRenderCommand(std), newMirrorsExplainCommand(std))
	return cmd
}

func newMirrorsRenderCommand(std streams) *cobra.Command {
	var (
		paths  []string
		output string
		pools  []string
	)
	cmd := &cobra.Command{
		Use:   "render -f PATH...",
		Short: "Write the registries.conf that mirror objects mean",
		Long: `Render reads mirror objects, passes over all other kinds, and prints the file that
they mean together on standard output. What cannot be accepted is named on
standard error, one line each, <kind>/<name> <field path>: <reason>; the rest is
rendered all the same.

Exit status: 0 everything was accepted; 1 usage error, or a file that is missing
or no YAML: nothing was printed; 2 something was rejected or contradicts itself.`,
		Example: `  archkeeper mirrors render -f mirrors/ > 60-archkeeper.conf
  kubectl get idms,itms,images.config -o yaml | archkeeper mirrors render -f - -o containerd`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			res, err := readMirrors(std, paths)
			if err != nil {
				return err
			}
			data, err := report.Render(res, output, pools)
			if err != nil {
				return err
			}
			report.Problems(std.err, res, output)
			if _, err := std.out.Write(data); err != nil {
				return fmt.Errorf("write standard output: %w", err)
			}
			if len(res.Rejected)+len(res.Conflicts) > 0 {
				return exitWith(statusUnmet)
			}
			return nil
		},
	}
	addPathsFlag(cmd, &paths)
	cmd.Flags().StringVarP(&output, "output", "o", report.RegistriesConf, "registries.conf, containerd, machineconfig, policy.json or json")
	cmd.Flags().StringArrayVar(&pools, "pool", []string{"master", "worker"}, "for machineconfig: a pool of nodes; may be repeated")
	return cmd
}

func newMirrorsExplainCommand(std streams) *cobra.Command {
	var (
		paths  []string
		output string
	)
	cmd := &cobra.Command{
		Use:   "explain REF... -f PATH...",
		Short: "Say where a runtime looks for an image",
		Long: `Explain prints the places that a container runtime tries for a reference, in their
order, when it reads the file that render writes. Blocked places are left out;
the source itself is last unless it is blocked. In the table, a reference
without tag and digest is shown pulled by tag and by digest. Warnings go to
standard error and do not change the exit status.`,
		Example: `  archkeeper mirrors explain quay.io/org/app:v1 -f mirrors/ -o json`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, references []string) error {
			res, err := readMirrors(std, paths)
			if err != nil {
				return err
			}
			explanations, warnings, err := report.Explain(res, references)
			if err != nil {
				return err
			}
			var data []byte
			switch output {
			case report.Table:
				data, err = report.ExplainTable(res, references)
			case report.JSON:
				data, err = report.ExplainJSON(explanations)
			default:
				err = fmt.Errorf("unknown output %q: it is table or json", output)
			}
			if err != nil {
				return err
			}
			report.Problems(std.err, res, output)
			for _, w := range warnings {
				fmt.Fprintln(std.err, "warning:", w)
			}
			if _, err := std.out.Write(data); err != nil {
				return fmt.Errorf("write standard output: %w", err)
			}
			return nil
		},
	}
	addPathsFlag(cmd, &paths)
	cmd.Flags().StringVarP(&output, "output", "o", report.Table, "table or json")
	return cmd
}

func addPathsFlag(cmd *cobra.Command, paths *[]string) {
	cmd.Flags().StringArrayVarP(paths, "filename", "f", nil, "file or folder with mirror objects, or - for standard input; may be repeated")
	if err := cmd.MarkFlagRequired("filename"); err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}
}

// readMirrors merges the mirror objects of all files.
func readMirrors(std streams, paths []string) (*mirrors.Result, error) {
	files, err := inputs.Read(std.in, paths...)
	if err != nil {
		return nil, err
	}
	named := make([]mirrors.NamedFile, 0, len(files))
	for _, f := range files {
		named = append(named, mirrors.NamedFile(f))
	}
	objects, err := mirrors.Decode(named...)
	if err != nil {
		return nil, err
	}
	return mirrors.Build(objects, mirrors.Options{}), nil
}
