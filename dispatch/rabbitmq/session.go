package rabbitmq

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

const (
	connectTimeout = 30 * time.Second // if dispatches have no timeout
	closeTimeout   = time.Second      // how long the broker may take to answer a close
)

// session is one open connection, which all dispatches share.
type session struct {
	connection *amqp.Connection
	tcp        net.Conn             // the connection below the library, whose calls cannot be interrupted
	alarms     <-chan amqp.Blocking // closed when the connection has ended
	retired    chan time.Duration   // gets how long messages under way may still take
	quit, over chan struct{}
	blocked    atomic.Bool // the broker has an alarm and reads nothing from this connection

	mu   sync.Mutex
	idle []*publisher
}

// connect opens a session. ctx bounds the opening, but not the life of the session.
func connect(ctx context.Context, address address, network dispatch.Network) (*session, error) {
	var tcp net.Conn
	release := func() bool { return true }
	connection, err := amqp.DialConfig(address.url, amqp.Config{
		Heartbeat:       address.heartbeat,
		TLSClientConfig: network.TLSConfig(),
		Properties:      amqp.Table{"product": "drainer"},
		Dial: func(protocol, host string) (_ net.Conn, err error) {
			if tcp, err = network.DialContext(ctx, protocol, host); err != nil {
				return nil, err
			}
			release = context.AfterFunc(ctx, func() { _ = tcp.Close() })
			return tcp, nil
		},
	})
	if inTime := release(); !inTime || ctx.Err() != nil {
		err = ctx.Err() // the library's own error is not useful
	}
	if err != nil {
		if tcp != nil {
			_ = tcp.Close() // the library leaves it open after a failed handshake
		}
		return nil, err
	}
	s := &session{
		connection: connection,
		tcp:        tcp,
		alarms:     connection.NotifyBlocked(make(chan amqp.Blocking, 1)),
		retired:    make(chan time.Duration, 1),
		quit:       make(chan struct{}),
		over:       make(chan struct{}),
	}
	go s.watch()
	return s, nil
}

// watch records the broker's alarms until the connection ends. It ends the connection when the session is closed, or
// when the time after its retirement has passed.
func (s *session) watch() {
	defer close(s.over)
	defer func() { _ = s.tcp.Close() }()
	var end <-chan time.Time
	for {
		select {
		case alarm, open := <-s.alarms:
			if !open {
				return
			}
			s.blocked.Store(alarm.Active)
		case grace := <-s.retired:
			end = time.After(grace)
		case <-end:
			return
		case <-s.quit:
			_ = s.connection.CloseDeadline(time.Now().Add(closeTimeout))
			return
		}
	}
}

// Alive, Done and Close implement [sharedconn.Conn].
func (s *session) Alive() bool           { return !s.connection.IsClosed() }
func (s *session) Done() <-chan struct{} { return s.over }

func (s *session) Close() {
	close(s.quit)
	<-s.over
}

// acquire returns a channel for one message.
func (s *session) acquire() (*publisher, error) {
	s.mu.Lock()
	for len(s.idle) > 0 {
		last := s.idle[len(s.idle)-1]
		s.idle = s.idle[:len(s.idle)-1]
		if !last.ended() {
			s.mu.Unlock()
			return last, nil
		}
	}
	s.mu.Unlock()
	return newPublisher(s.connection)
}

// release takes back a channel whose message was answered. A channel that still waits for its answer is never
// released: its late answer would be taken for the answer to the next message.
func (s *session) release(p *publisher) {
	if p.ended() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, p)
}

// unconnected is the result of a message for which no session could be opened.
func unconnected(ctx context.Context, err error) dispatch.Result {
	result := dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: connectFailure(ctx, err)}
	if result.ErrorClass == authFailure {
		result.Outcome = dispatch.CredentialsRefused
	}
	return result
}

const authFailure = "auth"

// connectFailure returns the error class of a session that could not be opened. Nothing was published.
func connectFailure(ctx context.Context, err error) string {
	var refusal *amqp.Error
	switch {
	case ctx.Err() != nil || !errors.As(err, &refusal):
		return evidence.Unsent(ctx, err)
	case refusal.Code == amqp.AccessRefused:
		return authFailure
	case refusal.Server:
		return exceptionClass(refusal.Code)
	default:
		return "protocol"
	}
}
