package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/archkeeper/archkeeper/provider/server"
)

// providerFlags are those of `archkeeper provider`.
type providerFlags struct {
	service    serviceFlags
	serving    servingFlags
	inspecting inspectingFlags
	admission  admissionFlags
	placement  placementFlags
	lease      string
}

func (f *providerFlags) add(flags *pflag.FlagSet) {
	f.service.add(flags, "bearer tokens and pull secrets")
	f.serving.add(flags)
	f.inspecting.add(flags)
	f.admission.add(flags)
	f.placement.add(flags)
	flags.StringVar(&f.lease, "lease", "", "`NAMESPACE/NAME` of the placement controller's Lease: only while it is renewed are pods gated")
}

// check finds what cannot be meant.
func (f *providerFlags) check() error {
	if len(f.serving.clientCAs) == 0 && f.serving.clientCAWebhook == "" && !f.serving.open {
		return errors.New("name the authority of your callers with --client-ca, or answer everybody with --insecure-no-client-auth")
	}
	_, err := parseLease(f.lease)
	return errors.Join(f.serving.check(), f.inspecting.check(), f.admission.check(), err)
}

func newProviderCommand(std streams) *cobra.Command {
	var f providerFlags
	cmd := &cobra.Command{
		Use:   "provider",
		Short: "Answer Gatekeeper, and people, over HTTPS",
		Long: `Provider is the external data provider: image references in, supported platforms
out. It is the only part of Archkeeper that speaks to registries and that reads
pull secrets.

Callers of the data port prove themselves by a client certificate, whose
authority and subject alternative name are both checked, or by a bearer token of
a user who may use the path as a non-resource URL.

It refuses to connect to loopback, link-local and metadata addresses, because
images name hosts and anybody may name an image; --plain-http-host and
--allow-address let through what you name.`,
		Example: `  # Beside Gatekeeper
  archkeeper provider --tls-cert tls.crt --tls-key tls.key --client-ca gatekeeper-ca.crt \
    --client-san gatekeeper-webhook-service.gatekeeper-system.svc

  # A person with a token of the cluster
  curl --cacert ca.crt -H "Authorization: Bearer $(kubectl create token me)" \
    'https://archkeeper-provider.archkeeper-system.svc:8443/v1/images?image=busybox'`,
		GroupID: groupServe,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return fmt.Errorf("provider: %w", err)
			}
			return f.run(cmd.Context(), std)
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// run makes the provider's parts, from the registries up to the ports, and
// serves until ctx ends.
func (f *providerFlags) run(ctx context.Context, std streams) error {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s, err := f.service.open(std, metrics, "archkeeper")
	if err != nil {
		return err
	}
	about, err := f.inspecting.open(ctx, s)
	if err != nil {
		return err
	}
	defer about.close()
	background := about.run
	var admitting *admitting
	if f.admission.tokenFile != "" {
		place, err := f.placement.open(ctx, s, nil, nil)
		if err != nil {
			return err
		}
		alive, err := parseLease(f.lease)
		if err != nil {
			return err
		}
		if admitting, err = f.admission.open(s, about, place, alive); err != nil {
			return err
		}
		background = append(append(background, place.run...), admitting.run...)
	}
	options, follow, err := f.serving.options(s, about, admitting, &f.admission)
	if err != nil {
		return err
	}
	options.Probe, options.Gatherer, options.LogLevel, options.Pprof = s.probe, s.metrics, s.level, s.pprof
	service, err := server.New(options)
	if err != nil {
		return err
	}
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, run := range append(background, follow...) {
		running.Go(func() { run(beside) })
	}
	s.log.Info("serving", f.serving.said(s, about, options)...)
	return service.Run(ctx)
}
