package sidecar_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/sidecar"
)

func TestMain(m *testing.M) {
	if os.Getenv("STAGE") != "" {
		bePlayer()
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// block is configuration as a user writes it.
type block string

func (b block) Decode(into any) error {
	return yaml.UnmarshalWithOptions([]byte(b), into, yaml.Strict())
}

var tuple = dispatch.Tuple{AgentRunID: "run-001", StepID: "step-1", ToolName: "desk/open", BusinessScope: "case_7"}

func request(payload string) dispatch.Request {
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

func spec(url string, settings string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "desk",
		Timeout:  10 * time.Second,
		Settings: block("url: " + url + "\n" + settings),
		Tools: map[string]dispatch.ToolSpec{
			"open":  {Class: dispatch.KeyIdempotent},
			"close": {Class: dispatch.NonIdempotent},
		},
	}
}

func newAdapter(t *testing.T, spec dispatch.Spec) *sidecar.Adapter {
	t.Helper()
	adapter, err := sidecar.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := adapter.Close(); err != nil {
			t.Error(err)
		}
	})
	return adapter
}

func expect(t *testing.T, got dispatch.Result, outcome dispatch.Outcome, class string) {
	t.Helper()
	if got.Outcome != outcome || got.ErrorClass != class {
		t.Errorf("%s %q, want %s %q", got.Outcome, got.ErrorClass, outcome, class)
	}
}

const goodHello = `{"protocol":[1],"name":"desk"}`

// desk is a sidecar that answers as it is told.
type desk struct {
	hello    func(w http.ResponseWriter, r *http.Request)
	dispatch func(w http.ResponseWriter, id string, body []byte)
	greeted  atomic.Int64
	arrived  atomic.Int64
}

func newDesk() *desk {
	return &desk{
		hello: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, goodHello) },
		dispatch: func(w http.ResponseWriter, id string, body []byte) {
			fmt.Fprintf(w, `{"id":%q,"outcome":"completed","response":%s}`, id, body)
		},
	}
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/hello":
		d.greeted.Add(1)
		d.hello(w, r)
	case "POST /v1/dispatch":
		d.arrived.Add(1)
		var message struct{ ID string }
		if json.NewDecoder(bytes.NewReader(body)).Decode(&message) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		d.dispatch(w, message.ID, body)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// loopback serves on a port and returns its URL.
func (d *desk) loopback(t *testing.T) string {
	t.Helper()
	return serve(t, d)
}

// socket serves on a Unix socket and returns its URL.
func (d *desk) socket(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "sidecar") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	path := filepath.Join(directory, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: d}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return "unix://" + path
}

func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}
