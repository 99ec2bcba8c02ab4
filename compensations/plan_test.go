package compensations

import (
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/jq"
)

var shop = Policies{
	"shop": {
		"order":  {Class: dispatch.KeyIdempotent, Reversal: dispatch.Reversal{Tool: "shop/cancel"}},
		"hold":   {Class: dispatch.KeyIdempotent, Reversal: dispatch.Reversal{Tool: "shop/release", Window: time.Hour}},
		"notify": {Class: dispatch.KeyIdempotent, Reversal: dispatch.Reversal{None: true}},
		"read":   {Class: dispatch.ReadOnly},
		"ship":   {Class: dispatch.KeyIdempotent},
	},
	"backup": {"order": {Class: dispatch.KeyIdempotent, Reversal: dispatch.Reversal{Tool: "backup/cancel"}}},
}

func step(operation string) Step {
	return Step{IntentID: 1, Effect: Effect{Tuple: dispatch.Tuple{ToolName: "shop/" + operation}}}
}

func (s Step) undone(status dispatch.Status, ended bool) Step {
	s.Undo, s.UndoEnded = status, ended
	return s
}

func (s Step) aged(age time.Duration) Step {
	s.Age = age
	return s
}

func (s Step) by(provider string) Step {
	s.ServedBy = provider
	return s
}

func TestWhatFollowsForTheNextStep(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		step   Step
		action Action
		why    failure
		undo   string
	}{
		{name: "it is undone", step: step("order"), action: Undo, undo: "shop/cancel"},
		{name: "one undo at a time", step: step("order").undone(dispatch.StatusPending, false), action: Wait},
		{name: "an undo that is looked up", step: step("order").undone(dispatch.StatusUnknown, false), action: Wait},
		{name: "an undo of which the step was not told", step: step("order").undone(dispatch.StatusCompleted, true), action: Mark},
		{name: "an undo that failed", step: step("order").undone(dispatch.StatusFailed, true), action: Fail, why: undoFailed},
		{name: "an undo that is unknown", step: step("order").undone(dispatch.StatusUnknown, true), action: Fail, why: undoFailed},
		{name: "nothing to undo", step: step("notify"), action: Skip},
		{name: "it only reads", step: step("read"), action: Skip},
		{name: "the configuration does not say how", step: step("ship"), action: Fail, why: noReversal},
		{name: "a tool that another process must know", step: step("gone"), action: Wait, why: unknownTool},
		{name: "within its window", step: step("hold").aged(59 * time.Minute), action: Undo, undo: "shop/release"},
		{name: "past its window", step: step("hold").aged(61 * time.Minute), action: Fail, why: windowExpired},
		{name: "past its window, but its undo is under way", step: step("hold").aged(61*time.Minute).undone("in_progress", false), action: Wait},
		{name: "the fallback that served it undoes it", step: step("order").by("backup"), action: Undo, undo: "backup/cancel"},
	} {
		got := Decide(test.step, shop)
		if got.Action != test.action || got.why != test.why || got.undo != test.undo {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

// The outbox accepts each object that isStorable accepts as an undo's payload, and keeps every number exact. A plain
// object is storable.
func FuzzTheOutboxTakesWhatPassesForStorable(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"charge": "ch_1", "amount": 9007199254740993.10}`, `{"a\u0000": 1}`, `{"a": "\u0000"}`, `{"a": "\ud800"}`, "{\"a\": \"\xff\"}", `{"a": [1e1000, 1E-1000, -0.0]}`, `{"a": 1e1001}`,
		`{"a": 1e99999999999999999999}`, `{"a": ` + strings.Repeat("9", 1000) + `}`, `{"a": ` + strings.Repeat("9", 1001) + `}`, `{"a": "` + strings.Repeat("x", 1<<20-9) + `"}`, `{"a": "` + strings.Repeat("x", 1<<20-200) + `"}`,
		`{"a": "` + strings.Repeat(`\u0001`, 200000) + `"}`, `{"a": "` + strings.Repeat(`\"`, 600000) + `"}`, `{"a": [` + strings.Repeat("1e999,", 1100) + `1]}`,
		`{"a": ` + strings.Repeat("[", 498) + strings.Repeat("]", 498) + `}`, `{"a": ` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`, `{"a": [` + strings.Repeat("{},", 20000) + `{}]}`,
	} {
		f.Add([]byte(seed), 0.0, int64(0))
	}
	for _, number := range []float64{math.Inf(1), math.NaN(), math.MaxFloat64, math.SmallestNonzeroFloat64, 0.1, -1e21} {
		f.Add([]byte(`{}`), number, int64(math.MinInt64))
	}
	db := drainertest.Connect(f, drainertest.Database(f))
	f.Fuzz(func(t *testing.T, text []byte, number float64, factor int64) {
		decoded, err := jq.Decode(text)
		if err != nil {
			return
		}
		power := new(big.Int).Exp(big.NewInt(factor), big.NewInt(40), nil)
		object := map[string]any{"from": decoded, "number": number, "int": int(factor), "power": power}
		if !isStorable(object) {
			if len(text) < 1000 && !strings.ContainsAny(string(text), "\\eE") && !math.IsNaN(number) && !math.IsInf(number, 0) {
				t.Errorf("%q is refused", text)
			}
			return
		}
		payload := jq.Encode(object)
		tx := drainertest.Begin(t, db)
		var stored []byte
		err = tx.QueryRow(t.Context(), `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
			VALUES ('r', 'compensate:1', 'p/o', 's', $1::text::jsonb, 1) RETURNING payload::text`, string(payload)).Scan(&stored)
		if err != nil || !dispatchtest.SameJSON(stored, payload) {
			t.Errorf("%.200q is stored as %.200q, %v", payload, stored, err)
		}
	})
}
