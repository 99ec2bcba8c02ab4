package faults_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/program"
)

// Agents are language models, and may use any text as the name of a step. The provider also gets the parts of the key
// in a header.
func TestKeyPartsOfAnyTextBecomeASafeKeyOrAreRefused(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
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
		rig.Provider.ServeHTTP(writer, r)
	}))
	rig.Reconfigure(func(config string) string {
		return strings.ReplaceAll(config, "http: {base_url: "+rig.BaseURL, "http: {idempotency_key: {tuple_header: true}, base_url: "+front)
	})
	for part, want := range parts {
		intent := dispatch.Tuple{AgentRunID: part, StepID: part, ToolName: harness.Keyed, BusinessScope: part}
		if got := rig.Clients.Enqueue(context.Background(), rig.DB, intent, json.RawMessage(`{}`)); got != want {
			t.Errorf("%.40q: %s, want %s", part, got, want)
		}
	}
	rig.Start()
	rig.AwaitRest()
	close(headers)

	fault.Injected(t, 48, len(parts))
	for header := range headers {
		tuple := strings.Split(header.Get("X-Agent-Idempotency-Tuple"), ",")
		part, err := url.PathUnescape(tuple[0])
		if _, sent := parts[part]; err != nil || !sent || len(tuple) != 4 || header.Get("X-Injected") != "" {
			t.Errorf("the provider was sent %q", header)
		}
	}
	rig.Check() // the provider's ledger has the keys that Go computes
}

// The answer to the first attempt is lost. The second attempt gets a replay, which this provider gives only to the
// same bytes.
func TestAPayloadKeepsItsNumbersAndItsBytesFromTryToTry(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, dispatchtest.Script(dispatchtest.DropAfter))
	payloads := map[string]string{ // as Postgres stores them: of two values of a name, the last
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
		intent := dispatch.Tuple{AgentRunID: "run", StepID: payload, ToolName: harness.Keyed, BusinessScope: "order"}
		rig.Clients.Enqueue(context.Background(), rig.DB, intent, json.RawMessage(payload))
		digest := sha256.Sum256([]byte(kept))
		want[intent.IdempotencyKey()] = hex.EncodeToString(digest[:])
	}
	rig.Start()
	rig.AwaitRest()

	fault.Injected(t, 49, rig.Provider.Ledger.Audit().Faults[dispatchtest.DropAfter])
	for _, effect := range rig.Provider.Ledger.Effects() {
		if effect.Body != want[effect.Key] {
			t.Errorf("the provider was sent other bytes under %s", effect.Key)
		}
	}
	if replayed := rig.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'completed' AND replayed`); replayed != len(payloads) {
		t.Errorf("%d second tries were replays, want %d", replayed, len(payloads))
	}
	rig.Check()
}

func TestAPayloadThatKillsEveryWorkerEndsAtItsLastTry(t *testing.T) {
	t.Parallel()
	poisoned().holds(t)
}

// poisoned kills the worker at each request for one intent, which the provider never answers.
func poisoned() scenario {
	const tries = 3
	poison := harness.Intent("poison", 1, harness.Keyed)
	struck := make(chan struct{}, tries)
	plan := func(key string, _ int) dispatchtest.Fault {
		if key != poison.IdempotencyKey() {
			return dispatchtest.None
		}
		struck <- struct{}{}
		return dispatchtest.HangBefore
	}
	return scenario{number: 14, plan: plan, play: func(t *testing.T, rig *harness.Rig) (kills int) {
		rig.Reconfigure(func(config string) string { // of the first provider, whose only intent is the poison
			return strings.Replace(patient(config), "max_attempts: 50", "max_attempts: 3", 1)
		})
		rig.Step("poison", 1, harness.Keyed)
		for range tries {
			rig.Enqueue(harness.Set, 10)
			victim := rig.Start()
			drainertest.Eventually(t, "the poison strikes", func() bool { return len(struck) > 0 })
			<-struck
			victim.Kill()
			kills++
		}
		rig.Start()
		rig.AwaitRest()
		if unknown := rig.Count(`SELECT count(*) FROM outbox.status WHERE agent_run_id = 'poison' AND status = 'unknown'`); unknown != 1 {
			t.Error("the poison's outcome is not on record as unknown")
		}
		if passed := rig.Count(`SELECT count(*) FROM outbox.status WHERE status = 'completed'`); passed != tries*10 {
			t.Errorf("%d others passed, want %d", passed, tries*10)
		}
		return kills
	}}
}

// The newer replica has a provider and a tool that the older replica does not know yet. The newer one dies at its
// first reply.
func TestAToolThatAReplicaDoesNotKnowWaitsForOneThatDoes(t *testing.T) {
	t.Parallel()
	const each = 5
	rig := harness.New(t, nil)
	rig.Enqueue(harness.Set, each)
	rig.Enqueue(harness.Order, each)
	newer := rig.Start("DRAINER_FAILPOINTS=after_reply=kill")
	<-newer.Ended
	older := rig.Program.Start(olderConfig(t, rig))
	drainertest.Eventually(t, "the dead replica is declared dead", func() bool { return rig.Count(`SELECT count(*) FROM outbox.worker`) == 1 })
	for _, tool := range everyClass {
		rig.Enqueue(tool, each)
	}
	const unknownThere = `tool_name IN ('set/act', 'shop/order') AND status IN ('pending', 'in_progress')`
	drainertest.Eventually(t, "what both know is done, and the rest waits", func() bool {
		return rig.Count(`SELECT count(*) FROM outbox.status WHERE status = 'completed'`) == each*(len(everyClass)-2) &&
			rig.Count(`SELECT count(*) FROM outbox.queue WHERE provider = 'shop/order'`) > 0
	})
	waiting := rig.Count(`SELECT count(*) FROM outbox.status WHERE ` + unknownThere)
	older.Terminate()
	rig.Start()
	rig.AwaitRest()
	fault.Injected(t, 61, waiting)
	rig.Check()
	if waiting != 4*each {
		t.Errorf("%d rows waited for a replica that knows their tool, want all %d", waiting, 4*each)
	}
}

// olderConfig writes a configuration without the provider set and the tool shop/order.
func olderConfig(t *testing.T, rig *harness.Rig) string {
	t.Helper()
	text, err := os.ReadFile(rig.Config)
	if err != nil {
		t.Fatal(err)
	}
	return program.WriteConfig(t, strings.NewReplacer("\n  set:\n", "\n  other:\n", "\n      order:\n", "\n      other:\n").Replace(string(text)))
}
