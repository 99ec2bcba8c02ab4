// Package evidence reads the proof and the details in an exchange with a provider: the error class of a failure, how
// long the provider wants drainer to wait, the unread bytes of a connection, and the provider's text in a form that
// Postgres can store.
package evidence

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// ErrUntrustedSocket means that a process other than the sidecar could be at the other end. Nothing was sent.
var ErrUntrustedSocket = errors.New("the socket is not trusted")

// Unsent returns the error class of a failure before any byte of the request was written.
func Unsent(ctx context.Context, err error) string {
	var lookup *net.DNSError
	switch {
	case errors.Is(err, dispatch.ErrEgressRefused):
		return "egress_refused"
	case errors.Is(err, ErrUntrustedSocket):
		return "untrusted_socket"
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

// Sent returns the error class of a failure after a byte of the request may have been written.
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

// Context returns the error class of an ended context: "timeout" or "cancelled".
func Context(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "timeout"
	}
	return "cancelled"
}

// IsTimeout reports that a network operation timed out.
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

// LongestWait bounds the wait that a provider may ask for. More than a year is a mistake of the provider.
const LongestWait = 365 * 24 * time.Hour

// RetryAfter reads the Retry-After header (RFC 9110, 10.2.3): seconds, or any of the three date forms. A date is
// compared with the response's own Date, so that the two clocks need not agree. The result is 0 if the header is
// missing or cannot be parsed, and at most [LongestWait].
func RetryAfter(header http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if wait, ok := parseSeconds(text); ok {
		return wait
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(DateOf(header, now)), 0), LongestWait)
}

// DateOf returns the time of the provider's answer by its own clock, or now if the header has no valid Date.
func DateOf(header http.Header, now time.Time) time.Time {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		return date
	}
	return now
}

// parseSeconds also accepts a fraction, which some providers send.
func parseSeconds(text string) (time.Duration, bool) {
	if text == "" || strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	return Seconds(text)
}

// Seconds reads a number of seconds and bounds it to 0 and [LongestWait]. A number that is too large for a float
// counts as infinity.
func Seconds(text string) (time.Duration, bool) {
	number, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return bounded(number), true
}

// bounded converts seconds to a duration between 0 and LongestWait. It rounds up to the next nanosecond, since a
// wait may be too long but not too short.
func bounded(number float64) time.Duration {
	switch {
	case number >= LongestWait.Seconds():
		return LongestWait
	case number > 0:
		return time.Duration(math.Ceil(number * float64(time.Second)))
	}
	return 0 // also for NaN
}

// State describes the unread bytes of a connection.
type State int

const (
	Unknown State = iota // not a socket, or the system does not show it
	Quiet                // nothing to read
	Unread               // unread bytes; the end may follow them
	Ended                // the peer has closed or reset the connection
)
