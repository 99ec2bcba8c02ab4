package drainertest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/internal/child"
)

// Broker is a RabbitMQ for this test binary only, without plugins. All tests share it, so each declares queues and
// exchanges under its own names.
type Broker struct {
	URL    string         // amqp, with a user that has all permissions
	TLSURL string         // amqps, for localhost
	Roots  *x509.CertPool // the certificate authority of TLSURL's certificate

	process *brokerProcess
}

// MaxMessageSize is the longest body that the broker accepts, in bytes.
const MaxMessageSize = 1 << 20

var errNoRabbitMQ = errors.New("no RabbitMQ on this machine; install rabbitmq-server (which brings epmd), or name its program in TEST_RABBITMQ_SERVER")

// RabbitMQ returns the broker, which the first test starts. If RabbitMQ is not installed, the test is skipped.
// [Main] stops the broker.
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
	ctx, cancel := context.WithTimeout(context.Background(), brokerPatience)
	defer cancel()
	command := exec.CommandContext(ctx, b.process.program("rabbitmqctl"), arguments...)
	command.Env = b.process.environment
	if said, err := command.CombinedOutput(); err != nil {
		t.Fatalf("rabbitmqctl %v: %v\n%s", arguments, err, said)
	}
}

var sharedRabbitMQ = shared[*Broker]{name: "RabbitMQ", launch: startBroker, end: func(b *Broker) error { return b.process.stop() }}

const (
	brokerPatience = 10 * time.Minute // a start of an Erlang node takes seconds of processor time
	brokerUser     = "drainer"
	brokerPassword = "s3cret-of-the-broker"
)

// brokerProcess is an Erlang node with its own port mapper, so that neither conflicts with one of the machine.
type brokerProcess struct {
	binaries    string
	dir         string
	environment []string
	mapper      *child.Process
	node        *child.Process
}

func startBroker() (_ *Broker, err error) {
	binaries, err := findRabbitMQ()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "drainer-rabbitmq-")
	if err != nil {
		return nil, err
	}
	p := &brokerProcess{binaries: binaries, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	roots, err := p.writeCertificate()
	if err != nil {
		return nil, err
	}
	if err := p.writeConfiguration(ports[0], ports[1]); err != nil {
		return nil, err
	}
	p.setEnvironment(ports[2], ports[3])
	if err := p.run(ports[0]); err != nil {
		return nil, err
	}
	credentials := brokerUser + ":" + brokerPassword
	return &Broker{
		URL:     fmt.Sprintf("amqp://%s@127.0.0.1:%d", credentials, ports[0]),
		TLSURL:  fmt.Sprintf("amqps://%s@localhost:%d", credentials, ports[1]),
		Roots:   roots,
		process: p,
	}, nil
}

// findRabbitMQ prefers the program itself to Debian's wrapper on the PATH, which changes the user and the
// directory.
func findRabbitMQ() (binaries string, err error) {
	if _, err := exec.LookPath("epmd"); err != nil {
		return "", errNoRabbitMQ
	}
	if given := os.Getenv("TEST_RABBITMQ_SERVER"); given != "" {
		return filepath.Dir(given), nil
	}
	const debian = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	if _, err := os.Stat(debian); err == nil {
		return filepath.Dir(debian), nil
	}
	found, err := exec.LookPath("rabbitmq-server")
	if err != nil {
		return "", errNoRabbitMQ
	}
	return filepath.Dir(found), nil
}

// freePorts keeps all ports open until it has enough, so that they differ.
func freePorts(count int) ([]int, error) {
	var ports []int
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func (p *brokerProcess) path(name string) string       { return filepath.Join(p.dir, name) }
func (p *brokerProcess) program(program string) string { return filepath.Join(p.binaries, program) }

func (p *brokerProcess) writeConfiguration(plain, secure int) error {
	configuration := strings.NewReplacer(
		"{plain}", fmt.Sprint(plain), "{secure}", fmt.Sprint(secure), "{dir}", p.dir,
		"{user}", brokerUser, "{password}", brokerPassword, "{size}", fmt.Sprint(MaxMessageSize),
	).Replace(`
listeners.tcp.1 = 127.0.0.1:{plain}
listeners.ssl.1 = 127.0.0.1:{secure}
ssl_options.cacertfile = {dir}/certificate.pem
ssl_options.certfile = {dir}/certificate.pem
ssl_options.keyfile = {dir}/key.pem
default_user = {user}
default_pass = {password}
max_message_size = {size}
disk_free_limit.absolute = 1MB
log.console = true
log.console.level = error
log.file = false
`)
	return errors.Join(
		os.WriteFile(p.path("rabbitmq.conf"), []byte(configuration), 0o600),
		os.WriteFile(p.path("enabled_plugins"), []byte("[].\n"), 0o600),
	)
}

func (p *brokerProcess) writeCertificate() (*x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		IsCA:         true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(public)
	return roots, errors.Join(
		os.WriteFile(p.path("certificate.pem"), public, 0o600),
		os.WriteFile(p.path("key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
	)
}

func (p *brokerProcess) setEnvironment(mapper, distribution int) {
	p.environment = append(os.Environ(),
		"HOME="+p.dir, // Erlang keeps its cookie here
		"LC_ALL=C.UTF-8",
		"ERL_EPMD_ADDRESS=127.0.0.1",
		fmt.Sprint("ERL_EPMD_PORT=", mapper),
		fmt.Sprint("RABBITMQ_NODENAME=drainer", mapper, "@localhost"),
		fmt.Sprint("RABBITMQ_DIST_PORT=", distribution),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
		"RABBITMQ_CONFIG_FILE="+p.path("rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+p.path("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE="+p.path("data"),
		"RABBITMQ_LOG_BASE="+p.path("log"),
		"RUNNING_UNDER_SYSTEMD=true", // the script is replaced by the node, instead of starting it as a child
	)
}

// run starts both processes and waits until the broker listens.
func (p *brokerProcess) run(port int) error {
	var err error
	mapper := exec.Command("epmd")
	mapper.Env = p.environment
	if p.mapper, err = child.Start(mapper, syscall.SIGKILL); err != nil {
		return err
	}
	var said bytes.Buffer // read only after the node has ended
	node := exec.Command(p.program("rabbitmq-server"))
	node.Env, node.Dir, node.Stdout, node.Stderr = p.environment, p.dir, &said, &said
	if p.node, err = child.Start(node, syscall.SIGKILL); err != nil {
		return err
	}
	deadline := time.After(brokerPatience)
	for {
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.node.Ended():
			return fmt.Errorf("RabbitMQ did not start: %w\n%s", p.node.Failure(), said.String())
		case <-deadline:
			return fmt.Errorf("RabbitMQ does not listen after %s", brokerPatience)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop kills the broker. Its data may be lost, because no test needs it any more.
func (p *brokerProcess) stop() error {
	var problems []error
	for _, process := range []*child.Process{p.node, p.mapper} {
		if process != nil {
			problems = append(problems, process.End(syscall.SIGKILL, brokerPatience))
		}
	}
	return errors.Join(append(problems, os.RemoveAll(p.dir))...)
}
