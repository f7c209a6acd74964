package main

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/archkeeper/archkeeper/controllers/nodeagent"
	"github.com/archkeeper/archkeeper/provider/credentials"
)

func newNodeAgentCommand(std streams) *cobra.Command {
	var (
		service                                   serviceFlags
		runtime, namespace, configMap, node, root string
		reload, processes                         string
		authFiles                                 []string
	)
	cmd := &cobra.Command{
		Use:   "node-agent",
		Short: "Keep the mirror files of this node",
		Long: `Node-agent writes the merged mirrors of the cluster to the node that it runs on: a
drop-in of registries.conf for CRI-O and Podman, hosts.toml files for containerd.
A file that would not load together with the node's own is never written, files
of others are never changed, and what no rule needs any more is removed.`,
		GroupID: groupServe,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kind, err := nodeagent.ParseRuntime(runtime)
			if err != nil {
				return fmt.Errorf("--runtime: %w", err)
			}
			metrics := prometheus.NewRegistry()
			s, err := service.open(std, metrics, "archkeeper-node-agent")
			if err != nil {
				return err
			}
			if s.cluster == nil {
				return errors.New("no cluster: name one with --kubeconfig or KUBECONFIG")
			}
			client, err := kubernetes.NewForConfig(s.cluster)
			if err != nil {
				return err
			}
			options := nodeagent.Options{
				Client: client, Namespace: namespace, Name: configMap, Node: node, Runtime: kind, Root: root,
				Metrics: metrics, Log: s.log,
			}
			switch {
			case reload == "sighup" && kind == nodeagent.CRIO:
				options.Reload = nodeagent.ReloadCRIO(processes)
			case reload != "none" && reload != "sighup":
				return fmt.Errorf("--reload %q is neither none nor sighup", reload)
			}
			if len(authFiles) > 0 {
				options.Keychain = credentials.NewFiles(authFiles...)
			}
			agent, err := nodeagent.New(options)
			if err != nil {
				return err
			}
			group, ctx := errgroup.WithContext(cmd.Context())
			group.Go(func() error { return agent.Start(ctx) })
			group.Go(func() error { return agent.ServeProbes(ctx, s.probe, s.probes(nil)) })
			return group.Wait()
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&runtime, "runtime", "crio", "container runtime whose files are kept: crio (and Podman) or containerd")
	flags.StringVar(&namespace, "namespace", "archkeeper", "namespace of the ConfigMap")
	flags.StringVar(&configMap, "configmap", "archkeeper-registries", "ConfigMap that the mirror controller writes")
	flags.StringVar(&node, "node", "", "name of this node, to learn its runtime's version; empty: not asked")
	flags.StringVar(&root, "root", "/", "`FOLDER` where the node's file system is mounted")
	flags.StringVar(&reload, "reload", "none", "for crio, after a change: none (CRI-O with auto_reload_registries) or sighup")
	flags.StringVar(&processes, "proc", "/proc", "`FOLDER` with the node's processes, for --reload=sighup")
	flags.StringArrayVar(&authFiles, "node-authfile", nil, "`FILE` with the node's own credentials, to report mirrors that have none; may be repeated")
	service.add(flags, "the ConfigMap")
	return cmd
}
