//go:build unix

package evidence_test

import (
	"errors"
	"net"
	"runtime"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

func TestAConnectionSaysWhatItHoldsUnread(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		peer func(*net.TCPConn) error
		want evidence.State
	}{
		"nothing":             {func(*net.TCPConn) error { return nil }, evidence.Quiet},
		"bytes":               {speak, evidence.Unread},
		"bytes and the end":   {func(c *net.TCPConn) error { return errors.Join(speak(c), c.Close()) }, evidence.Unread},
		"the end":             {func(c *net.TCPConn) error { return c.Close() }, evidence.Ended},
		"the end of one half": {func(c *net.TCPConn) error { return c.CloseWrite() }, evidence.Ended},
		"a reset":             {func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) }, evidence.Ended},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := connected(t)
			if err := test.peer(theirs); err != nil {
				t.Fatal(err)
			}
			for test.want != evidence.Quiet && evidence.Peek(ours) == evidence.Quiet {
				runtime.Gosched() // the peer's action is on its way
			}
			for range 2 {
				if got := evidence.Peek(ours); got != test.want {
					t.Fatalf("got %d, want %d", got, test.want)
				}
			}
		})
	}
}

func TestAWrappedConnectionDoesNotTell(t *testing.T) {
	t.Parallel()
	ours, _ := connected(t)
	if wrapped := (struct{ net.Conn }{ours}); evidence.Peek(wrapped) != evidence.Unknown {
		t.Error("a state is reported that cannot be known")
	}
}

func TestAConnectionClosedHereHasEnded(t *testing.T) {
	t.Parallel()
	ours, _ := connected(t)
	_ = ours.Close()
	if got := evidence.Peek(ours); got != evidence.Ended {
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
