package mcp_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/mcp"
)

// A home-made server may ignore what it does not know, where it should refuse it.
func TestAServerThatIsSilentToDiscoverGetsInitialize(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (settings string, discoveries func() int){
		"over HTTP": func(t *testing.T) (string, func() int) {
			behind := startEndpoint(t, endpointOptions{versions: []string{legacy}})
			var discoveries atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if bytes.Contains(body, []byte(`"server/discover"`)) {
					discoveries.Add(1)
					<-r.Context().Done()
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				behind.ServeHTTP(w, r)
			}))
			t.Cleanup(server.Close)
			return `{"url": "` + server.URL + `/mcp"}`, func() int { return int(discoveries.Load()) }
		},
		"over stdio": func(t *testing.T) (string, func() int) {
			n := newNursery(t)
			settings := n.settings(t, map[string]any{"env": map[string]string{
				"MCP_TEST_ROLE": "server", "MCP_TEST_FOLDER": n.folder, "MCP_TEST_OLDER": "yes", "GORACE": "atexit_sleep_ms=0",
			}})
			return settings, func() int { return len(n.lines("discoveries")) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings, discoveries := start(t)
			adapter, err := mcp.New(specFor(settings, "{}", dispatch.KeyIdempotent))
			if err != nil {
				t.Fatal(err)
			}
			defer adapter.Close()
			for _, step := range []string{"1", "2", "3"} {
				if got := adapter.Dispatch(t.Context(), intent(step)); got.Outcome != dispatch.Completed {
					t.Fatalf("got %+v", got)
				}
			}
			if discoveries() != 1 {
				t.Errorf("it was asked %d times", discoveries())
			}
		})
	}
}
