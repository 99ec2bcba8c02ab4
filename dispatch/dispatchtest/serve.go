package dispatchtest

import (
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// T is the part of testing.TB that Serve needs.
type T interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// NewProvider serves a provider with a ledger in memory until the test ends,
// and returns its base URL. A nil plan never fails.
func NewProvider(t T, plan Plan) (*SimulatedProvider, string) {
	t.Helper()
	provider := &SimulatedProvider{Ledger: NewLedger(), Plan: plan}
	baseURL := Serve(t, provider)
	t.Cleanup(provider.Release) // runs first, so that no hang outlives the server
	return provider, baseURL
}

// Serve serves the handler on a loopback port until the test ends, and
// returns its base URL.
func Serve(t T, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening on loopback: %v", err)
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return "http://" + listener.Addr().String()
}
