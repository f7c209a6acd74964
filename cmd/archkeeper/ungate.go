package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/archkeeper/archkeeper/controllers/placement"
	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/internal/terminal"
	"github.com/archkeeper/archkeeper/rego"
)

// ungateFlags are those of `archkeeper ungate`.
type ungateFlags struct {
	all        bool
	namespace  string
	gate       string
	dryRun     bool
	kubeconfig string

	uninstall bool
	remove    []string
	stop      string
	lease     string
	timeout   time.Duration
}

func newUngateCommand(std streams) *cobra.Command {
	var f ungateFlags
	cmd := &cobra.Command{
		Use:   "ungate (--all | -n NAMESPACE | POD... [-n NAMESPACE])",
		Short: "Free pods that wait on our scheduling gate",
		Long: `Ungate takes our scheduling gate off pods, without placing them: they go wherever
their own selectors let them. Gates of others stay. Use it when the placement
controller is gone for good; while something still injects the gate, new pods get
it again.

With --uninstall it first deletes what injects the gate (--delete), and goes on
freeing pods until no more of them appear.

It prints the pods that were freed, one a line. Exit status: 0 all are free; 1 some
could not be freed.`,
		Example: `  archkeeper ungate --all --dry-run
  archkeeper ungate -n shop
  archkeeper ungate -n shop web-0 web-1`,
		GroupID: groupOperate,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.all && len(args) == 0 && !cmd.Flags().Changed("namespace") {
				return errors.New("ungate: name pods, a namespace with -n, or --all")
			}
			if f.all && len(args) > 0 {
				return errors.New("ungate: --all and names of pods exclude each other")
			}
			return f.run(cmd.Context(), std, args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.all, "all", "A", false, "free the pods of all namespaces")
	flags.StringVarP(&f.namespace, "namespace", "n", "default", "`NAMESPACE` of the pods; with --uninstall, the one that we run in")
	flags.StringVar(&f.gate, "gate", rego.DefaultGate, "`NAME` of the scheduling gate")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print what would be freed, and change nothing")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server; else KUBECONFIG, else the pod's own access")
	flags.BoolVar(&f.uninstall, "uninstall", false, "the product is being removed: delete what --delete names first, free pods until no more appear, and delete what the controllers made")
	flags.StringArrayVar(&f.remove, "delete", nil, "cluster-scoped `RESOURCE.VERSION.GROUP/NAME` to delete with --uninstall; may be repeated")
	flags.StringVar(&f.stop, "deployment", "", "`NAME` of the controllers' Deployment in --namespace, to delete with --uninstall once nothing is gated")
	flags.StringVar(&f.lease, "lease", "", "`NAME` of the controllers' Lease in --namespace, to delete with --uninstall")
	flags.DurationVar(&f.timeout, "timeout", 2*time.Minute, "time after which --uninstall stops waiting for more pods")
	return cmd
}

func (f *ungateFlags) run(ctx context.Context, std streams, names []string) error {
	cluster, err := kube.Config(f.kubeconfig, os.Getenv, "archkeeper/"+version)
	if err != nil {
		return err
	}
	if cluster == nil {
		return errors.New("ungate: no cluster: name one with --kubeconfig or KUBECONFIG")
	}
	client, err := kubernetes.NewForConfig(cluster)
	if err != nil {
		return err
	}
	var bar *terminal.Bar
	ungate := placement.Ungate{
		Client: client, Gate: f.gate, Namespace: f.namespace, Names: names, DryRun: f.dryRun,
		Found: func(total int) {
			bar.Close()
			bar = terminal.NewBar(std.err, "pods", total)
		},
		Step: func() { bar.Step() },
	}
	if f.all || f.uninstall {
		ungate.Namespace = ""
	}
	run := ungate.Run
	if f.uninstall && !f.dryRun {
		objects, err := dynamic.NewForConfig(cluster)
		if err != nil {
			return err
		}
		run = placement.Uninstall{Ungate: ungate, Objects: objects, Namespace: f.namespace, Delete: f.remove, Deployment: f.stop, Lease: f.lease, Timeout: f.timeout}.Run
	}
	freed, err := run(ctx)
	bar.Close()
	for _, pod := range freed {
		fmt.Fprintln(std.out, pod)
	}
	return err
}
