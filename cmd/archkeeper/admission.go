package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/archkeeper/archkeeper/controllers/admission"
	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/internal/probes"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

// admissionFlags are those of the admission port.
type admissionFlags struct {
	listen, tokenFile string
	budget            time.Duration
}

func (f *admissionFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.listen, "admission-listen", ":8444", "`ADDRESS` of the HTTPS admission port, which is opened with --admission-token-file")
	flags.StringVar(&f.tokenFile, "admission-token-file", "", "`FILE` with the secret part of the admission webhook's path, 16 characters or more")
	flags.DurationVar(&f.budget, "admission-budget", admission.DefaultBudget, "time that an admission may wait for images before the pod is gated")
}

func (f *admissionFlags) check() error {
	if f.tokenFile != "" && f.listen == "" {
		return errors.New("--admission-token-file needs --admission-listen")
	}
	return nil
}

// lease names the Lease that proves that gated pods will be freed.
type lease struct {
	namespace, name string        // no name: nothing proves it
	duration        time.Duration // for which a renewal counts; the default when 0
}

// parseLease reads NAMESPACE/NAME, or nothing.
func parseLease(text string) (lease, error) {
	namespace, name, slash := strings.Cut(text, "/")
	if text != "" && (!slash || namespace == "" || name == "" || strings.Contains(name, "/")) {
		return lease{}, fmt.Errorf("--lease %q is not NAMESPACE/NAME", text)
	}
	return lease{namespace: namespace, name: name}, nil
}

// admitting is the handler of AdmissionReviews, what runs beside it until the
// context ends, and what must hold before it is ready.
type admitting struct {
	handler http.Handler
	run     []func(context.Context)
	ready   probes.Conditions
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
func (f *admissionFlags) open(s *service, about *inspecting, place *placing, alive lease) (*admitting, error) {
	a := &admitting{ready: probes.Conditions{}}
	options := admission.Options{
		Inspector: about.inspector, MayPin: mayPin(about.hasTagMirrors), Budget: f.budget,
		Evaluator: place.evaluator, Placement: place.settings, Cluster: place.cluster,
		Metrics: admission.NewMetrics(s.metrics), Log: s.log,
	}
	if s.cluster == nil {
		s.log.Warn("without an API server nothing is known of namespaces or of the placement controller: no pod is gated")
		a.handler = admission.New(options)
		return a, nil
	}
	core, err := coreclient.NewForConfig(s.cluster)
	if err != nil {
		return nil, fmt.Errorf("namespaces: %w", err)
	}
	namespaces, err := kube.NewNamespaces(core)
	if err != nil {
		return nil, err
	}
	a.run = append(a.run, namespaces.Run)
	a.ready["namespaces"] = notYet(namespaces.Synced)
	a.ready["nodes"] = notYet(place.nodes.Synced)
	options.Namespace = namespaces.Get
	if alive.name == "" {
		s.log.Warn("no --lease says whether the placement controller is alive: no pod is gated")
		a.handler = admission.New(options)
		return a, nil
	}
	leases, err := coordinationclient.NewForConfig(s.cluster)
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	interlock := admission.NewInterlock(admission.InterlockOptions{
		Client: leases, Namespace: alive.namespace, Name: alive.name, Duration: alive.duration, Log: s.log,
	})
	a.run = append(a.run, func(ctx context.Context) { _ = interlock.Run(ctx) })
	options.Alive = interlock.Alive
	a.ready["lease"] = notYet(interlock.Settled)
	a.handler = admission.New(options)
	return a, nil
}
