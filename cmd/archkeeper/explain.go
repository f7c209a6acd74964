package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/internal/batch"
	"github.com/archkeeper/archkeeper/internal/explain"
	"github.com/archkeeper/archkeeper/internal/inputs"
	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/internal/terminal"
	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/rego"
)

// explainFlags are those of `archkeeper explain`.
type explainFlags struct {
	ask           askFlags
	file          string
	configFile    string
	policyDir     string
	architectures []string
	systems       []string
	kubeconfig    string
	namespace     string
}

func newExplainCommand(std streams) *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain (POD [-n NAMESPACE] | -f FILE)",
		Short: "Tell what would happen to a pod, and why",
		Long: `Explain asks the registries about the images of one pod and shows the decision of
the placement policy: where the pod may go, and the patch that says so. It changes
nothing. With -f it needs no cluster.

A pod that waits on our scheduling gate is judged as the placement controller would
judge it, any other as admission would. Explain asks once and does not wait.

Exit status: 0 the pod is placed, or is not ours to place; 1 usage error, or a file
that is no pod; 2 the images have no architecture in common, or the pod's own
selectors contradict them; 3 undetermined, because an image is unknown or bad.`,
		Example: `  archkeeper explain -f pod.yaml
  kubectl get pod web-0 -o yaml | archkeeper explain -f - -o json | jq .patch
  archkeeper explain web-0 -n shop --kubeconfig ~/.kube/config

  # With the cluster's settings, in a cluster with Windows nodes
  archkeeper explain -f pod.yaml --config archkeeper.yaml \
    --cluster-architectures amd64,arm64 --cluster-operating-systems linux,windows`,
		GroupID: groupAsk,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (f.file == "") == (len(args) == 0) {
				return errors.New("explain: name a pod of the cluster, or a file with -f")
			}
			if f.ask.output != "table" && f.ask.output != "json" {
				return fmt.Errorf("unknown output %q: it is table or json", f.ask.output)
			}
			return f.run(cmd.Context(), std, args)
		},
	}
	flags := cmd.Flags()
	f.ask.add(cmd, "table or json")
	flags.StringVarP(&f.file, "filename", "f", "", "`FILE` with one pod, in YAML or JSON; - for standard input")
	flags.StringVar(&f.configFile, "config", "", "`FILE` with the configuration; the defaults when not given")
	flags.StringVar(&f.policyDir, "policy-dir", "", "`DIR` of Rego files, or an OPA bundle, that extends or replaces the placement policy")
	flags.StringSliceVar(&f.architectures, "cluster-architectures", nil, "`ARCHITECTURES` of the cluster's nodes, such as amd64,arm64; with -f unknown when not given")
	flags.StringSliceVar(&f.systems, "cluster-operating-systems", []string{"linux"}, "operating `SYSTEMS` of the cluster's nodes, such as linux,windows")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server for a pod of the cluster; else KUBECONFIG")
	flags.StringVarP(&f.namespace, "namespace", "n", "default", "`NAMESPACE` of the pod of the cluster")
	return cmd
}

func (f *explainFlags) run(ctx context.Context, std streams, args []string) error {
	question := explain.Question{
		Placement: config.Default().Placement,
		Cluster:   rego.Cluster{Architectures: f.architectures, OperatingSystems: f.systems},
	}
	if f.configFile != "" {
		files, err := inputs.Read(std.in, f.configFile)
		if err != nil {
			return err
		}
		if len(files) != 1 {
			return fmt.Errorf("%s: the configuration is one file", f.configFile)
		}
		parsed, err := config.Parse(files[0].Data)
		if err != nil {
			return fmt.Errorf("%s: %w", f.configFile, err)
		}
		question.Placement = parsed.Placement
	}
	question.Placement = question.Placement.Excluding(config.DefaultSystemNamespaces()...)

	if f.file != "" {
		files, err := inputs.Read(std.in, f.file)
		if err != nil {
			return err
		}
		if len(files) != 1 {
			return fmt.Errorf("%s: explain takes one file", f.file)
		}
		if question.Pod, err = explain.ParsePod(files[0].Data); err != nil {
			return fmt.Errorf("%s: %w", files[0].Name, err)
		}
	} else {
		cluster, err := kube.Config(f.kubeconfig, os.Getenv, "archkeeper/"+version)
		if err != nil {
			return err
		}
		if cluster == nil {
			return errors.New("explain: no cluster: name one with --kubeconfig or KUBECONFIG, or a file with -f")
		}
		if err := explain.FromCluster(ctx, cluster, f.namespace, args[0], &question); err != nil {
			return err
		}
	}

	evaluator, err := rego.New(ctx, rego.Options{UserPolicy: f.policyDir, Log: f.ask.log(std)})
	if err != nil {
		return err
	}
	inspector, err := f.ask.registries.openInspector(ctx, f.ask.log(std))
	if err != nil {
		return err
	}
	defer inspector.Close()
	mirrors, err := f.ask.registries.openMirrors(f.ask.log(std), nil)
	if err != nil {
		return err
	}
	question.MayPin = mayPin(server.TagMirrors(mirrors.Current))
	images, err := rego.References(&question.Pod.Pod.Spec)
	if err != nil {
		return err
	}
	bar := terminal.NewBar(std.err, "images", len(images))
	question.Answers = batch.Inspect(ctx, inspector, images, f.ask.timeout, bar.Step)
	bar.Close()
	question.Now = time.Now()
	document, err := explain.Explain(ctx, evaluator, question)
	if err != nil {
		return err
	}
	write := document.WriteTable
	if f.ask.output == "json" {
		write = document.WriteJSON
	}
	if err := write(std.out); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return exitWith(document.Status())
}
