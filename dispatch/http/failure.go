package http

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/agentoutbox/drainer/dispatch"
)

// failed is the result of a request that got no response.
func failed(ctx context.Context, evidence *evidence, err error) dispatch.Result {
	if evidence.provesUnsent() {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: unsentClass(ctx, evidence, err)}
	}
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: sentClass(ctx, evidence, err)}
}

func unsentClass(ctx context.Context, evidence *evidence, err error) string {
	var lookup *net.DNSError
	switch {
	case ctx.Err() != nil:
		return contextClass(ctx)
	case errors.As(err, &lookup):
		return "dns"
	case evidence.handshakeFailed():
		return "tls"
	case isTimeout(err):
		return "timeout"
	default:
		return "dial"
	}
}

func sentClass(ctx context.Context, evidence *evidence, err error) string {
	switch {
	case errors.Is(context.Cause(ctx), errSecondSend):
		return "reset"
	case ctx.Err() != nil:
		return contextClass(ctx)
	case isTimeout(err):
		return "timeout"
	case isReset(err) || evidence.connEnded():
		return "reset"
	default:
		return "protocol"
	}
}

func contextClass(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "timeout"
	}
	return "cancelled"
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func isReset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
