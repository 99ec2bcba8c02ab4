//go:build unix

package peek_test

import (
	"errors"
	"net"
	"runtime"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/internal/peek"
)

func TestAConnectionSaysWhatItHoldsUnread(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		peer func(*net.TCPConn) error
		want peek.State
	}{
		"nothing":             {func(*net.TCPConn) error { return nil }, peek.Quiet},
		"octets":              {speak, peek.Unread},
		"octets and the end":  {func(c *net.TCPConn) error { return errors.Join(speak(c), c.Close()) }, peek.Unread},
		"the end":             {func(c *net.TCPConn) error { return c.Close() }, peek.Ended},
		"the end of one half": {func(c *net.TCPConn) error { return c.CloseWrite() }, peek.Ended},
		"a reset":             {func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) }, peek.Ended},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := connected(t)
			if err := test.peer(theirs); err != nil {
				t.Fatal(err)
			}
			for test.want != peek.Quiet && peek.At(ours) == peek.Quiet {
				runtime.Gosched() // it is on its way
			}
			for range 2 {
				if got := peek.At(ours); got != test.want {
					t.Fatalf("got %d, want %d", got, test.want)
				}
			}
		})
	}
}

func TestAWrappedConnectionDoesNotTell(t *testing.T) {
	t.Parallel()
	ours, _ := connected(t)
	if wrapped := (struct{ net.Conn }{ours}); peek.Possible(wrapped) || peek.At(wrapped) != peek.Unknown {
		t.Error("what cannot be known is told")
	}
	if !peek.Possible(ours) {
		t.Error("a socket can tell")
	}
}

func TestAConnectionClosedHereHasEnded(t *testing.T) {
	t.Parallel()
	ours, _ := connected(t)
	_ = ours.Close()
	if got := peek.At(ours); got != peek.Ended {
		t.Errorf("got %d, want Ended", got)
	}
}

func speak(c *net.TCPConn) error {
	_, err := c.Write([]byte("HTTP/1.1 408 Request Timeout\r\n\r\n"))
	return err
}

func connected(t *testing.T) (ours net.Conn, theirs *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if ours, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close() })
	return ours, accepted.(*net.TCPConn)
}
