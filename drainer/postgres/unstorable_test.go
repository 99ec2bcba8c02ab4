package postgres_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestAnUnstorableResponseIsDroppedAndItsNeighboursAreNot(t *testing.T) {
	t.Parallel()
	for name, response := range map[string]string{
		"NUL": `{"a":"\u0000"}`, "lone surrogate": `{"a":"\ud800"}`, "no JSON": `{`, "not UTF-8": "\"\xff\"", "raw NUL": "\"\x00\"",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			worker := o.join()
			o.enqueue("run", 0, 4)
			rows := o.claim(worker, 3)
			turn := settling(dispatch.Completed, rows...)
			for i := range turn.Settle {
				turn.Settle[i].Result.Response = json.RawMessage(`{"id":"ok"}`)
			}
			turn.Settle[1].Result.Response = json.RawMessage(response)
			turn.Claims = claimOf(1).Claims
			reply := o.turn(worker, turn)
			if len(reply.Refused) != 0 || len(reply.Claimed[0].Rows) != 1 {
				t.Errorf("refused %v, claimed %v; want none and the fourth", reply.Refused, ids(reply.Claimed[0].Rows))
			}
			o.assertStatuses(map[string]int{"completed": 3, "in_progress": 1})
			if kept := stored[int](o, `SELECT count(*) FROM outbox.status WHERE response = '{"id":"ok"}'`); kept != 2 {
				t.Errorf("%d responses are kept, want the 2 good ones", kept)
			}
			if class := stored[string](o, `SELECT last_error FROM outbox.status WHERE intent_id = $1`, rows[1].IntentID); class != "unstorable_response" {
				t.Errorf("error class %q", class)
			}
		})
	}
}

// Whatever an adapter hands on of a provider's answer, the outcome is stored,
// and so is that of its neighbour.
func FuzzNothingThatAProviderSaysStopsASettlement(f *testing.F) {
	for _, seed := range []string{
		"", "plain", "\x00", "\xff", "\u2028", `{"a":1}`, `{"a":"\u0000"}`, `{"a":"\ud800"}`, `{"a":1}{`, `[1e131072]`, `[1e99999999999]`, "NaN",
		"{}; DROP TABLE outbox.attempt", "{\"a\", NULL}", `\`, strings.Repeat("[", 50000), strings.Repeat("x", 300),
	} {
		f.Add([]byte(seed), seed, seed, 200, int64(0))
		f.Add([]byte(seed), "ref", "", 1<<33, int64(-1))
		f.Add([]byte("{}"), "", seed, -1, int64(1<<63-1))
	}
	shared := newOutbox(f)
	worker := shared.join()
	steps := 0
	f.Fuzz(func(t *testing.T, response []byte, reference, words string, status int, retryAfter int64) {
		o := *shared
		o.t = t
		steps++
		o.enqueue("run-"+strconv.Itoa(steps), 0, 2)
		reply, err := o.Turn(t.Context(), worker, claimOf(2))
		if err != nil || len(reply.Claimed[0].Rows) != 2 {
			t.Fatalf("claimed %+v, %v", reply, err)
		}
		rows := reply.Claimed[0].Rows
		turn := settling(dispatch.Completed, rows...)
		said := &turn.Settle[0].Result
		said.Response, said.ProviderRef, said.HTTPStatus, said.RetryAfter = response, reference, status, time.Duration(retryAfter)
		said.ErrorClass, said.ResponseHeaders = words, map[string]string{words: words}
		said.Problem = &dispatch.Problem{Type: words, Title: words, Detail: words}
		turn.Settle[1].Result.Response = json.RawMessage(`{"id":"ok"}`)
		if reply, err = o.Turn(t.Context(), worker, turn); err != nil || len(reply.Refused) > 0 {
			t.Fatalf("refused %v, %v", reply.Refused, err)
		}
		const settled = `SELECT count(*) FROM outbox.status WHERE intent_id = ANY ($1) AND status = 'completed'`
		if count := stored[int](&o, settled, ids(rows)); count != 2 {
			t.Errorf("%d of 2 are completed", count)
		}
		if kept := stored[string](&o, `SELECT response ->> 'id' FROM outbox.status WHERE intent_id = $1`, rows[1].IntentID); kept != "ok" {
			t.Errorf("of the neighbour's response %q is kept", kept)
		}
	})
}
