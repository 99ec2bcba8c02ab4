package faults_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// witness is everybody that daemons talk to, each at a path of its own, and
// remembers what it was told.
type witness struct {
	provider http.Handler // at /provider
	pagerUp  atomic.Bool

	mu       sync.Mutex
	requests map[string]string // what each was told, but for the bodies
	bodies   map[string]string
	spoke    int
}

func newWitness(provider http.Handler) *witness {
	return &witness{provider: provider, requests: map[string]string{}, bodies: map[string]string{}}
}

func (w *witness) ServeHTTP(writer http.ResponseWriter, r *http.Request) {
	whom, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	body, _ := io.ReadAll(r.Body)
	w.note(whom, fmt.Sprintln(r.URL, r.Header), string(body))
	switch whom {
	case "talker":
		w.talk(writer)
	case "pager":
		if !w.pagerUp.Load() {
			writer.WriteHeader(http.StatusServiceUnavailable)
		}
	case "provider":
		r.URL.Path, r.Body = "/"+path, io.NopCloser(bytes.NewReader(body))
		w.provider.ServeHTTP(writer, r)
	}
}

func (w *witness) note(whom, request, body string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests[whom] += request
	w.bodies[whom] += body
}

func (w *witness) body(whom string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bodies[whom]
}

// saw is how many of the secrets came to where they belong; all should.
func (w *witness) saw(t *testing.T, secrets ...string) (seen int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	everything := fmt.Sprint(w.requests, w.bodies)
	for _, secret := range secrets {
		if !strings.Contains(everything, secret) {
			t.Errorf("nobody was told %s, so nothing is shown of it", secret)
			continue
		}
		seen++
	}
	return seen
}

// talks are replies whose secrets a client may repeat in its errors.
var talks = []string{
	"canary is no HTTP\r\n\r\n",
	"HTTP/1.1 2canary OK\r\n\r\n",
	"HTTP/1.1 200 OK\r\ncanary is no header\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: canary\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: canary\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ncanary\r\n",
	"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 6\r\n\r\ncanary",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{\"canary",
	"HTTP/1.1 200 OK\r\nContent-Type: canary\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 307 Elsewhere\r\nLocation: http://canary:canary@127.0.0.1/canary\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 401 canary\r\nContent-Type: application/problem+json\r\nContent-Length: 44\r\n\r\n{\"title\": \"canary is no token\", \"detail\": 1 }",
	"HTTP/1.1 500 canary\r\nRetry-After: canary\r\nDate: canary\r\nContent-Length: 6\r\n\r\ncanary",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"id\": \"eff_1\"}canary, unasked for\r\n",
}

// talk says the next of them.
func (w *witness) talk(writer http.ResponseWriter) {
	conn, _, err := writer.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	w.mu.Lock()
	said := talks[w.spoke%len(talks)]
	w.spoke++
	w.mu.Unlock()
	_, _ = io.WriteString(conn, said)
}
