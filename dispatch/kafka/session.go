package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// retryPause is the pause before the next broker is tried after one that cannot be reached.
const retryPause = 20 * time.Millisecond

// session is a client of the cluster that serves one dispatch at a time. So everything written on its connections
// belongs to that dispatch. Records of other dispatches need not queue behind it, since a broker works on only one
// request of a connection at a time.
type session struct {
	client *kgo.Client
	wire   *wire
}

// openSession makes a session. It connects to nothing yet.
func openSession(settings Settings, network dispatch.Network) (*session, error) {
	wire := &wire{}
	options := []kgo.Opt{
		kgo.SeedBrokers(settings.Brokers...),
		kgo.ClientID(cmp.Or(settings.ClientID, "drainer")),
		kgo.Dialer(dialer(network, settings.TLS, wire)),
		kgo.RequestRetries(len(settings.Brokers)),
		kgo.RetryBackoffFn(func(int) time.Duration { return retryPause }),
		kgo.MaxVersions(versions()),
		kgo.DisableClientMetrics(),
	}
	if settings.SASL != nil {
		mechanism, err := settings.SASL.mechanism()
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.SASL(mechanism))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("opening a Kafka session: %w", err)
	}
	return &session{client: client, wire: wire}, nil
}

// versions limits Produce requests to the last version that identifies topics by name.
func versions() *kversion.Versions {
	const byName = 12
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.Produce), byName)
	return versions
}

func dialer(network dispatch.Network, secure bool, wire *wire) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, protocol, address string) (net.Conn, error) {
		raw, err := network.DialContext(ctx, protocol, address)
		if err != nil {
			return nil, err
		}
		if !secure {
			return &watchedConn{Conn: raw, wire: wire, raw: raw}, nil
		}
		encrypted, err := encrypt(ctx, raw, network.TLSConfig(), address)
		if err != nil {
			_ = raw.Close()
			return nil, err
		}
		return &watchedConn{Conn: encrypted, wire: wire, raw: raw}, nil
	}
}

func encrypt(ctx context.Context, conn net.Conn, config *tls.Config, address string) (net.Conn, error) {
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("reading a broker's address: %w", err)
		}
		config.ServerName = host
	}
	encrypted := tls.Client(conn, config)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS handshake with a broker: %w", err)
	}
	return encrypted, nil
}

// sessions keeps the sessions that no dispatch uses. There are never more than the most dispatches that ran at once.
type sessions struct {
	open func() (*session, error)

	mu      sync.Mutex
	idle    []*session
	closing sync.WaitGroup
}

func (s *sessions) take() (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.idle) - 1; last >= 0 {
		taken := s.idle[last]
		s.idle = s.idle[:last]
		return taken, nil
	}
	return s.open()
}

// giveBack returns a session to the pool. No request may be under way on it.
func (s *sessions) giveBack(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, session)
}

// discard ends a session that may still wait for an answer. It returns at once.
func (s *sessions) discard(session *session) {
	s.closing.Go(session.client.Close)
}

func (s *sessions) close() {
	s.mu.Lock()
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, session := range idle {
		s.discard(session)
	}
	s.closing.Wait()
}

var (
	errSealed     = errors.New("the dispatch is over; its record is not sent any more")
	errSecondSend = errors.New("the record may already have been sent; it is not sent again")
	errPeerLeft   = errors.New("the broker has closed the connection")
)

// wire records, for the current dispatch, whether a Produce request was written on the connections of its session.
// It also ensures that at most one is written, and none after the end of the dispatch.
type wire struct {
	mu     sync.Mutex
	sent   bool
	sealed bool
}

// unseal begins a dispatch.
func (w *wire) unseal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent, w.sealed = false, false
}

// seal ends the dispatch and reports whether a byte of the Produce request may have been written.
func (w *wire) seal() (sent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sealed = true
	return w.sent
}

// admit permits a Produce request. It counts the request before the write, and withdraw corrects the count
// afterwards. So in between, the count is too high rather than too low.
func (w *wire) admit() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.sealed:
		return errSealed
	case w.sent:
		return errSecondSend
	}
	w.sent = true
	return nil
}

func (w *wire) withdraw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = false
}

// watchedConn is a connection on which the wire must admit each Produce request. With TLS it wraps the encrypted
// connection, so that it sees plain requests.
type watchedConn struct {
	net.Conn
	wire *wire
	raw  net.Conn // the TCP connection below TLS
}

// Write assumes that the client writes each request with one call.
func (c *watchedConn) Write(data []byte) (int, error) {
	if !isProduce(data) {
		return c.Conn.Write(data)
	}
	switch evidence.Peek(c.raw) {
	case evidence.Ended, evidence.Unread: // over TLS, unread bytes on an idle connection can only announce its end
		return 0, errPeerLeft // the client reconnects once, since nothing was written
	}
	if err := c.wire.admit(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(data)
	if n == 0 && err != nil {
		c.wire.withdraw()
	}
	return n, err
}

// isProduce reads the beginning of a request (https://kafka.apache.org/protocol): four bytes of length, then the API
// key, which is 0 for Produce. It returns true for data that is too short to tell.
func isProduce(request []byte) bool {
	const apiKeyStartsFrom = 4
	return len(request) < apiKeyStartsFrom+2 || binary.BigEndian.Uint16(request[apiKeyStartsFrom:]) == 0
}
