package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/provider/reload"
	"github.com/archkeeper/archkeeper/rego"
)

// placementFlags say how pods are placed. Admission and the placement controller
// both have them.
type placementFlags struct {
	config, policyDir string
}

func (f *placementFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.config, "config", "", "`FILE` with the Configuration of placement; its defaults when not given; followed when it changes, like all files")
	flags.StringVar(&f.policyDir, "policy-dir", "", "`DIR` of Rego files, or an OPA bundle, that extends or replaces the placement policy")
}

// placing is what decides about pods: one for admission and controller where both
// are one process.
type placing struct {
	settings  func() config.Placement
	evaluator *rego.Evaluator
	nodes     *kube.Nodes // nil without an API server
	run       []func(context.Context)
}

// open reads the configuration and compiles the policies. changed is called when
// one of them has changed later; nil for none. Pods of the excluded namespaces are
// never placed.
func (f *placementFlags) open(ctx context.Context, s *service, excluded []string, changed func()) (*placing, error) {
	p := &placing{}
	if err := p.openSettings(f.config, s.log, excluded, changed); err != nil {
		return nil, err
	}
	var err error
	p.evaluator, err = rego.New(ctx, rego.Options{
		UserPolicy: f.policyDir, Remember: true, OnReload: changed, Log: s.log, Metrics: rego.NewMetrics(s.metrics),
	})
	if err != nil {
		return nil, err
	}
	p.run = append(p.run, func(ctx context.Context) { _ = p.evaluator.Run(ctx) })
	if s.cluster == nil {
		return p, nil
	}
	core, err := coreclient.NewForConfig(s.cluster)
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	if p.nodes, err = kube.NewNodes(core); err != nil {
		return nil, err
	}
	p.run = append(p.run, p.nodes.Run)
	return p, nil
}

// openSettings gives the configuration in force, and what follows its file.
func (p *placing) openSettings(file string, log *slog.Logger, excluded []string, changed func()) error {
	if file == "" {
		settings := config.Default().Placement.Excluding(excluded...)
		p.settings = func() config.Placement { return settings }
		return nil
	}
	value, err := reload.New([]string{file}, func(contents [][]byte) (config.Placement, error) {
		parsed, err := config.Parse(contents[0])
		return parsed.Placement.Excluding(excluded...), err
	}, reload.Options{Log: log.With("file", "configuration"), OnChange: changed})
	if err != nil {
		return err
	}
	p.settings = value.Get
	p.run = append(p.run, value.Run)
	return nil
}

// cluster is what is known of the nodes.
func (p *placing) cluster() (known rego.Cluster) {
	if p.nodes != nil {
		known.Architectures, known.OperatingSystems = p.nodes.Kinds()
	}
	return known
}
