package postgres_test

import (
	"encoding/json"
	"net/url"
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
)

// Rows of one claim are read into one place, and settled as arrays: neither may
// lend one row what another one has. Poolers need a protocol of their own.
func TestRowsThatGoTogetherKeepWhatIsTheirOwn(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "exec"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			o := newOutboxIn(t, mode)
			worker := o.join()
			o.enqueue("run", 0, 1)
			o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, headers)
				VALUES ('run', 'with headers', 'sim/act', 'scope', '{"n": 1}', '{"traceparent": "00-1"}')`)
			o.enqueue("run", 2, 3)

			rows := inOrder(o.claim(worker, 3))
			turn := drainer.Turn{Finish: []int64{rows[0].ClaimID}, Settle: []drainer.Settlement{
				ended(rows[0], dispatch.Ambiguous), ended(rows[1], dispatch.NotSent), ended(rows[2], dispatch.Completed),
			}}
			turn.Settle[0].Result.HTTPStatus, turn.Settle[0].Result.ErrorClass = 502, `http_"502"`
			turn.Settle[2].Result.Response = json.RawMessage(`{"id": "eff, {1}"}`)
			o.turn(worker, turn)
			got := stored[string](o, `SELECT string_agg(concat_ws('|', outcome, status, http_status, error, response), ' ' ORDER BY intent_id) FROM outbox.attempt`)
			if want := `ambiguous|pending|502|http_"502" not_sent|pending completed|completed|{"id": "eff, {1}"}`; got != want {
				t.Errorf("settled as\n%s, want\n%s", got, want)
			}

			again := inOrder(o.claim(worker, 3))
			if len(again) != 2 {
				t.Fatalf("claimed %d rows again, want 2", len(again))
			}
			doubted, unsent := again[0], again[1]
			if doubted.FirstAttemptAt == nil || !doubted.MaybeApplied || doubted.Headers != nil || string(doubted.Payload) != `{"n": 0}` {
				t.Errorf("the row in doubt comes back as %+v", doubted)
			}
			if unsent.FirstAttemptAt != nil || unsent.MaybeApplied || unsent.Headers["traceparent"] != "00-1" || string(unsent.Payload) != `{"n": 1}` {
				t.Errorf("the row that was not sent comes back as %+v", unsent)
			}
		})
	}
}

func newOutboxIn(t *testing.T, mode string) *outbox {
	t.Helper()
	address := drainertest.Database(t)
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	query := parsed.Query()
	query.Set("default_query_exec_mode", mode)
	parsed.RawQuery = query.Encode()
	return openOutbox(t, address, parsed.String())
}

func inOrder(rows []*drainer.Row) []*drainer.Row {
	slices.SortFunc(rows, func(a, b *drainer.Row) int { return int(a.IntentID - b.IntentID) })
	return rows
}
