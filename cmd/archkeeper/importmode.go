package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/archkeeper/archkeeper/controllers/importmode"
	"github.com/archkeeper/archkeeper/internal/inputs"
	"github.com/archkeeper/archkeeper/internal/kube"
)

func newImportModeCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "importmode",
		Short:   "Look at how image streams import manifest lists (OpenShift)",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
	}
	cmd.AddCommand(newImportModeAuditCommand(std))
	return cmd
}

func newImportModeAuditCommand(std streams) *cobra.Command {
	var (
		ask        askFlags
		paths      []string
		kubeconfig string
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Find image streams that hold pods back, and what a switch would cost",
		Long: `Audit reads image streams, nodes, pods and the cluster's import mode, asks the
registries about the sources of tags that import one architecture, and changes
nothing. Without -f it reads the cluster of --kubeconfig or KUBECONFIG.

It finds tags with a mode of their own and who set it, nodes of several
architectures under a payload of one, and pods that use one architecture of an
image whose source runs on more; and it estimates how many Image objects, and
how many bytes of them, a switch to PreserveOriginal would add.

Exit status: 0 nothing was found; 1 usage or internal error; 2 something was
found; 3 the only findings are sources that could not be inspected.`,
		Example: `  archkeeper importmode audit --kubeconfig ~/.kube/config
  oc get imagestreams,pods,nodes -A -o yaml | archkeeper importmode audit -f - -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ask.output != "table" && ask.output != "json" {
				return fmt.Errorf("unknown output %q: it is table or json", ask.output)
			}
			var inventory importmode.Inventory
			if len(paths) > 0 {
				files, err := inputs.Read(std.in, paths...)
				if err != nil {
					return err
				}
				for _, f := range files {
					if err := inventory.Read(f.Name, f.Data); err != nil {
						return err
					}
				}
			} else {
				config, err := kube.Config(kubeconfig, os.Getenv, "archkeeper/"+version)
				if err != nil {
					return err
				}
				if config == nil {
					return errors.New("no cluster: name one with --kubeconfig or KUBECONFIG, or files with -f")
				}
				client, err := dynamic.NewForConfig(config)
				if err != nil {
					return err
				}
				if inventory, err = importmode.FromCluster(cmd.Context(), client); err != nil {
					return err
				}
			}
			inspector, err := ask.registries.openInspector(cmd.Context(), ask.log(std))
			if err != nil {
				return err
			}
			defer inspector.Close()
			report := importmode.Audit(cmd.Context(), inventory, inspector)
			if ask.output == "json" {
				err = report.WriteJSON(std.out)
			} else {
				err = report.WriteTable(std.out)
			}
			if err != nil {
				return fmt.Errorf("write the result: %w", err)
			}
			return exitWith(report.ExitStatus())
		},
	}
	ask.add(cmd, "table or json")
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "file or folder with objects, or - for standard input; may be repeated")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the cluster; else KUBECONFIG")
	return cmd
}
