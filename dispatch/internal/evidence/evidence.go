// Package evidence reads what an exchange with a provider proves and says: the
// error class of a failure, how long the provider wants to be left alone, what a
// connection holds unread, and its words, made fit for Postgres.
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

// ErrUntrustedSocket says that another process than the sidecar could be at the
// other end. Nothing was sent.
var ErrUntrustedSocket = errors.New("the socket is not trusted")

// Unsent names a failure before any byte of the request was written.
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

// Sent names a failure after a byte of the request may have been written.
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

// LongestWait bounds what a provider may ask for. More than a year is a mistake
// of the provider.
const LongestWait = 365 * 24 * time.Hour

// RetryAfter reads the Retry-After header (RFC 9110, 10.2.3): seconds, or any
// of the three date forms. A date is measured against the response's own
// Date, so that the two clocks need not agree. The result is 0 where the header is
// missing or cannot be understood, and at most [LongestWait].
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

// DateOf is when the provider answered, by its own clock if it says so.
func DateOf(header http.Header, now time.Time) time.Time {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		return date
	}
	return now
}

// parseSeconds also takes a fraction, which some providers send.
func parseSeconds(text string) (time.Duration, bool) {
	if text == "" || strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	return Seconds(text)
}

// Seconds reads a number of them, between 0 and [LongestWait]; one that is too
// large to be a number counts as infinity.
func Seconds(text string) (time.Duration, bool) {
	number, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return bounded(number), true
}

// bounded is a number of seconds within 0 and LongestWait, rounded up to the
// next nanosecond: late is allowed, early is not.
func bounded(number float64) time.Duration {
	switch {
	case number >= LongestWait.Seconds():
		return LongestWait
	case number > 0:
		return time.Duration(math.Ceil(number * float64(time.Second)))
	}
	return 0 // NaN as well
}

// State describes the unread bytes of a connection.
type State int

const (
	Unknown State = iota // it is no socket, or the system does not show it
	Quiet                // nothing
	Unread               // bytes, of which the last may be followed by the end
	Ended                // the end: the peer has closed or reset it
)
