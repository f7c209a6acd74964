package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/archkeeper/archkeeper/internal/inputs"
	"github.com/archkeeper/archkeeper/internal/mirroraudit"
	"github.com/archkeeper/archkeeper/internal/terminal"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/mirrors/report"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/provider/workloads"
)

func newMirrorsCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mirrors",
		Short: "Render, explain and audit mirrors",
		Long: `Mirror objects are ImageDigestMirrorSet, ImageTagMirrorSet,
ImageContentSourcePolicy and the registry sources of Image/cluster. Render and
explain read them from files and need no cluster; audit asks registries whether
mirrors hold what their sources hold.`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
	}
	cmd.AddCommand(newMirrorsRenderCommand(std), newMirrorsExplainCommand(std), newMirrorsAuditCommand(std))
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
rendered all the same. Objects that need no policy.json or hosts.toml print none, and
standard error says so.

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
			if len(data) == 0 && output != report.RegistriesConf { // whose stderr is for rejections alone
				fmt.Fprintf(std.err, "nothing is printed: the objects ask for no %s\n", output)
			}
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
		Args:    someImages,
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

func newMirrorsAuditCommand(std streams) *cobra.Command {
	var (
		ask           askFlags
		paths         []string
		namespace     string
		allNamespaces bool
		kubeconfig    string
		architectures []string
	)
	cmd := &cobra.Command{
		Use:   "audit -f PATH... [IMAGE...]",
		Short: "Say which mirrors lost something that their source has",
		Long: `Audit compares mirrors with their sources, manifest by manifest: identical;
flattened (one image of an index stands in its place); sparse (the index is there,
images of it are not); subset or reindexed (another index of the same images);
mislabelled (an image under another platform than its own); stale; missing. For
each that differs it prints a command that mends it; nothing is changed.

The mirrors are those of the objects in -f, or of --registries-conf. The images
are the arguments, those of the workloads in -f, and with -A or -n those of a
cluster.

Exit status: 0 all are identical; 1 usage error, or a file or cluster that cannot
be read; 2 a mirror differs; 3 a registry did not give an answer.`,
		Example: `  archkeeper mirrors audit -f mirrors/ -f deploy/
  archkeeper mirrors audit -f mirrors/ -A --architectures amd64,arm64 -o json`,
		RunE: func(cmd *cobra.Command, references []string) error {
			if ask.output != report.Table && ask.output != report.JSON {
				return fmt.Errorf("unknown output %q: it is table or json", ask.output)
			}
			log := ask.log(std)
			rules, images, err := readMirrored(std, paths)
			if err != nil {
				return err
			}
			if ask.registries.registriesConf != "" {
				named, err := ask.registries.openMirrors(log, nil)
				if err != nil {
					return err
				}
				rules = named.Current()
			}
			if len(rules.Entries()) == 0 {
				return errors.New("no mirrors: name their objects with -f, or a file with --registries-conf")
			}
			images = append(images, references...)
			if allNamespaces || namespace != "" {
				used, err := usedImages(cmd.Context(), std, nil, namespace, allNamespaces, kubeconfig)
				if err != nil {
					return err
				}
				for _, image := range used {
					images = append(images, image.Image)
				}
			}
			slices.Sort(images)
			images = slices.Compact(images)
			files := ask.registries.authFiles
			if len(files) == 0 {
				files = ownAuthFile(os.Getenv)
			}
			keychain, err := ask.registries.openKeychain(cmd.Context(), files)
			if err != nil {
				return err
			}
			connections, err := ask.registries.openReach(log)
			if err != nil {
				return err
			}
			inspector, err := registry.New(registry.Options{
				Keychain: keychain, Reach: connections, Mirrors: rules.InsecureOnly, Log: log, UserAgent: "archkeeper/" + version, FetchTimeout: ask.timeout,
			})
			if err != nil {
				return err
			}
			defer inspector.Close()
			bar := terminal.NewBar(std.err, "images", len(images))
			findings := mirroraudit.Audit(cmd.Context(), inspector, rules, images, mirroraudit.Options{Architectures: architectures, Step: bar.Step})
			bar.Close()
			if ask.output == report.JSON {
				err = mirroraudit.WriteJSON(std.out, findings)
			} else {
				err = mirroraudit.WriteTable(std.out, findings)
			}
			if err != nil {
				return fmt.Errorf("write the result: %w", err)
			}
			return exitWith(mirroraudit.ExitStatus(findings))
		},
	}
	ask.add(cmd, "table or json")
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "`PATH` of mirror objects and of manifests with images: a file, a folder, or - for standard input; may be repeated")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`NAMESPACE` of the cluster whose images are looked at")
	cmd.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false, "the images of all namespaces of the cluster")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "`FILE` that names the cluster")
	cmd.Flags().StringSliceVar(&architectures, "architectures", nil, "architectures whose images mirrors must have; all when not given")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

// readMirrored gives the mirror rules of files, and the images of the workloads
// in them.
func readMirrored(std streams, paths []string) (*mirrors.Config, []string, error) {
	files, err := inputs.Read(std.in, paths...)
	if err != nil {
		return nil, nil, err
	}
	var named []mirrors.NamedFile
	var images []string
	for _, f := range files {
		named = append(named, mirrors.NamedFile(f))
		uses, err := workloads.Extract(f.Name, f.Data)
		if err != nil {
			return nil, nil, err
		}
		for _, image := range workloads.ByImage(uses) {
			images = append(images, image.Image)
		}
	}
	objects, err := mirrors.Decode(named...)
	if err != nil {
		return nil, nil, err
	}
	res := mirrors.Build(objects, mirrors.Options{})
	report.Problems(std.err, res, report.Table)
	return res.Config, images, nil
}

func addPathsFlag(cmd *cobra.Command, paths *[]string) {
	cmd.Flags().StringArrayVarP(paths, "filename", "f", nil, "file or folder with mirror objects, or - for standard input; may be repeated")
	defined(cmd, cmd.MarkFlagRequired("filename"))
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
