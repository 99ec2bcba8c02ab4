package http_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// dyingServer answers the first request of its first connection. It closes that connection when it has read the
// second request. The standard transport sends that request again by itself.
func dyingServer(t *testing.T, wire dispatchtest.Wire, requests *atomic.Int64) string {
	return wire.ServeConns(t, func(number int, conn net.Conn) {
		if wire == dispatchtest.TLSHTTP2 {
			dieOverHTTP2(conn, number, requests)
			return
		}
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

// dieOverHTTP2 is dyingServer over HTTP/2. It ends with a GOAWAY that has the number of the first request, which
// says that the server never began the second one.
func dieOverHTTP2(conn net.Conn, number int, requests *atomic.Int64) {
	var header bytes.Buffer
	_ = hpack.NewEncoder(&header).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	var last uint32
	takeStreams(conn, func(framer *http2.Framer, stream uint32) bool {
		requests.Add(1)
		if number == 0 && last != 0 {
			_ = framer.WriteGoAway(last, http2.ErrCodeNo, nil)
			return false
		}
		last = stream
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: last, BlockFragment: header.Bytes(), EndHeaders: true})
		return framer.WriteData(last, true, []byte("{}")) == nil
	})
}

// takeStreams serves HTTP/2 until take returns false for a new stream.
func takeStreams(conn net.Conn, take func(framer *http2.Framer, stream uint32) (goOn bool)) {
	if _, err := io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface))); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	_ = framer.WriteSettings()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			if !take(framer, frame.StreamID) {
				return
			}
		}
	}
}

// The HTTP/2 transport repeats a refused stream by itself, up to six times.
func TestARefusedStreamIsSentOnce(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "POST", "DELETE"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			var streams atomic.Int64
			wire := dispatchtest.TLSHTTP2
			s := spec(wire.ServeConns(t, func(_ int, conn net.Conn) {
				takeStreams(conn, func(framer *http2.Framer, stream uint32) bool {
					streams.Add(1)
					return framer.WriteRSTStream(stream, http2.ErrCodeRefusedStream) == nil
				})
			}), "", "{path: /, body: none, method: "+method+"}")
			s.Network = wire.Network(t)
			got := newAdapter(t, s).Dispatch(t.Context(), request(`{}`))
			if got.Outcome != dispatch.Ambiguous || streams.Load() != 1 {
				t.Errorf("%d requests, %+v, want one and ambiguous", streams.Load(), got)
			}
		})
	}
}

func TestARequestIsSentOnceThoughItsReusedConnectionDies(t *testing.T) {
	t.Parallel()
	for _, wire := range dispatchtest.Wires() {
		for name, tool := range map[string]string{
			"post with a body":    "{path: /charges}",
			"post without a body": "{path: /charges, body: none}",
			"put without a body":  "{path: /charges, method: PUT, body: none}",
			"get":                 "{path: /charges, method: GET}",
			"long get":            "{path: /charges, method: GET, headers: {X-Long: '" + strings.Repeat("x", 5000) + "'}}",
			"delete":              "{path: /charges, method: DELETE}",
			"form":                "{path: /charges, body: form}",
		} {
			t.Run(name+" over "+string(wire), func(t *testing.T) {
				t.Parallel()
				var requests atomic.Int64
				s := spec(dyingServer(t, wire, &requests), "", tool)
				s.Network = wire.Network(t)
				adapter := newAdapter(t, s)
				if first := adapter.Dispatch(t.Context(), request(`{"a":1}`)); first.Outcome != dispatch.Completed {
					t.Fatalf("first dispatch: %+v", first)
				}
				second := adapter.Dispatch(t.Context(), request(`{"a":2}`))
				fault.Injected(t, 40, int(requests.Load())-1) // all but the first were reset
				// A GOAWAY is read before the end of its connection.
				protocol := wire == dispatchtest.TLSHTTP2 && second.ErrorClass == "protocol"
				if second.Outcome != dispatch.Ambiguous || (second.ErrorClass != "reset" && !protocol) {
					t.Errorf("second dispatch: %+v, want ambiguous, reset", second)
				}
				if got := requests.Load(); got != 2 {
					t.Errorf("the server saw %d requests for 2 dispatches", got)
				}
			})
		}
	}
}

// This is the control. Without the guard the same server does get a third request, so the test above does test the
// guard.
func TestTheStandardTransportSendsTwice(t *testing.T) {
	t.Parallel()
	for _, wire := range dispatchtest.Wires() {
		t.Run(string(wire), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			baseURL := dyingServer(t, wire, &requests)
			transport := &http.Transport{TLSClientConfig: wire.ClientTLS(t), ForceAttemptHTTP2: true}
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
		})
	}
}

func TestAResetAfterTheBodyIsAmbiguous(t *testing.T) {
	t.Parallel()
	var resets atomic.Int64
	baseURL := "http://" + dispatchtest.ServeConns(t, func(conn net.Conn) {
		_ = dispatchtest.ReadRequest(bufio.NewReader(conn))
		_ = conn.(*net.TCPConn).SetLinger(0)
		resets.Add(1)
	})
	got := newAdapter(t, spec(baseURL, "", "{path: /}")).Dispatch(t.Context(), request(`{}`))
	fault.Injected(t, 38, int(resets.Load()))
	dispatchtest.Expect(t, got, dispatch.Ambiguous, "reset")
}

func TestARequestThatNeverLeftIsNotSent(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = nil
	t.Cleanup(secure.Close)
	mute := dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	for name, test := range map[string]struct{ baseURL, class string }{
		"refused":               {"http://" + dispatchtest.Address(t), "dial"},
		"no such host":          {"http://provider.invalid", "dns"},
		"untrusted certificate": {secure.URL, "tls"},
		"no TLS there":          {"https://" + dispatchtest.ServeConns(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 no\r\n\r\n") }), "tls"},
		"handshake cut short":   {"https://" + dispatchtest.ServeConns(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }), "tls"},
		"silent handshake":      {"https://" + mute, "timeout"},
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
			dispatchtest.Expect(t, got, dispatch.NotSent, test.class)
		})
	}
}

func TestACancelledContextSendsNothing(t *testing.T) {
	t.Parallel()
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := newAdapter(t, spec(baseURL, "", "{path: /}")).Dispatch(ctx, request(`{}`))
	dispatchtest.Expect(t, got, dispatch.NotSent, "cancelled")
}

func TestWhatWasSentWithoutAReadableAnswerIsAmbiguous(t *testing.T) {
	t.Parallel()
	reply := func(text string) func(net.Conn, func()) {
		return func(conn net.Conn, _ func()) {
			_ = dispatchtest.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, text)
		}
	}
	hold := func(text string) func(net.Conn, func()) {
		return func(conn net.Conn, said func()) {
			reader := bufio.NewReader(conn)
			_ = dispatchtest.ReadRequest(reader)
			_, _ = io.WriteString(conn, text)
			said()
			_, _ = io.Copy(io.Discard, reader)
		}
	}
	for name, test := range map[string]struct {
		serve func(conn net.Conn, said func())
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
		"switching protocol": {hold("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"), "http_101"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, said := drainertest.Expiring(t)
			if test.class != "timeout" {
				said = func() {}
			}
			address := dispatchtest.ServeConns(t, func(conn net.Conn) { test.serve(conn, said) })
			got := newAdapter(t, spec("http://"+address, "max_response_body: 1000", "{path: /}")).Dispatch(ctx, request(`{}`))
			dispatchtest.Expect(t, got, dispatch.Ambiguous, test.class)
			if got.Response != nil && test.class != "malformed_body" {
				t.Errorf("a body that was not read is stored: %.40s", got.Response)
			}
		})
	}
}

func TestAGzipBombStopsAtTheLimit(t *testing.T) {
	t.Parallel()
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		zipped := gzip.NewWriter(w)
		megabyte := make([]byte, 1<<20)
		for {
			if _, err := zipped.Write(megabyte); err != nil {
				return
			}
		}
	}))
	got := newAdapter(t, spec(baseURL, "", "{path: /}")).Dispatch(t.Context(), request(`{}`))
	if got.Outcome != dispatch.Ambiguous || got.ErrorClass != "body_too_large" || got.Response != nil {
		t.Errorf("got %+v, want ambiguous, body_too_large", got)
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := dispatchtest.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	redirects := []int{301, 302, 303, 307, 308}
	fault.Injected(t, 44, len(redirects))
	for _, status := range redirects {
		baseURL := dispatchtest.Serve(t, http.RedirectHandler(elsewhere, status))
		got := newAdapter(t, spec(baseURL, "headers: {X-Api-Key: secret}", "{path: /}")).Dispatch(t.Context(), request(`{}`))
		want, class := dispatch.Rejected, "redirect"
		if status <= http.StatusSeeOther { // the server may have acted, and says where the result is
			want, class = dispatch.Ambiguous, "http_"+strconv.Itoa(status)
		}
		if got.Outcome != want || got.ErrorClass != class || got.HTTPStatus != status {
			t.Errorf("%d: got %+v, want %s, %s", status, got, want, class)
		}
	}
}
