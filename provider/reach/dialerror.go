package reach

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// DialError says that no connection could be made. Its text names the host that
// was asked for and not the addresses behind it, nor the resolver: see Describe.
// errors.Is and errors.As find the cause.
type DialError struct {
	// Host as it was asked for, host:port.
	Host string
	// Cause as package net gave it, with addresses.
	Cause error
}

// Error gives "connection to <host>: <cause>".
func (e *DialError) Error() string { return "connection to " + e.Host + ": " + Describe(e.Cause) }

// Unwrap gives the cause.
func (e *DialError) Unwrap() error { return e.Cause }

// Timeout tells whether time ran out, as a net.Error does.
func (e *DialError) Timeout() bool {
	var timeout net.Error
	return errors.As(e.Cause, &timeout) && timeout.Timeout()
}

// Describe words an error of a connection without the addresses that package net
// puts into its texts: to whom may only name images they would tell what the
// names of a private network resolve to. An error of another kind is given as
// it is.
func Describe(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	var call *os.SyscallError
	var number syscall.Errno
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case errors.As(err, &dns) && dns.IsTimeout:
		return "the name was not resolved in time"
	case errors.As(err, &dns):
		return "the name could not be resolved"
	case errors.As(err, &op) && op.Timeout():
		return "time ran out"
	case errors.As(err, &call):
		return call.Err.Error()
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &op) && op.Err != nil:
		return Describe(op.Err)
	}
	var address *net.AddrError
	if errors.As(err, &address) {
		return address.Err
	}
	return err.Error()
}
