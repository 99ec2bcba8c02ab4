package bench_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
)

// providerMain answers every request at once, until it is killed.
func providerMain() int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return complain("provider", err)
	}
	var effects atomic.Int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"eff_%d"}`, effects.Add(1))
	})
	fmt.Fprintf(os.Stdout, "serving at http://%s\n", listener.Addr())
	return complain("provider", http.Serve(listener, handler))
}

// startProvider returns its URL.
func startProvider(b testing.TB) string {
	b.Helper()
	return spawn(b, "provider", nil).awaitLog(`serving at (\S+)\n`)
}

// inFlight is how many requests are under way at once.
const inFlight = 64

// newClient keeps a connection for each of them.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: inFlight, MaxConnsPerHost: inFlight}}
}
