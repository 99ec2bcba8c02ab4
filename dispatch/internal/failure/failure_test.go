package failure

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// A failure has one name while nothing was written, and another once something
// may have been. Whichever it was, the end of the dispatch goes before.
func TestAFailureIsNamedByWhatItProves(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	end()
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	other := errors.New("malformed HTTP response")
	for _, test := range []struct {
		err          error
		ctx          context.Context
		unsent, sent string
	}{
		{other, t.Context(), "dial", "protocol"},
		{syscall.ECONNREFUSED, t.Context(), "dial", "protocol"},
		{io.EOF, t.Context(), "dial", "reset"},
		{io.ErrUnexpectedEOF, t.Context(), "dial", "reset"},
		{syscall.ECONNRESET, t.Context(), "dial", "reset"},
		{syscall.EPIPE, t.Context(), "dial", "reset"},
		{os.ErrDeadlineExceeded, t.Context(), "timeout", "timeout"},
		{syscall.ETIMEDOUT, t.Context(), "timeout", "timeout"},
		{&net.DNSError{IsTimeout: true}, t.Context(), "dns", "timeout"},
		{dispatch.ErrEgressRefused, over, "egress_refused", "cancelled"},
		{other, over, "cancelled", "cancelled"},
		{io.EOF, late, "timeout", "timeout"},
		{&tls.CertificateVerificationError{Err: other}, t.Context(), "tls", "protocol"},
		{tls.RecordHeaderError{}, t.Context(), "tls", "protocol"},
		{tls.AlertError(40), t.Context(), "tls", "protocol"},
		{x509.UnknownAuthorityError{}, t.Context(), "tls", "protocol"},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, t.Context(), "tls", "protocol"},
		{x509.CertificateInvalidError{}, t.Context(), "tls", "protocol"},
	} {
		wrapped := fmt.Errorf("posting: %w", test.err)
		if got := Unsent(test.ctx, wrapped); got != test.unsent {
			t.Errorf("%v, nothing written: %s, want %s", wrapped, got, test.unsent)
		}
		if got := Sent(test.ctx, wrapped); got != test.sent {
			t.Errorf("%v, something written: %s, want %s", wrapped, got, test.sent)
		}
	}
}
