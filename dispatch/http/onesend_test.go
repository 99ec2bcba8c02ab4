package http_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// dyingServer answers the first request of its first connection and closes
// that connection once it has read the second: where the standard transport
// sends again by itself.
func dyingServer(t *testing.T, requests *atomic.Int64) string {
	return dispatchtest.ServeConns(t, func(number int, conn net.Conn) {
		reader := bufio.NewReader(conn)
		for i := 0; dispatchtest.ReadRequest(reader) == nil; i++ {
			requests.Add(1)
			if number == 0 && i == 1 {
				return
			}
			if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
				return
			}
		}
	})
}

func TestARequestIsSentOnceThoughItsReusedConnectionDies(t *testing.T) {
	t.Parallel()
	for name, tool := range map[string]string{
		"post with a body":    "{path: /charges}",
		"post without a body": "{path: /charges, body: none}",
		"put without a body":  "{path: /charges, method: PUT, body: none}",
		"get":                 "{path: /charges, method: GET}",
		"delete":              "{path: /charges, method: DELETE}",
		"form":                "{path: /charges, body: form}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			adapter := newAdapter(t, spec(dyingServer(t, &requests), "", tool))
			if first := adapter.Dispatch(t.Context(), request(`{"a":1}`)); first.Outcome != dispatch.Completed {
				t.Fatalf("first dispatch: %+v", first)
			}
			second := adapter.Dispatch(t.Context(), request(`{"a":2}`))
			fault.Injected(t, 40, int(requests.Load())-1) // all but the first were reset
			if second.Outcome != dispatch.Ambiguous || second.ErrorClass != "reset" {
				t.Errorf("second dispatch: %+v, want ambiguous, reset", second)
			}
			if got := requests.Load(); got != 2 {
				t.Errorf("the server saw %d requests for 2 dispatches", got)
			}
		})
	}
}

// The control: without the guard the same server does see a third request, so
// the test above cannot pass vacuously.
func TestTheStandardTransportSendsTwice(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	baseURL := dyingServer(t, &requests)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for range 2 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, baseURL, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Idempotency-Key", "k")
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	if got := requests.Load(); got != 3 {
		t.Errorf("the server saw %d requests for 2 calls, expected 3", got)
	}
}

func TestAResetAfterTheBodyIsAmbiguous(t *testing.T) {
	t.Parallel()
	var resets atomic.Int64
	baseURL := dispatchtest.ServeConns(t, func(_ int, conn net.Conn) {
		_ = dispatchtest.ReadRequest(bufio.NewReader(conn))
		_ = conn.(*net.TCPConn).SetLinger(0)
		resets.Add(1)
	})
	got := newAdapter(t, spec(baseURL, "", "{path: /}")).Dispatch(t.Context(), request(`{}`))
	fault.Injected(t, 38, int(resets.Load()))
	if got.Outcome != dispatch.Ambiguous || got.ErrorClass != "reset" {
		t.Errorf("got %+v, want ambiguous, reset", got)
	}
}
