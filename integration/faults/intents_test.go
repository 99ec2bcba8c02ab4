package faults_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/world"
)

// What agents, that is language models, may take for a step's name. The
// provider is also sent the parts, in a header.
func TestKeyPartsOfAnyTextBecomeASafeKeyOrAreRefused(t *testing.T) {
	t.Parallel()
	w := world.New(t, nil)
	parts := map[string]history.Answer{
		"a\r\nX-Injected: yes":    history.Committed,
		"tab\tand\x7f and spaces": history.Committed,
		"日本語, é and 🤖":            history.Committed,
		`"quotes", 100%, a=b;c`:   history.Committed,
		strings.Repeat("é", 127):  history.Committed,
		strings.Repeat("x", 300):  history.Refused,
		"NUL\x00":                 history.Refused,
		"half \xc3":               history.Refused,
		"":                        history.Refused,
	}
	headers := make(chan http.Header, 100)
	front := dispatchtest.Serve(t, http.HandlerFunc(func(writer http.ResponseWriter, r *http.Request) {
		headers <- r.Header.Clone()
		w.Provider.ServeHTTP(writer, r)
	}))
	w.Reconfigure(func(config string) string {
		return strings.ReplaceAll(config, "http: {base_url: "+w.BaseURL, "http: {idempotency_key: {tuple_header: true}, base_url: "+front)
	})
	for part, want := range parts {
		intent := dispatch.Tuple{AgentRunID: part, StepID: part, ToolName: world.Keyed, BusinessScope: part}
		if got := w.Clients.Enqueue(context.Background(), w.DB, intent, json.RawMessage(`{}`)); got != want {
			t.Errorf("%.40q: %s, want %s", part, got, want)
		}
	}
	w.Start()
	w.AwaitRest()
	close(headers)

	fault.Injected(t, 48, len(parts))
	for header := range headers {
		tuple := strings.Split(header.Get("X-Agent-Idempotency-Tuple"), ",")
		part, err := url.PathUnescape(tuple[0])
		if _, sent := parts[part]; err != nil || !sent || len(tuple) != 4 || header.Get("X-Injected") != "" {
			t.Errorf("the provider was sent %q", header)
		}
	}
	w.Check() // the provider's ledger has the keys that Go makes of the parts
}

// The answer to the first try is lost. The second is a replay, which this
// provider gives to the same octets alone.
func TestAPayloadKeepsItsNumbersAndItsOctetsFromTryToTry(t *testing.T) {
	t.Parallel()
	w := world.New(t, dispatchtest.Script(dispatchtest.DropAfter))
	payloads := map[string]string{ // as Postgres keeps them: of two values of a name, the last
		`{"n": 9007199254740993}`:               `{"n": 9007199254740993}`,
		`{"n":-9223372036854775809}`:            `{"n": -9223372036854775809}`,
		`{"n": 123456789012345678901234567890}`: `{"n": 123456789012345678901234567890}`,
		`{"n": 0.10000000000000000000001}`:      `{"n": 0.10000000000000000000001}`,
		`{"n": 1.00}`:                           `{"n": 1.00}`,
		`{"n": 1, "n": 9007199254740993}`:       `{"n": 9007199254740993}`,
		`{"z":1,"a":2, "z":{"k":1,"k":2}}`:      `{"a": 2, "z": {"k": 2}}`,
	}
	want := map[string]string{} // digest by key
	for payload, kept := range payloads {
		intent := dispatch.Tuple{AgentRunID: "run", StepID: payload, ToolName: world.Keyed, BusinessScope: "order"}
		w.Clients.Enqueue(context.Background(), w.DB, intent, json.RawMessage(payload))
		digest := sha256.Sum256([]byte(kept))
		want[intent.IdempotencyKey()] = hex.EncodeToString(digest[:])
	}
	w.Start()
	w.AwaitRest()

	fault.Injected(t, 49, w.Provider.Ledger.Audit().Faults[dispatchtest.DropAfter])
	for _, effect := range w.Provider.Ledger.Effects() {
		if effect.Body != want[effect.Key] {
			t.Errorf("the provider was sent other octets under %s", effect.Key)
		}
	}
	if replayed := w.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'completed' AND replayed`); replayed != len(payloads) {
		t.Errorf("%d second tries were replays, want %d", replayed, len(payloads))
	}
	w.Check()
}
