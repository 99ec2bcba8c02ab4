package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/agentoutbox/drainer/dispatch"
)

// retryPause is between one broker that cannot be reached and the next.
const retryPause = 20 * time.Millisecond

// session is a client of the cluster that serves one dispatch at a time. What
// is written on its connections is therefore that dispatch's own, and records
// of others need not queue behind it: a broker works on one request of a
// connection at a time.
type session struct {
	client *kgo.Client
	wire   *wire
}

// openSession connects to nothing yet.
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

// versions keeps to the last Produce request that calls topics by name.
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
