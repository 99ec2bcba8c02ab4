package http_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/fault"
)

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestARequestThatNeverLeftIsNotSent(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = nil
	t.Cleanup(secure.Close)
	mute := dispatchtest.ServeConns(t, func(_ int, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	for name, test := range map[string]struct{ baseURL, class string }{
		"refused":               {"http://" + closedPort(t), "dial"},
		"no such host":          {"http://provider.invalid", "dns"},
		"untrusted certificate": {secure.URL, "tls"},
		"no TLS there":          {"https://" + strings.TrimPrefix(dispatchtest.ServeConns(t, func(_ int, c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 no\r\n\r\n") }), "http://"), "tls"},
		"handshake cut short":   {"https://" + strings.TrimPrefix(dispatchtest.ServeConns(t, func(_ int, c net.Conn) { _, _ = c.Read(make([]byte, 1)) }), "http://"), "tls"},
		"silent handshake":      {"https://" + strings.TrimPrefix(mute, "http://"), "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec(test.baseURL, "", "{path: /}")
			s.Timeout = 30 * time.Second
			if test.class == "timeout" {
				s.Timeout = 500 * time.Millisecond
			}
			got := newAdapter(t, s).Dispatch(t.Context(), request(`{}`))
			fault.Injected(t, 37, 1)
			if got.Outcome != dispatch.NotSent || got.ErrorClass != test.class {
				t.Errorf("got %+v, want not_sent, %s", got, test.class)
			}
		})
	}
}

func TestACancelledContextSendsNothing(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") }))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := newAdapter(t, spec(server.URL, "", "{path: /}")).Dispatch(ctx, request(`{}`))
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "cancelled" {
		t.Errorf("got %+v, want not_sent, cancelled", got)
	}
}

func TestWhatWasSentWithoutAReadableAnswerIsAmbiguous(t *testing.T) {
	t.Parallel()
	reply := func(text string) func(int, net.Conn) {
		return func(_ int, conn net.Conn) {
			_ = dispatchtest.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, text)
		}
	}
	hold := func(text string) func(int, net.Conn) {
		return func(_ int, conn net.Conn) {
			reader := bufio.NewReader(conn)
			_ = dispatchtest.ReadRequest(reader)
			_, _ = io.WriteString(conn, text)
			_, _ = io.Copy(io.Discard, reader)
		}
	}
	for name, test := range map[string]struct {
		serve func(int, net.Conn)
		class string
	}{
		"no reply":           {hold(""), "timeout"},
		"slow body":          {hold("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), "timeout"},
		"closed":             {reply(""), "reset"},
		"body cut short":     {reply("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), "reset"},
		"no HTTP":            {hold("SSH-2.0-OpenSSH_9.2\r\n"), "protocol"},
		"malformed JSON":     {reply("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{\""), "malformed_body"},
		"malformed gzip":     {reply("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 12\r\n\r\nnot any gzip"), "malformed_body"},
		"body too large":     {reply("HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + strings.Repeat("x", 2000)), "body_too_large"},
		"endless header":     {hold("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 200<<10)), "protocol"},
		"switching protocol": {reply("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"), "http_101"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec(dispatchtest.ServeConns(t, test.serve), "max_response_body: 1000", "{path: /}")
			if test.class == "timeout" {
				s.Timeout = 300 * time.Millisecond
			}
			got := newAdapter(t, s).Dispatch(t.Context(), request(`{}`))
			if got.Outcome != dispatch.Ambiguous || got.ErrorClass != test.class {
				t.Errorf("got %+v, want ambiguous, %s", got, test.class)
			}
			if got.Response != nil && test.class != "malformed_body" {
				t.Errorf("a body that was not read is stored: %.40s", got.Response)
			}
		})
	}
}

func TestAGzipBombStopsAtTheLimit(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		zipped := gzip.NewWriter(w)
		megabyte := make([]byte, 1<<20)
		for {
			if _, err := zipped.Write(megabyte); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	got := newAdapter(t, spec(server.URL, "", "{path: /}")).Dispatch(t.Context(), request(`{}`))
	if got.Outcome != dispatch.Ambiguous || got.ErrorClass != "body_too_large" || got.Response != nil {
		t.Errorf("got %+v, want ambiguous, body_too_large", got)
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	t.Cleanup(elsewhere.Close)
	redirects := []int{301, 302, 303, 307, 308}
	fault.Injected(t, 44, len(redirects))
	for _, status := range redirects {
		server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, status))
		t.Cleanup(server.Close)
		got := newAdapter(t, spec(server.URL, "headers: {X-Api-Key: secret}", "{path: /}")).Dispatch(t.Context(), request(`{}`))
		if got.Outcome != dispatch.Rejected || got.ErrorClass != "redirect" || got.HTTPStatus != status {
			t.Errorf("%d: got %+v, want rejected, redirect", status, got)
		}
	}
}
