package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/archkeeper/archkeeper/internal/clusterimages"
	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/provider/report"
	"github.com/archkeeper/archkeeper/provider/workloads"
)

func newImagesCommand(std streams) *cobra.Command {
	var (
		ask           askFlags
		paths         []string
		namespace     string
		allNamespaces bool
		kubeconfig    string
	)
	formats := []report.Format{report.Table, report.Wide, report.JSON, report.YAML, report.Name, report.CSV}
	cmd := &cobra.Command{
		Use:   "images (-A | -n NAMESPACE | -f FILE|DIR|-)",
		Short: "List the images of a cluster or of manifests, and where they run",
		Long: `Images lists every image that a cluster or a set of manifests uses, once, with its
platforms and the workloads that use it: to see what stands between a cluster and
nodes of another architecture.

With -A or -n the images are those of the pods, and of the Deployments,
StatefulSets, DaemonSets, Jobs, CronJobs and ReplicaSets that may start more. The
workload is the outermost one, a Deployment rather than its pods. The cluster is
that of --kubeconfig, of KUBECONFIG, or of ~/.kube/config. No pull secret of the
cluster is read: give credentials for private images with --authfile.

Exit status: 0 every image is known; 1 usage error, or a file or cluster that
cannot be read; 3 at least one image has an error.`,
		Example: `  # Every image of the cluster
  archkeeper images -A

  # What a namespace lacks for arm64 nodes
  archkeeper images -n shop -o json | jq -r '.[] | select(.architectures and (.architectures | index("arm64") | not)) | .image'

  # Manifests, as a spreadsheet
  archkeeper images -f deploy/ -o csv > images.csv`,
		GroupID: groupAsk,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags := cmd.Flags(); !flags.Changed("filename") && !flags.Changed("namespace") && !flags.Changed("all-namespaces") {
				return errors.New("say which images: -A for all of the cluster, -n NAMESPACE, or -f PATH")
			}
			format, err := report.ParseFormat(ask.output, formats...)
			if err != nil {
				return err
			}
			images, err := usedImages(cmd.Context(), std, paths, namespace, allNamespaces, kubeconfig)
			if err != nil {
				return err
			}
			rows, err := ask.ask(cmd.Context(), std, images)
			if err != nil {
				return err
			}
			if err := ask.print(std, format, rows); err != nil {
				return err
			}
			return exitWith(report.InspectStatus(rows))
		},
	}
	ask.add(cmd, "table, wide, json, yaml, name or csv")
	ask.complete(cmd, formats...)
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "`PATH` of manifests: a file, a folder, or - for standard input; may be repeated")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`NAMESPACE` of the cluster")
	cmd.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false, "all namespaces of the cluster")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "`FILE` that names the cluster")
	cmd.MarkFlagsMutuallyExclusive("filename", "namespace", "all-namespaces")
	return cmd
}

// usedImages gives the images of files, or else of a cluster.
func usedImages(ctx context.Context, std streams, paths []string, namespace string, all bool, kubeconfig string) ([]workloads.Image, error) {
	if len(paths) > 0 {
		return readImages(std, paths)
	}
	if !all && namespace == "" {
		return nil, errors.New("-n needs the name of a namespace; -A is all of them")
	}
	config, err := kube.PersonConfig(kubeconfig, os.Getenv, "archkeeper/"+version)
	if err != nil {
		return nil, err
	}
	if config == nil {
		return nil, errors.New("no cluster: name one with --kubeconfig or KUBECONFIG, or files with -f")
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	uses, missing, err := clusterimages.List(ctx, client, namespace)
	if err != nil {
		return nil, err
	}
	for _, text := range missing {
		fmt.Fprintln(std.err, "warning:", text)
	}
	return workloads.ByImage(uses), nil
}
