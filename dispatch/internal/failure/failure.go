// Package failure names the ways in which an exchange with a provider fails,
// in the few stable words that are stored with an attempt and shown in metrics.
package failure

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/agentoutbox/drainer/dispatch"
)

// Unsent names a failure before any octet of the request was written.
func Unsent(ctx context.Context, err error) string {
	var lookup *net.DNSError
	switch {
	case errors.Is(err, dispatch.ErrEgressRefused):
		return "egress_refused"
	case ctx.Err() != nil:
		return Context(ctx)
	case errors.As(err, &lookup):
		return "dns"
	case isTLS(err):
		return "tls"
	case IsTimeout(err):
		return "timeout"
	default:
		return "dial"
	}
}

// Sent names a failure after an octet of the request may have been written.
func Sent(ctx context.Context, err error) string {
	switch {
	case ctx.Err() != nil:
		return Context(ctx)
	case IsTimeout(err):
		return "timeout"
	case IsReset(err):
		return "reset"
	default:
		return "protocol"
	}
}

// Context says why a context ended.
func Context(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "timeout"
	}
	return "cancelled"
}

// IsTimeout reports that the wait for the network was over.
func IsTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// IsReset reports that the peer ended the connection.
func IsReset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isTLS(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		record       tls.RecordHeaderError
		alert        tls.AlertError
		authority    x509.UnknownAuthorityError
		hostname     x509.HostnameError
		invalid      x509.CertificateInvalidError
	)
	return errors.As(err, &verification) || errors.As(err, &record) || errors.As(err, &alert) ||
		errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &invalid)
}
