package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/archkeeper/archkeeper/controllers/admission"
	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/reload"
	"github.com/archkeeper/archkeeper/rego"
)

// admissionFlags are those of the provider's admission port.
type admissionFlags struct {
	listen, tokenFile string
	budget            time.Duration
	config            string
	lease             string
	policyDir         string
}

func (f *admissionFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.listen, "admission-listen", ":8444", "`ADDRESS` of the HTTPS admission port, which is opened with --admission-token-file")
	flags.StringVar(&f.tokenFile, "admission-token-file", "", "`FILE` with the secret part of the admission webhook's path, 16 characters or more")
	flags.DurationVar(&f.budget, "admission-budget", admission.DefaultBudget, "time that an admission may wait for images before the pod is gated")
	flags.StringVar(&f.config, "config", "", "`FILE` with the Configuration of placement; its defaults when not given")
	flags.StringVar(&f.lease, "lease", "", "`NAMESPACE/NAME` of the placement controller's Lease: only while it is renewed are pods gated")
	flags.StringVar(&f.policyDir, "policy-dir", "", "`DIR` of Rego files, or an OPA bundle, that extends or replaces the placement policy")
}

func (f *admissionFlags) check() error {
	namespace, name, slash := strings.Cut(f.lease, "/")
	switch {
	case f.tokenFile != "" && f.listen == "":
		return errors.New("provider: --admission-token-file needs --admission-listen")
	case f.lease != "" && (!slash || namespace == "" || name == "" || strings.Contains(name, "/")):
		return fmt.Errorf("provider: --lease %q is not NAMESPACE/NAME", f.lease)
	}
	return nil
}

// admissionParts are what the rest of the provider has made already.
type admissionParts struct {
	inspector     provider.Inspector
	hasTagMirrors func(imageref.Reference) bool
	cluster       *rest.Config // nil without an API server
	metrics       prometheus.Registerer
	log           *slog.Logger
}

// admissionService is the handler, what runs beside it until the context ends,
// and what must hold before it is ready.
type admissionService struct {
	handler http.Handler
	run     []func(context.Context)
	ready   map[string]func() error
}

// mayPin tells whether a canonical reference may be set to its digest: not where
// tag mirrors serve it, since a digest would go past them.
func mayPin(hasTagMirrors func(imageref.Reference) bool) func(reference string) bool {
	return func(reference string) bool {
		ref, err := imageref.Parse(reference)
		return err == nil && !hasTagMirrors(ref)
	}
}

// open makes the handler of AdmissionReviews.
func (f *admissionFlags) open(ctx context.Context, parts admissionParts) (admissionService, error) {
	s := admissionService{ready: map[string]func() error{}}
	placement, err := f.openConfig(&s, parts.log)
	if err != nil {
		return s, err
	}
	evaluator, err := rego.New(ctx, rego.Options{UserPolicy: f.policyDir, Log: parts.log, Metrics: rego.NewMetrics(parts.metrics)})
	if err != nil {
		return s, err
	}
	s.run = append(s.run, func(ctx context.Context) { _ = evaluator.Run(ctx) })
	options := admission.Options{
		Inspector: parts.inspector, Evaluator: evaluator, Placement: placement, Budget: f.budget,
		MayPin:  mayPin(parts.hasTagMirrors),
		Metrics: admission.NewMetrics(parts.metrics), Log: parts.log,
	}
	if parts.cluster != nil {
		if err := f.watchCluster(&s, &options, parts); err != nil {
			return s, err
		}
	} else {
		parts.log.Warn("without an API server nothing is known of namespaces or of the placement controller: no pod is gated")
	}
	s.handler = admission.New(options)
	return s, nil
}

// openConfig gives the configuration in force.
func (f *admissionFlags) openConfig(s *admissionService, log *slog.Logger) (func() config.Placement, error) {
	if f.config == "" {
		placement := config.Default().Placement
		return func() config.Placement { return placement }, nil
	}
	value, err := reload.New([]string{f.config}, func(contents [][]byte) (config.Configuration, error) {
		return config.Parse(contents[0])
	}, reload.Options{Log: log.With("file", "configuration")})
	if err != nil {
		return nil, err
	}
	s.run = append(s.run, value.Run)
	return func() config.Placement { return value.Get().Placement }, nil
}

// watchCluster adds what the API server knows.
func (f *admissionFlags) watchCluster(s *admissionService, options *admission.Options, parts admissionParts) error {
	core, err := coreclient.NewForConfig(parts.cluster)
	if err != nil {
		return fmt.Errorf("namespaces: %w", err)
	}
	namespaces, err := kube.NewNamespaces(core)
	if err != nil {
		return err
	}
	s.run = append(s.run, namespaces.Run)
	s.ready["namespaces"] = notYet(namespaces.Synced)
	options.Namespace = namespaces.Get
	nodes, err := kube.NewNodes(core)
	if err != nil {
		return err
	}
	s.run = append(s.run, nodes.Run)
	s.ready["nodes"] = notYet(nodes.Synced)
	options.Cluster = func() (known rego.Cluster) {
		known.Architectures, known.OperatingSystems = nodes.Kinds()
		return known
	}
	if f.lease == "" {
		parts.log.Warn("no --lease says whether the placement controller is alive: no pod is gated")
		return nil
	}
	leases, err := coordinationclient.NewForConfig(parts.cluster)
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	namespace, name, _ := strings.Cut(f.lease, "/")
	interlock := admission.NewInterlock(admission.InterlockOptions{Client: leases, Namespace: namespace, Name: name, Log: parts.log})
	s.run = append(s.run, func(ctx context.Context) { _ = interlock.Run(ctx) })
	options.Alive = interlock.Alive
	return nil
}

// notYet makes a condition of readiness.
func notYet(synced func() bool) func() error {
	return func() error {
		if !synced() {
			return errors.New("not yet read")
		}
		return nil
	}
}
