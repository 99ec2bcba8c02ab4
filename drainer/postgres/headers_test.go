package postgres_test

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestAnAgentsMistakeInItsHeadersHoldsNothingUp(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	for headers, want := range map[string]map[string]string{
		`{"traceparent": "00-1", "n": 1, "no": null}`: {"traceparent": "00-1"},
		`["traceparent"]`: nil,
		`"traceparent"`:   nil,
		`null`:            nil,
	} {
		o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, headers) VALUES ('run', $1, 'sim/act', 'scope', '{}', $2::jsonb)`, headers, headers)
		rows := o.claim(worker, 1)
		if len(rows) != 1 || !maps.Equal(rows[0].Headers, want) {
			t.Errorf("%s: claimed %d rows, the headers are %v, want %v", headers, len(rows), rows[0].Headers, want)
		}
	}
}

func TestTheHeadersOfAResponseAreStored(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	turn := settling(dispatch.Completed, o.claim(worker, 2)...)
	turn.Settle[0].Result.ResponseHeaders = map[string]string{"Request-Id": `a "quoted" one`}
	o.turn(worker, turn)
	stored := stored[json.RawMessage](o, `SELECT response_headers FROM outbox.attempt WHERE response_headers IS NOT NULL`)
	var headers map[string]string
	if err := json.Unmarshal(stored, &headers); err != nil || !maps.Equal(headers, turn.Settle[0].Result.ResponseHeaders) {
		t.Errorf("%s is stored, want %v", stored, turn.Settle[0].Result.ResponseHeaders)
	}
}
