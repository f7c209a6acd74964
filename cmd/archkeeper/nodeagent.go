package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/archkeeper/archkeeper/controllers/nodeagent"
	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/internal/probes"
	"github.com/archkeeper/archkeeper/provider/credentials"
)

func newNodeAgentCommand(std streams) *cobra.Command {
	var (
		log                                        logFlags
		runtime, namespace, configMap, node, root  string
		probeListen, kubeconfig, reload, processes string
		authFiles                                  []string
		profiles                                   bool
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
			logger, level, err := log.open(std.err)
			if err != nil {
				return err
			}
			kind, err := nodeagent.ParseRuntime(runtime)
			if err != nil {
				return fmt.Errorf("--runtime: %w", err)
			}
			config, err := kube.Config(kubeconfig, os.Getenv, "archkeeper-node-agent/"+version)
			if err != nil {
				return err
			}
			if config == nil {
				return errors.New("no cluster: name one with --kubeconfig or KUBECONFIG")
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			metrics := prometheus.NewRegistry()
			options := nodeagent.Options{
				Client: client, Namespace: namespace, Name: configMap, Node: node, Runtime: kind, Root: root,
				Metrics: metrics, Log: logger,
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
			listener, err := net.Listen("tcp", probeListen) //nolint:noctx // at the start
			if err != nil {
				return fmt.Errorf("--probe-listen: %w", err)
			}
			group, ctx := errgroup.WithContext(cmd.Context())
			group.Go(func() error { return agent.Start(ctx) })
			group.Go(func() error { return agent.ServeProbes(ctx, listener, probes.Options{Gatherer: metrics, LogLevel: level, Pprof: profiles, Log: logger}) })
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
	flags.StringVar(&probeListen, "probe-listen", ":9090", "`ADDRESS` of health, metrics and the node's report, without TLS")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the cluster; else KUBECONFIG, else the pod's own access")
	log.add(flags)
	flags.BoolVar(&profiles, "pprof", false, "serve Go's profiles on the probe port")
	return cmd
}
