package integration_test

import (
	"bufio"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/integration/harness"
)

const recorded = "It is recorded. It will be carried out, or its failure reported. Do not ask for it again."

// call uses one tool of a server that was started, and returns its text.
func call(t *testing.T, through sdk.Transport, tool string) string {
	t.Helper()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "agent"}, nil).Connect(t.Context(), through, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: map[string]any{"n": 1}})
	if err != nil || len(result.Content) != 1 {
		t.Fatalf("%s: %+v, %v", tool, result, err)
	}
	return result.Content[0].(*sdk.TextContent).Text
}

func TestAnAgentEnqueuesOverMCPAndADaemonCarriesItOut(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	rig.Start()
	arguments := []string{"mcp", "--enqueue", harness.Keyed, "--config", rig.Config}

	server := rig.Program.Command(arguments...)
	server.Env = append(server.Env, "DRAINER_RUN=by-pipe", "DRAINER_STEP=act")
	if got := call(t, &sdk.CommandTransport{Command: server}, "enqueue_keyed_act"); got != recorded {
		t.Errorf("over standard input and output: %s", got)
	}

	const token = "a-token-that-only-clients-know"
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	endpoint := serveMCP(t, rig, append(arguments, "--listen", "127.0.0.1:0", "--token-file", tokenFile))
	for _, run := range []string{"by-http", "by-http-too"} {
		headers := &http.Client{Transport: withHeaders{"Drainer-Run": run, "Drainer-Step": "act", "Authorization": "Bearer " + token}}
		if got := call(t, &sdk.StreamableClientTransport{Endpoint: endpoint, HTTPClient: headers}, "enqueue_keyed_act"); got != recorded {
			t.Errorf("over HTTP: %s", got)
		}
	}
	foreign, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint, strings.NewReader(`{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}`))
	if err != nil {
		t.Fatal(err)
	}
	foreign.Header.Set("Authorization", "Bearer "+token)
	foreign.Header.Set("Origin", "https://evil.example")
	foreign.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(foreign)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("a page of another site is answered with HTTP %d", answer.StatusCode)
	}
	rig.AwaitCount("all are carried out", 3, `SELECT count(*) FROM outbox.status WHERE status = 'completed' AND agent_run_id LIKE 'by-%'`)
}

// serveMCP starts the server, and returns its address once it says it.
func serveMCP(t *testing.T, rig *harness.Rig, arguments []string) (endpoint string) {
	t.Helper()
	server := rig.Program.Command(arguments...)
	said, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM) // it may have ended
		for lines.Scan() {                         // to the end, or Wait would lose it
			t.Log(lines.Text())
		}
		if err := server.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	for lines.Scan() {
		if _, address, is := strings.Cut(lines.Text(), "The MCP server is at "); is {
			return address
		}
		t.Log(lines.Text())
	}
	t.Fatal("the server ended before it said where it listens")
	return ""
}

type withHeaders map[string]string

func (w withHeaders) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	for name, value := range w {
		request.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(request)
}
