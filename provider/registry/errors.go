package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/reach"
)

// errTooManyRedirects and errDowngrade end a chain of redirects.
var (
	errTooManyRedirects = errors.New("it redirects too often")
	errDowngrade        = errors.New("it redirects from https to http")
	errBadRedirect      = errors.New("it redirects to an address that cannot be read")
)

// transportError says why a request had no usable answer. The message names
// the host, not what it resolved to nor the rest of the URL: addresses of the
// inside and signed URLs are nobody's business who may only name images. The
// cause stays inside for the log.
func transportError(ctx context.Context, host string, err error) *provider.Error {
	class, what := provider.ClassUnreachable, "the request failed"
	var (
		blocked     *reach.BlockedAddressError
		dns         *net.DNSError
		unknown     x509.UnknownAuthorityError
		wrongName   x509.HostnameError
		invalidCert x509.CertificateInvalidError
		verify      *tls.CertificateVerificationError
		noTLS       tls.RecordHeaderError
		op          *net.OpError
		netErr      net.Error
	)
	switch {
	case errors.As(err, &blocked):
		return wrap(provider.ClassBlocked, "registry "+host+": "+blocked.Error(), err)
	case errors.Is(err, errDowngrade):
		class, what = provider.ClassBlocked, err.Error()
	case errors.Is(err, errTooManyRedirects), errors.Is(err, errBadRedirect):
		what = err.Error()
	case ctx.Err() != nil:
		return timeoutError(ctx, host, "waiting for its answer")
	case errors.As(err, &dns):
		what = "its name does not resolve"
	case errors.As(err, &unknown):
		what = "its certificate is signed by an unknown authority"
	case errors.As(err, &wrongName):
		what = "its certificate is for another name"
	case errors.As(err, &invalidCert), errors.As(err, &verify):
		what = "its certificate is not valid"
	case errors.As(err, &noTLS):
		what = "it does not speak TLS"
	case errors.Is(err, syscall.ECONNREFUSED):
		what = "it refused the connection"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		what = "it closed the connection"
	case errors.As(err, &op) && op.Op == "dial":
		what = "no connection could be made"
	case errors.As(err, &netErr) && netErr.Timeout():
		class, what = provider.ClassTimeout, "it did not answer in time"
	}
	return wrap(class, "registry "+host+": "+what, err)
}

func wrap(class provider.Class, message string, cause error) *provider.Error {
	err := provider.Errorf(class, "%s%w", "", cause)
	err.Message = message
	return err
}

// timeoutError is for a deadline of ours that came first.
func timeoutError(ctx context.Context, host, doing string) *provider.Error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) || cause == nil {
		return provider.Errorf(provider.ClassTimeout, "registry %s: given up while %s", host, doing)
	}
	return wrap(provider.ClassTimeout, "registry "+host+": the deadline came while "+doing, cause)
}

// statusError classifies an answer that is no success. what is the content that
// was asked for, as name and tag or digest.
//
// 401, 403 and 404 share one text: whether content is missing or only hidden
// is for the registry to say, by its status, and for nobody else.
func statusError(host, what string, status int, h http.Header, quota bool) *provider.Error {
	var err *provider.Error
	switch {
	case status == http.StatusTooManyRequests, quota:
		err = provider.Errorf(provider.ClassRateLimited, "registry %s limits the rate of requests (HTTP %d)", host, status)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		err = provider.Errorf(provider.ClassUnauthorized, "registry %s does not have %s, or does not let these credentials read it (HTTP %d)", host, what, status)
	case status == http.StatusNotFound, status == http.StatusGone, status == http.StatusUnavailableForLegalReasons:
		err = provider.Errorf(provider.ClassNotFound, "registry %s does not have %s, or does not let these credentials read it (HTTP %d)", host, what, status)
	case status >= 500:
		err = provider.Errorf(provider.ClassUnreachable, "registry %s failed (HTTP %d)", host, status)
	default:
		err = provider.Errorf(provider.ClassUnreachable, "registry %s gave an unexpected answer for %s (HTTP %d)", host, what, status)
	}
	err.HTTPStatus = status
	err.RetryAfter = retryAfter(h)
	return err
}

// refused tells whether another credential may do better.
func refused(err *provider.Error) bool {
	return err.Class == provider.ClassUnauthorized || err.Class == provider.ClassNotFound
}
