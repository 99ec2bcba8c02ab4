package cli

import (
	"bufio"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/dispatch"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

// lines gives what is logged to whoever waits for it.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// TestWhatAProviderSaysUnaskedIsNotLogged is not parallel: there is one
// standard logger.
func TestWhatAProviderSaysUnaskedIsNotLogged(t *testing.T) {
	logged := make(lines, 16)
	before, flags := log.Writer(), log.Flags()
	defer func() { log.SetOutput(before); log.SetFlags(flags) }()
	quiet(slog.New(slog.NewJSONHandler(logged, nil)))

	const canary = "iban-DE02-secret"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if request, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, _ = io.Copy(io.Discard, request.Body)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n"+canary)
			_, _ = io.Copy(io.Discard, conn) // until the adapter leaves
		}
	}()

	adapter, err := dispatchhttp.New(dispatch.Spec{
		Provider: "bank",
		Settings: written("base_url: http://" + listener.Addr().String()),
		Tools:    map[string]dispatch.ToolSpec{"pay": {Class: dispatch.NonIdempotent, Settings: written("path: /pay")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer adapter.Close()
	// Long enough for the standard transport, which logs what it did not ask for.
	payload := json.RawMessage(`{"reference": "` + strings.Repeat("x", 8<<10) + `"}`)
	got := adapter.Dispatch(t.Context(), dispatch.Request{Tuple: dispatch.Tuple{ToolName: "bank/pay"}, Payload: payload})
	if got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	if line := <-logged; strings.Contains(line, canary) || !strings.Contains(line, `"octets"`) {
		t.Errorf("logged: %s", line)
	}
}

type written string

func (w written) Decode(into any) error {
	return yaml.UnmarshalWithOptions([]byte(w), into, yaml.Strict())
}
