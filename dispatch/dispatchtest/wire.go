package dispatchtest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Wire is a way to carry HTTP. net/http repeats requests by itself under different conditions on each wire, so a
// test of repetition uses all of them.
type Wire string

const (
	Plain    Wire = "http"
	TLSHTTP1 Wire = "tls_h1"
	TLSHTTP2 Wire = "tls_h2"
)

// Wires lists all wires.
func Wires() []Wire { return []Wire{Plain, TLSHTTP1, TLSHTTP2} }

// throwaway makes a certificate for the loopback address, once in a process.
var throwaway = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "dispatchtest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
})

// Certificate returns a certificate for a server on a loopback address, and the TLS settings of its clients.
func Certificate(t T) (tls.Certificate, *tls.Config) {
	t.Helper()
	certificate, err := throwaway()
	if err != nil {
		t.Fatalf("making a certificate: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(inPEM(certificate)))
	return certificate, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// Authority returns, in PEM, the certificate that a client must trust for TLS with a wire's servers.
func Authority(t T) string {
	t.Helper()
	certificate, _ := Certificate(t)
	return inPEM(certificate)
}

func inPEM(certificate tls.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}))
}

// Network returns a network whose TLS settings fit the wire's servers.
func (w Wire) Network(t T) dispatch.Network { return dispatch.NewNetwork(nil, w.ClientTLS(t)) }

// ClientTLS returns the TLS settings of a client, or nil for Plain.
func (w Wire) ClientTLS(t T) *tls.Config {
	t.Helper()
	if w == Plain {
		return nil
	}
	_, client := Certificate(t)
	return client
}

// Listen returns a listener for the wire at an address, such as 127.0.0.1:0.
func (w Wire) Listen(t T, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("listening on loopback: %v", err)
	}
	if w == Plain {
		return listener
	}
	certificate, _ := Certificate(t)
	protocol := map[Wire]string{TLSHTTP1: "http/1.1", TLSHTTP2: "h2"}[w]
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{protocol}})
}

// URL returns the base URL of a server at an address.
func (w Wire) URL(address string) string {
	if w == Plain {
		return "http://" + address
	}
	return "https://" + address
}

// Server returns a server of the handler for connections of [Wire.Listen].
func (w Wire) Server(handler http.Handler) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(w != TLSHTTP2)
	protocols.SetHTTP2(w == TLSHTTP2)
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second,
		Protocols: &protocols, ErrorLog: log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
	}
}

// Serve serves the handler on a loopback port until the test ends, and returns its base URL. It closes the
// connection of a request that came over another wire.
func (w Wire) Serve(t T, handler http.Handler) (baseURL string) {
	t.Helper()
	listener := w.Listen(t, "127.0.0.1:0")
	server := w.Server(http.HandlerFunc(func(writer http.ResponseWriter, r *http.Request) {
		if (r.TLS != nil) != (w != Plain) || (r.ProtoMajor == 2) != (w == TLSHTTP2) {
			panic(fmt.Sprintf("a request came over %s, TLS: %t, want %s", r.Proto, r.TLS != nil, w))
		}
		handler.ServeHTTP(writer, r)
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return w.URL(listener.Addr().String())
}

// ServeConns passes every connection to serve, with its number from 0, and closes it afterwards. It returns the base
// URL. So serve can break the rules of HTTP.
func (w Wire) ServeConns(t T, serve func(number int, conn net.Conn)) (baseURL string) {
	t.Helper()
	return w.URL(w.serveConns(t, serve))
}

func (w Wire) serveConns(t T, serve func(number int, conn net.Conn)) (address string) {
	t.Helper()
	listener := w.Listen(t, "127.0.0.1:0")
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for number := 0; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(number, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// T is the part of testing.TB that Serve needs.
type T interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// NewProvider serves a provider with a ledger in memory until the test ends, and returns its base URL. A nil plan
// makes no faults.
func NewProvider(t T, plan Plan) (*SimulatedProvider, string) {
	t.Helper()
	provider := &SimulatedProvider{Ledger: NewLedger(), Plan: plan}
	baseURL := Serve(t, provider)
	t.Cleanup(provider.Release) // runs before the server is closed, so that no request still hangs then
	return provider, baseURL
}

// Serve is [Wire.Serve] without TLS.
func Serve(t T, handler http.Handler) string {
	t.Helper()
	return Plain.Serve(t, handler)
}

// ServeConns passes every connection to serve, and closes it afterwards. It returns the address.
func ServeConns(t T, serve func(net.Conn)) (address string) {
	t.Helper()
	return Plain.serveConns(t, func(_ int, conn net.Conn) { serve(conn) })
}

// ReadRequest reads one whole request from a connection and drops it.
func ReadRequest(reader *bufio.Reader) error {
	request, err := http.ReadRequest(reader)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, request.Body)
	return nil
}

// HTTPCounterpart is the counterpart of adapters that use HTTP. It is a simulated provider that keeps whole
// messages, and that can become unreachable and come back.
type HTTPCounterpart struct {
	KeyHeader string // the header that carries the idempotency key
	URL       string

	provider SimulatedProvider
	gate     *Gate
	fault    atomic.Value
	babbles  atomic.Bool

	mu       sync.Mutex
	messages []Message
}

// StartHTTP serves an HTTPCounterpart on a loopback port until the test ends.
func StartHTTP(t *testing.T, wire Wire, keyHeader string) *HTTPCounterpart {
	t.Helper()
	u := &HTTPCounterpart{KeyHeader: keyHeader, provider: SimulatedProvider{Ledger: NewLedger()}}
	u.provider.Plan = func(string, int) Fault { return u.fault.Load().(Fault) }
	u.fault.Store(None)
	_, server, _ := strings.Cut(wire.Serve(t, u), "://")
	t.Cleanup(u.provider.Release)
	u.gate = OpenGate(t, server, nil)
	u.URL = wire.URL(u.gate.Address)
	return u
}

// Enter is the Enter function of a [Counterpart].
func (u *HTTPCounterpart) Enter(situation Situation) {
	if situation == Unreachable {
		u.gate.Shut()
		return
	}
	u.gate.Open()
	u.babbles.Store(situation == Babbling)
	u.fault.Store(map[Situation]Fault{
		Answering:  None,
		Throttling: ThrottleFor,
		Rejecting:  Declined,
		Severing:   DropAfter,
		Busy:       Outstanding,
		Silent:     HangAfter,
		Babbling:   None,
	}[situation])
}

// ServeHTTP answers as the situation demands.
func (u *HTTPCounterpart) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the request did not arrive as a whole
	}
	key := r.Header.Get(u.KeyHeader)
	u.mu.Lock()
	u.messages = append(u.messages, Message{Key: key, Body: body})
	u.mu.Unlock()
	if u.babbles.Load() {
		babble(r)
		return
	}
	r.Header.Set("Idempotency-Key", key)
	r.Body = io.NopCloser(bytes.NewReader(body))
	u.provider.ServeHTTP(w, r)
}

// connKey is the context key of a request's connection.
type connKey struct{}

// babble writes to the connection itself, since an HTTP/2 server cannot write anything that breaks the protocol.
func babble(r *http.Request) {
	conn := r.Context().Value(connKey{}).(net.Conn)
	_, _ = io.WriteString(conn, "220 mail.example ESMTP\r\n")
	_ = conn.Close()
	panic(http.ErrAbortHandler)
}

// Received is the Received function of a [Counterpart].
func (u *HTTPCounterpart) Received() []Message {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.messages)
}

// Gate is an address that leads to a server and can be shut.
type Gate struct {
	Address string // host and port

	t      testing.TB
	server string
	carry  func(client, server net.Conn)

	mu       sync.Mutex
	listener net.Listener // nil while the gate is shut
	conns    map[net.Conn]bool
}

// OpenGate leads to the server until the test ends. It passes each connection to carry and closes the connection
// when carry returns. A nil carry passes on everything.
func OpenGate(t testing.TB, server string, carry func(client, server net.Conn)) *Gate {
	t.Helper()
	if carry == nil {
		carry = func(client, server net.Conn) { Carry(client, server, math.MaxInt64, math.MaxInt64) }
	}
	g := &Gate{Address: Address(t), t: t, server: server, carry: carry, conns: map[net.Conn]bool{}}
	g.Open()
	t.Cleanup(g.Shut)
	return g
}

// Open accepts connections again if the gate was shut.
func (g *Gate) Open() {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		return
	}
	listener, err := net.Listen("tcp", g.Address)
	if err != nil {
		g.t.Fatalf("listening on loopback: %v", err)
	}
	g.listener = listener
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go g.pass(client)
		}
	}()
}

// Shut refuses new connections, and closes the open ones.
func (g *Gate) Shut() {
	g.mu.Lock()
	if g.listener != nil {
		_ = g.listener.Close()
		g.listener = nil
	}
	g.mu.Unlock()
	g.Cut()
}

// Cut closes the open connections.
func (g *Gate) Cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.conns {
		_ = conn.Close()
	}
}

func (g *Gate) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", g.server)
	if err != nil {
		return
	}
	defer server.Close()
	g.mu.Lock()
	isShut := g.listener == nil
	g.conns[client], g.conns[server] = true, true
	g.mu.Unlock()
	if !isShut {
		g.carry(client, server)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, client)
	delete(g.conns, server)
}

// Carry passes on up and down bytes in the two directions. Then it closes the client's connection. It returns once
// the server has read all that was sent to it and has closed the connection.
func Carry(client, server net.Conn, up, down int64) {
	go func() {
		_, _ = io.CopyN(server, client, up)
		_ = client.Close()
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.CopyN(client, server, down)
	_ = client.Close()
	_, _ = io.Copy(io.Discard, server)
}

// Address returns a loopback address that belongs to the test until it ends, even while nothing listens there.
// Otherwise another process could get the port while a counterpart is unreachable.
func Address(t testing.TB) string {
	t.Helper()
	address, release, err := holdAddress()
	if err != nil {
		t.Fatalf("holding a loopback address: %v", err)
	}
	t.Cleanup(release)
	return address
}

// SameJSON reports whether two JSON texts have the same value. Numbers are compared as decimals of any size, never
// as floating point. If a name occurs twice, its last value counts, as in jsonb. A text that is not JSON equals no
// other text.
func SameJSON(one, other []byte) bool {
	return json.Valid(one) && json.Valid(other) && sameValue(exactly(one), exactly(other))
}

// exactly decodes valid JSON.
func exactly(text []byte) (value any) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		panic(err)
	}
	return value
}

func sameValue(one, other any) bool {
	switch one := one.(type) {
	case map[string]any:
		other, is := other.(map[string]any)
		return is && maps.EqualFunc(one, other, sameValue)
	case []any:
		other, is := other.([]any)
		return is && slices.EqualFunc(one, other, sameValue)
	case json.Number:
		other, is := other.(json.Number)
		return is && decimalOf(one) == decimalOf(other)
	}
	return one == other
}

// decimal is a number as its digits after "0." times a power of ten. The digits neither begin nor end with a zero.
// Zero has no digits.
type decimal struct {
	negative        bool
	digits, power10 string
}

func decimalOf(number json.Number) decimal {
	text, isNegative := strings.CutPrefix(strings.ToLower(string(number)), "-")
	mantissa, power, _ := strings.Cut(text, "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	exponent, isGiven := new(big.Int).SetString(strings.TrimPrefix(power, "+"), 10)
	if !isGiven {
		exponent = new(big.Int)
	}
	exponent.Add(exponent, big.NewInt(int64(len(whole))))

	digits := strings.TrimLeft(whole+fraction, "0")
	exponent.Sub(exponent, big.NewInt(int64(len(whole)+len(fraction)-len(digits))))
	digits = strings.TrimRight(digits, "0")
	if digits == "" {
		return decimal{}
	}
	return decimal{isNegative, digits, exponent.String()}
}
