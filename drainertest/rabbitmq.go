package drainertest

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// Broker is a RabbitMQ that runs for this test binary alone, without plugins.
// Everything on it is shared by the tests, which name what they declare apart.
type Broker struct {
	URL    string         // amqp, with the user that may do everything
	TLSURL string         // amqps, for localhost
	Roots  *x509.CertPool // what TLSURL's certificate is signed by

	process *brokerProcess
}

// MaxMessageSize is the longest body that the broker takes, in octets.
const MaxMessageSize = 1 << 20

var errNoRabbitMQ = errors.New("no RabbitMQ on this machine; install rabbitmq-server (which brings epmd), or name its program in TEST_RABBITMQ_SERVER")

// RabbitMQ starts the broker with the first test that asks for it; the test is
// skipped on a machine that has none. [Main] stops it.
func RabbitMQ(t testing.TB) *Broker {
	t.Helper()
	broker, err := sharedRabbitMQ.start()
	switch {
	case errors.Is(err, errNoRabbitMQ):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return broker
}

// Control runs rabbitmqctl.
func (b *Broker) Control(t testing.TB, arguments ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, b.process.program("rabbitmqctl"), arguments...)
	command.Env = b.process.environment
	if said, err := command.CombinedOutput(); err != nil {
		t.Fatalf("rabbitmqctl %v: %v\n%s", arguments, err, said)
	}
}

var sharedRabbitMQ sharedBroker

type sharedBroker struct {
	mu      sync.Mutex
	started bool
	broker  *Broker
	err     error
}

func (s *sharedBroker) start() (*Broker, error) {
	if !shared.expected {
		return nil, errors.New("add `func TestMain(m *testing.M) { drainertest.Main(m) }` to the package, so that its RabbitMQ is stopped")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.started = true
		s.broker, s.err = startBroker()
	}
	return s.broker, s.err
}

func (s *sharedBroker) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broker == nil {
		return
	}
	if err := s.broker.process.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "drainertest: stopping RabbitMQ:", err)
	}
	s.broker = nil
}
