package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"time"

	"github.com/spf13/pflag"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/internal/probes"
	"github.com/archkeeper/archkeeper/provider/server"
)

// servingFlags are those of the HTTPS ports.
type servingFlags struct {
	listen                 string
	certFile, keyFile      string
	clientCAs, clientNames []string
	clientCAWebhook        string
	open                   bool
	deadline               time.Duration
	shutdownDelay          time.Duration
}

func (f *servingFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.listen, "listen", ":8443", "`ADDRESS` of the HTTPS data port")
	flags.StringVar(&f.certFile, "tls-cert", "", "PEM `FILE` with the serving certificate and its chain; followed when it changes, like all files")
	flags.StringVar(&f.keyFile, "tls-key", "", "PEM `FILE` with the key of --tls-cert")
	flags.StringArrayVar(&f.clientCAs, "client-ca", nil, "PEM `FILE` of an authority that signs callers' certificates, such as Gatekeeper's ca.crt; may be repeated")
	flags.StringVar(&f.clientCAWebhook, "client-ca-webhook", "", "`NAME` of the ValidatingWebhookConfiguration whose caBundle signs callers' certificates as well: Gatekeeper's, which shows its new certificate before a mounted file can follow")
	flags.StringArrayVar(&f.clientNames, "client-san", nil, "subject alternative `NAME` of a known caller, such as gatekeeper-webhook-service.gatekeeper-system.svc; a certificate needs one of them; may be repeated")
	flags.BoolVar(&f.open, "insecure-no-client-auth", false, "answer everybody who reaches the data port")
	flags.DurationVar(&f.deadline, "deadline", server.DefaultDeadline, "time after which a request is answered with what is known; below the timeout of the Provider object")
	flags.DurationVar(&f.shutdownDelay, "shutdown-delay", 5*time.Second, "time between being told to end and taking no more requests, for the Service's endpoints to follow")
}

// check finds what cannot be meant.
func (f *servingFlags) check() error {
	switch {
	case f.certFile == "" || f.keyFile == "":
		return errors.New("--tls-cert and --tls-key are needed")
	case f.deadline <= 0:
		return fmt.Errorf("--deadline %s is no time to answer in", f.deadline)
	}
	return nil
}

// options are those of the server, without a probe port, and what runs beside it.
// The ports are open then. admitting is nil without an admission port.
func (f *servingFlags) options(s *service, about *inspecting, admits *admitting, admission *admissionFlags) (server.Options, []func(context.Context), error) {
	var beside []func(context.Context)
	tokens, err := openTokens(s.cluster, s.log)
	if err != nil {
		return server.Options{}, nil, err
	}
	options := server.Options{
		Inspector: about.inspector, HasTagMirrors: about.hasTagMirrors, Generation: about.generation,
		CertFile: f.certFile, KeyFile: f.keyFile,
		ClientCAFiles: f.clientCAs, ClientNames: f.clientNames, Tokens: tokens, Open: f.open,
		Deadline: f.deadline, DrainDelay: f.shutdownDelay,
		Registerer: s.metrics, Log: s.log, Ready: probes.Conditions{},
	}
	maps.Copy(options.Ready, about.ready)
	if f.clientCAWebhook != "" {
		if s.cluster == nil {
			return options, nil, errors.New("--client-ca-webhook needs an API server: run in a cluster, or name one with --kubeconfig or KUBECONFIG")
		}
		webhooks, err := admissionclient.NewForConfig(s.cluster)
		if err != nil {
			return options, nil, fmt.Errorf("--client-ca-webhook: %w", err)
		}
		options.LiveCAs = &server.LiveCAs{}
		beside = append(beside, func(ctx context.Context) {
			kube.FollowCABundle(ctx, webhooks, f.clientCAWebhook, options.LiveCAs.Set, s.log)
		})
	}
	if admits != nil {
		options.AdmissionHandler, options.AdmissionTokenFile = admits.handler, admission.tokenFile
		maps.Copy(options.Ready, admits.ready)
		if options.Admission, err = net.Listen("tcp", admission.listen); err != nil { //nolint:noctx // at the start
			return options, nil, fmt.Errorf("--admission-listen: %w", err)
		}
	}
	if options.Data, err = net.Listen("tcp", f.listen); err != nil { //nolint:noctx // at the start
		return options, nil, fmt.Errorf("--listen: %w", err)
	}
	switch {
	case f.open:
		s.log.Warn("everybody who reaches the data port is answered")
	case len(f.clientNames) == 0 && (len(f.clientCAs) > 0 || f.clientCAWebhook != ""):
		s.log.Warn("every client certificate of the named authorities is taken: --client-san names the callers")
	}
	return options, beside, nil
}

// said is what the log says of a server that begins.
func (f *servingFlags) said(s *service, about *inspecting, options server.Options) []any {
	said := []any{"version", version, "data", options.Data.Addr().String(), "probe", s.probe.Addr().String()}
	if options.Admission != nil {
		said = append(said, "admission", options.Admission.Addr().String())
	}
	return append(said, "deadline", f.deadline, "tokens", options.Tokens != nil, "pullSecrets", about.secrets != nil)
}

// openTokens gives what checks bearer tokens, nil without an API server.
func openTokens(cluster *rest.Config, log *slog.Logger) (*server.Tokens, error) {
	if cluster == nil {
		return nil, nil //nolint:nilnil // bearer tokens are then refused, with the reason
	}
	authentication, err := authenticationclient.NewForConfig(cluster)
	if err != nil {
		return nil, fmt.Errorf("bearer tokens: %w", err)
	}
	authorization, err := authorizationclient.NewForConfig(cluster)
	if err != nil {
		return nil, fmt.Errorf("bearer tokens: %w", err)
	}
	return server.NewTokens(server.TokenOptions{
		Reviews: authentication.TokenReviews(), Access: authorization.SubjectAccessReviews(), Log: log,
	}), nil
}
