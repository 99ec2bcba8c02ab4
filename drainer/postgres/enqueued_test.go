package postgres_test

import (
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer"
)

// What an agent commits is what is dispatched, under the key that it was told:
// each number exact, of a name that comes twice the last value, of the headers
// what is text. What cannot be kept is refused when it is enqueued, in words
// that repeat none of it.
func FuzzAClaimBringsWhatWasEnqueued(f *testing.F) {
	for _, seed := range []struct{ payload, headers string }{
		{`{"n": 9007199254740993, "m": 123456789012345678901234567890.10, "z": -0.0}`, `{"traceparent": "00-ab", "n": 1, "o": {}, "a": [""], "x": null}`},
		{`{"a": 1, "a": 9007199254740993}`, `{"TraceParent": "one", "traceparent": "other"}`},
		{`"\ud83d\ude00 \u00e9 \\u0000"`, `"text"`},
		{`"\u0000"`, `{"a": "\u0000"}`},
		{`"\ud800"`, `[]`},
		{"\"\xff\"", `null`},
		{"\"\x00\"", ``},
		{`{`, `{`},
		{`1e400`, `{}`},
		{`1e131071`, `{}`},
		{`1e131072`, `{}`},
		{`1e-16383`, `{}`},
		{`1e99999999999999999999`, `{}`},
		{"[" + strings.Repeat("1e131071,", 8) + "1]", `{}`},
		{strings.Repeat("[", 2000) + strings.Repeat("]", 2000), `{}`},
		{strings.Repeat("[", 100000), `{}`},
		{`"` + strings.Repeat("secret", 200000) + `"`, `{}`},
		{`null`, `{}`},
		{`{}`, `{"baggage": "` + strings.Repeat("x", 70000) + `"}`},
		{`{"$ref": "#", "'; --": "$1"}`, `{"a\r\nb": "c\r\nd"}`},
	} {
		f.Add("run", "step", "sim/act", []byte(seed.payload), []byte(seed.headers))
	}
	for _, part := range []string{"", "/", "/x", "a/b/c", "\r\n", "\x00", "\xff", "é", "compensate:1", strings.Repeat("x", 255), strings.Repeat("é", 150)} {
		f.Add(part, "step", "sim/act", []byte("{}"), []byte("{}"))
		f.Add("run", part, part, []byte("{}"), []byte("{}"))
	}
	o := newOutbox(f)
	worker := o.join()
	steps := 0
	f.Fuzz(func(t *testing.T, run, step, tool string, payload, headers []byte) {
		steps++
		tuple := dispatch.Tuple{AgentRunID: run, StepID: step, ToolName: tool, BusinessScope: strconv.Itoa(steps)}
		var key string
		err := o.db.QueryRow(t.Context(), "SELECT idempotency_key FROM outbox.enqueue($1, $2, $3, $4, $5::text::jsonb, NULL, $6::text::jsonb)",
			run, step, tool, tuple.BusinessScope, string(payload), string(headers)).Scan(&key)
		if err != nil {
			checkRefusal(t, err, tuple, payload, headers)
			return
		}
		if err := tuple.Validate(); err != nil || key != tuple.IdempotencyKey() {
			t.Fatalf("%q is enqueued under the key %s, but %v", tuple, key, err)
		}
		provider := tuple.Provider()
		reply, err := o.Turn(t.Context(), worker, drainer.Turn{Claims: []drainer.Claim{{Provider: provider, Server: provider, Limit: 2}}})
		if err != nil || len(reply.Claimed[0].Rows) != 1 {
			t.Fatalf("claimed %+v, %v", reply, err)
		}
		row := reply.Claimed[0].Rows[0]
		if row.Tuple != tuple || !dispatchtest.SameJSON(row.Payload, payload) || !maps.Equal(row.Headers, textsIn(headers)) {
			t.Errorf("%q with %.200q and %.200q is dispatched as %q with %.200q and %.200q", tuple, payload, headers, row.Tuple, row.Payload, row.Headers)
		}
		if _, err := o.Turn(t.Context(), worker, settling(dispatch.Completed, row)); err != nil {
			t.Fatal(err)
		}
	})
}

func checkRefusal(t *testing.T, err error, tuple dispatch.Tuple, payload, headers []byte) {
	t.Helper()
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "OB003" && !strings.HasPrefix(refused.Code, "22") && !strings.HasPrefix(refused.Code, "54") {
		t.Fatalf("%q with %.200q and %.200q: %v", tuple, payload, headers, err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the refusal repeats the payload: %.300v", err)
	}
	if tuple.Validate() == nil && !strings.HasPrefix(tuple.StepID, "compensate:") && isPlain(payload) && isPlain(headers) {
		t.Errorf("%q with %.200q and %.200q is refused: %v", tuple, payload, headers, err)
	}
}

// isPlain holds for what jsonb takes whoever reads it: no escapes, no numbers
// that grow, not long and not deep.
func isPlain(text []byte) bool {
	return json.Valid(text) && utf8.Valid(text) && len(text) < 1000 && !suspicious.Match(text)
}

var suspicious = regexp.MustCompile(`\\u|[eE][+-]?[0-9]{4}`)

// textsIn are the members of an object that are text.
func textsIn(object []byte) map[string]string {
	var members map[string]any
	if json.Unmarshal(object, &members) != nil {
		return nil
	}
	texts := map[string]string{}
	for name, value := range members {
		if text, is := value.(string); is {
			texts[name] = text
		}
	}
	return texts
}
