package http

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/agentoutbox/drainer/dispatch"
)

// secureAdapter trusts the certificate of the server.
func secureAdapter(t *testing.T, baseURL string, certificate *x509.Certificate, method string) *Adapter {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	adapter, err := New(dispatch.Spec{
		Network: dispatch.NewNetwork(nil, &tls.Config{RootCAs: roots}),
		Timeout: 10 * time.Second,
		Settings: decodeFunc(func(into any) error {
			into.(*Settings).BaseURL = baseURL
			return nil
		}),
		Tools: map[string]dispatch.ToolSpec{"p": {Settings: decodeFunc(func(into any) error {
			*into.(*Tool) = Tool{Path: "/", Method: method, Body: "none"}
			return nil
		})}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = adapter.Close() })
	return adapter
}

type decodeFunc func(into any) error

func (f decodeFunc) Decode(into any) error { return f(into) }

var anIntent = dispatch.Request{Tuple: dispatch.Tuple{ToolName: "p"}, IdempotencyKey: "idem_v1_0", Payload: []byte("{}")}

func TestHTTP2IsSpoken(t *testing.T) {
	t.Parallel()
	var major atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		major.Store(int64(r.ProtoMajor))
		if r.Method == http.MethodDelete {
			panic(http.ErrAbortHandler)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	got := secureAdapter(t, server.URL, server.Certificate(), "POST").Dispatch(t.Context(), anIntent)
	if got.Outcome != dispatch.Completed || major.Load() != 2 {
		t.Errorf("HTTP/%d: %+v", major.Load(), got)
	}
	got = secureAdapter(t, server.URL, server.Certificate(), "DELETE").Dispatch(t.Context(), anIntent)
	if got.Outcome != dispatch.Ambiguous {
		t.Errorf("a reset stream: %+v, want ambiguous", got)
	}
}

// The HTTP/2 transport repeats a refused stream by itself, up to six times.
func TestARefusedStreamIsSentOnce(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "POST", "DELETE"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			var streams atomic.Int64
			baseURL, certificate := refusingServer(t, &streams)
			got := secureAdapter(t, baseURL, certificate, method).Dispatch(t.Context(), anIntent)
			if got.Outcome != dispatch.Ambiguous || streams.Load() != 1 {
				t.Errorf("%d requests, %+v, want one and ambiguous", streams.Load(), got)
			}
		})
	}
}

func refusingServer(t *testing.T, streams *atomic.Int64) (baseURL string, certificate *x509.Certificate) {
	t.Helper()
	lender := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	t.Cleanup(lender.Close)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: lender.TLS.Certificates, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go refuseStreams(conn, streams)
		}
	}()
	return "https://" + listener.Addr().String(), lender.Certificate()
}

func refuseStreams(conn net.Conn, streams *atomic.Int64) {
	defer conn.Close()
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
			streams.Add(1)
			_ = framer.WriteRSTStream(frame.StreamID, http2.ErrCodeRefusedStream)
		}
	}
}
