package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/archkeeper/archkeeper/deploy/doctor"
	"github.com/archkeeper/archkeeper/internal/kube"
)

func newDoctorCommand(std streams) *cobra.Command {
	var namespace, gatekeeper, output, kubeconfig string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at a live installation and say what to do",
		Long: `Doctor reads an installation through the API server, changes nothing, and says what
is wrong and what to do: Gatekeeper's version and flags, timeouts that do not fit
together, who trusts whom, the order of webhooks, access of our service accounts, a
gate that nobody would remove, pods gated for too long, certificates that end,
registries that do not answer.

It runs with your own rights. What these do not let it see is named on standard
error and is no finding.

Exit status: 0 nothing was found; 1 usage error, or the API server cannot be asked;
2 something was found.`,
		Example: `  archkeeper doctor -n archkeeper-system
  archkeeper doctor -n archkeeper-system -o json | jq -r '.findings[].advice'`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("unknown output %q: it is table or json", output)
			}
			config, err := kube.PersonConfig(kubeconfig, os.Getenv, "archkeeper/"+version)
			if err != nil {
				return err
			}
			if config == nil {
				return errors.New("no cluster: name one with --kubeconfig or KUBECONFIG")
			}
			options := doctor.Options{Namespace: namespace, GatekeeperNamespace: gatekeeper, Now: time.Now()}
			if options.Client, err = kubernetes.NewForConfig(config); err != nil {
				return err
			}
			if options.Dynamic, err = dynamic.NewForConfig(config); err != nil {
				return err
			}
			seen, err := doctor.Collect(cmd.Context(), options)
			if err != nil {
				return err
			}
			report := doctor.Report{Findings: doctor.Check(seen), Unseen: seen.Unseen}
			for _, line := range seen.Unseen {
				fmt.Fprintln(std.err, "could not look at", line)
			}
			if output == "json" {
				err = report.WriteJSON(std.out)
			} else {
				err = report.WriteTable(std.out)
			}
			if err != nil {
				return fmt.Errorf("write the result: %w", err)
			}
			if len(report.Findings) > 0 {
				return exitWith(statusUnmet)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&namespace, "namespace", "n", "archkeeper-system", "`NAMESPACE` of the installation")
	flags.StringVar(&gatekeeper, "gatekeeper-namespace", "gatekeeper-system", "`NAMESPACE` of Gatekeeper")
	flags.StringVarP(&output, "output", "o", "table", "table or json")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the cluster; else KUBECONFIG, else ~/.kube/config")
	return cmd
}
