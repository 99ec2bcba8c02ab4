package rabbitmq

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const closePatience = time.Second

// session is one open connection.
type session struct {
	connection *amqp.Connection
	tcp        net.Conn             // below the library, which cannot be interrupted
	alarms     <-chan amqp.Blocking // closed when the connection is over
	retirement chan time.Duration
	blocked    atomic.Bool // the broker has an alarm and reads nothing from us

	mu   sync.Mutex
	idle []*publisher
}

func newSession(connection *amqp.Connection, tcp net.Conn) *session {
	return &session{
		connection: connection,
		tcp:        tcp,
		alarms:     connection.NotifyBlocked(make(chan amqp.Blocking, 1)),
		retirement: make(chan time.Duration, 1),
	}
}

func (s *session) ended() bool { return s.connection.IsClosed() }

// closeAfter may be called once.
func (s *session) closeAfter(grace time.Duration) { s.retirement <- grace }

// watch notes alarms until the connection is over, and ends it when the
// lifetime does or its retirement comes.
func (s *session) watch(lifetime context.Context) {
	defer func() { _ = s.tcp.Close() }()
	var retired <-chan time.Time
	for {
		select {
		case alarm, open := <-s.alarms:
			if !open {
				return
			}
			s.blocked.Store(alarm.Active)
		case grace := <-s.retirement:
			retired = time.After(grace)
		case <-retired:
			return
		case <-lifetime.Done():
			_ = s.connection.CloseDeadline(time.Now().Add(closePatience))
			return
		}
	}
}

// acquire gives a publisher to one message.
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

// release takes a publisher back after the answer to its message. A channel
// without its answer never comes back: a late one would be taken for another's.
func (s *session) release(p *publisher) {
	if p.ended() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, p)
}
