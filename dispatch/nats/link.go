package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// link is one connection from its beginning to its end.
type link struct {
	conn *nats.Conn
	js   jetstream.JetStream
	lost <-chan struct{} // closed when the connection is

	// denied is set once the server has refused something for want of a
	// permission. It does not say which message that was.
	denied *atomic.Bool

	mu      sync.Mutex
	windows map[string]window // by subject and stream
}

func connect(ctx context.Context, settings Settings, network dispatch.Network, timeout time.Duration) (*link, error) {
	login, err := settings.login()
	if err != nil {
		return nil, err
	}
	lost, denied := make(chan struct{}), &atomic.Bool{}
	dialer := &dialer{ctx: ctx, network: network}
	options := []nats.Option{
		nats.Name("drainer"),
		nats.SetCustomDialer(dialer),
		nats.SkipHostLookup(),          // the network resolves names
		nats.IgnoreDiscoveredServers(), // the configuration says where to connect
		nats.NoReconnect(),             // what is written while disconnected would be sent later
		nats.ClosedHandler(func(*nats.Conn) { close(lost) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				denied.Store(true)
			}
		}),
		secure(settings, network),
	}
	if deadline, ok := ctx.Deadline(); ok {
		options = append(options, nats.Timeout(max(time.Until(deadline), time.Millisecond)))
	}
	if settings.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(settings.InboxPrefix))
	}
	if login != nil {
		options = append(options, login)
	}
	conn, err := nats.Connect(strings.Join(settings.URLs, ","), options...)
	if err != nil {
		return nil, dialer.explain(err)
	}
	dialer.keep()
	js, err := newJetStream(conn, settings.Domain, timeout)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("opening JetStream: %w", err)
	}
	return &link{conn: conn, js: js, lost: lost, denied: denied, windows: map[string]window{}}, nil
}

// newJetStream forgets an acknowledgement that nobody waits for any more.
func newJetStream(conn *nats.Conn, domain string, timeout time.Duration) (jetstream.JetStream, error) {
	forget := jetstream.WithPublishAsyncTimeout(max(timeout, connectTimeout))
	if domain != "" {
		return jetstream.NewWithDomain(conn, domain, forget)
	}
	return jetstream.New(conn, forget)
}

// secure gives the TLS settings to a server that wants TLS, too, where the
// configuration does not insist on it.
func secure(settings Settings, network dispatch.Network) nats.Option {
	return func(options *nats.Options) error {
		options.TLSConfig = network.TLSConfig()
		options.Secure = settings.TLS
		return nil
	}
}

// silence says why nothing came back.
func (l *link) silence(ctx context.Context) string {
	switch {
	case l.denied.Load():
		return "permission_violation"
	case ctx.Err() != nil:
		return failure.Context(ctx)
	}
	return "reset"
}

func (l *link) isUp() bool { return l.conn.IsConnected() }

func (l *link) close() { l.conn.Close() }

// unconnected is the result of a message for which there was no connection.
func unconnected(ctx context.Context, err error) dispatch.Result {
	class := failure.Unsent(ctx, err)
	for _, refusal := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation} {
		if errors.Is(err, refusal) {
			class = "authorization"
		}
	}
	for _, refusal := range []error{nats.ErrSecureConnWanted, nats.ErrSecureConnRequired} {
		if errors.Is(err, refusal) {
			class = "tls"
		}
	}
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}
}
