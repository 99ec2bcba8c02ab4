package kafka_test

import (
	"net"
	"sync"
	"testing"
)

// door is the listener of a broker that can go away and come back: once it is
// shut, nobody listens at its address and every connection through it is closed.
type door struct {
	mu      sync.Mutex
	address string
	inner   net.Listener
	conns   []*doorConn
	came    chan net.Conn
	done    chan struct{}
	once    sync.Once
	babbles bool
}

func (d *door) listen(network, address string) (net.Listener, error) {
	inner, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	d.address, d.came, d.done = inner.Addr().String(), make(chan net.Conn), make(chan struct{})
	d.admit(inner)
	return d, nil
}

func (d *door) admit(inner net.Listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inner = inner
	go func() {
		for {
			conn, err := inner.Accept()
			if err != nil {
				return
			}
			through := &doorConn{Conn: conn, door: d}
			d.mu.Lock()
			d.conns = append(d.conns, through)
			d.mu.Unlock()
			select {
			case d.came <- through:
			case <-d.done:
				_ = conn.Close()
			}
		}
	}()
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.inner.Close()
	for _, conn := range d.conns {
		_ = conn.Close()
	}
	d.conns = nil
}

func (d *door) open(t *testing.T) {
	inner, err := net.Listen("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	d.admit(inner)
}

// babble makes what the broker writes unreadable, or readable again.
func (d *door) babble(babbles bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.babbles = babbles
}

func (d *door) isBabbling() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.babbles
}

func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.came:
		return conn, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

func (d *door) Addr() net.Addr {
	address, err := net.ResolveTCPAddr("tcp", d.address)
	if err != nil {
		panic(err)
	}
	return address
}

func (d *door) Close() error {
	d.once.Do(func() {
		close(d.done)
		d.shut()
	})
	return nil
}

type doorConn struct {
	net.Conn
	door *door
}

func (c *doorConn) Write(octets []byte) (int, error) {
	if !c.door.isBabbling() {
		return c.Conn.Write(octets)
	}
	if _, err := c.Conn.Write([]byte("220 mail.example ESMTP\r\n")); err != nil {
		return 0, err
	}
	return len(octets), nil
}
