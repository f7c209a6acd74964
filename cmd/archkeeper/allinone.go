package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/archkeeper/archkeeper/internal/probes"
	"github.com/archkeeper/archkeeper/provider/server"
)

// allInOneFlags are those of `archkeeper all-in-one`.
type allInOneFlags struct {
	service     serviceFlags
	serving     servingFlags
	inspecting  inspectingFlags
	admission   admissionFlags
	placement   placementFlags
	controlling controllingFlags
}

func (f *allInOneFlags) add(flags *pflag.FlagSet) {
	f.service.add(flags, "everything")
	f.serving.add(flags)
	f.inspecting.add(flags)
	f.admission.add(flags)
	f.placement.add(flags)
	f.controlling.add(flags)
}

// check finds what cannot be meant.
func (f *allInOneFlags) check() error {
	return errors.Join(f.serving.check(), f.inspecting.check(), f.admission.check(), f.controlling.check())
}

func newAllInOneCommand(std streams) *cobra.Command {
	var f allInOneFlags
	cmd := &cobra.Command{
		Use:   "all-in-one",
		Short: "Run provider and controllers in one process, for a small cluster",
		Long: `All-in-one is provider, admission and controllers in one process. Admission and
the placement controller ask the inspector directly, so that between them there is
no connection, no certificate and no second look.

The ports are those of the provider: data, for Gatekeeper and people; admission,
with --admission-token-file; and one probe port for everything. Without --client-ca
the data port answers bearer tokens alone.

Several replicas may run: each serves, and one leads the controllers. The process
may do what both may: it reads pull secrets and it changes pods. Where that is too
much for one service account, run "archkeeper provider" and "archkeeper controllers".

Told to end, it first serves what is asked for as the provider does, and frees gated
pods until that is over; then another replica leads.`,
		Example: `  archkeeper all-in-one --tls-cert tls.crt --tls-key tls.key \
    --admission-token-file token --config configuration.yaml`,
		GroupID: groupServe,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return fmt.Errorf("all-in-one: %w", err)
			}
			return f.run(cmd.Context(), std)
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// run makes the parts of provider and controllers, those that both have once, and
// serves until ctx ends.
func (f *allInOneFlags) run(ctx context.Context, std streams) error {
	s, err := f.service.open(std, ctrlmetrics.Registry, "archkeeper")
	if err != nil {
		return err
	}
	c, err := f.controlling.open(s)
	if err != nil {
		return fmt.Errorf("all-in-one: %w", err)
	}
	about, err := f.inspecting.open(ctx, s)
	if err != nil {
		return err
	}
	defer about.close()
	place, err := f.placement.open(ctx, s, []string{f.controlling.namespace, f.controlling.gatekeeper}, func() { c.again(ctx) })
	if err != nil {
		return err
	}
	if f.controlling.enabled(enablePlacement) {
		err = f.controlling.addPlacement(c, place, about.directly()) //nolint:contextcheck // the manager gives its own
	} else {
		err = c.everywhere(place.run...)
	}
	if err := errors.Join(err, c.everywhere(about.run...), f.controlling.addOthers(c)); err != nil {
		return err
	}
	var admits *admitting
	if f.admission.tokenFile != "" {
		alive := lease{namespace: f.controlling.namespace, name: f.controlling.lease, duration: f.controlling.leaseDuration}
		if admits, err = f.admission.open(s, about, place, alive); err != nil {
			return err
		}
		if err := c.everywhere(admits.run...); err != nil {
			return err
		}
	}
	options, beside, err := f.serving.options(s, about, admits, &f.admission)
	if err != nil {
		return fmt.Errorf("all-in-one: %w", err)
	}
	if err := c.everywhere(beside...); err != nil {
		return err
	}
	return f.serve(ctx, s, c, options)
}

// serve runs everything until ctx ends, or one part fails: what serves ends first,
// then the controllers, then the probe port.
func (f *allInOneFlags) serve(ctx context.Context, s *service, c *controllers, options server.Options) error {
	serving, stopServing := context.WithCancel(ctx)
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	probing, stopProbing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	defer stopWorking()
	defer stopProbing()
	var service atomic.Pointer[server.Server]
	files := append([]string{f.serving.certFile, f.serving.keyFile}, f.serving.clientCAs...)
	if f.admission.tokenFile != "" {
		files = append(files, f.admission.tokenFile)
	}
	c.ready["provider"] = func() error {
		if service.Load() != nil {
			return nil
		}
		if file := missing(files); file != "" {
			return fmt.Errorf("%s is not there yet", file)
		}
		return errors.New("not started yet")
	}
	unready := func() []string {
		reasons := c.ready.Unmet()
		if serves := service.Load(); serves != nil {
			reasons = append(reasons, serves.Unready()...)
		}
		return reasons
	}
	var all, probe errgroup.Group
	probe.Go(func() error { return probes.Serve(probing, s.probe, s.probes(unready)) })
	all.Go(func() error {
		defer stopServing()
		return c.manager.Start(working)
	})
	all.Go(func() error {
		defer stopWorking()
		if f.controlling.enabled(enableCertificates) { // which may be what makes them
			awaitFiles(serving, s.log, files)
			if serving.Err() != nil {
				return nil
			}
		}
		serves, err := server.New(options)
		if err != nil {
			return err
		}
		service.Store(serves)
		return serves.Run(serving)
	})
	s.log.Info("starting", append(f.controlling.said(s), "data", options.Data.Addr().String(), "admission", options.Admission != nil, "deadline", f.serving.deadline)...)
	err := all.Wait()
	stopProbing()
	return errors.Join(err, probe.Wait())
}
