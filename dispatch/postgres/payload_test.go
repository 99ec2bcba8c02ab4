package postgres_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
)

// TestAnyPayloadIsStoredExactlyOrRefused compares with what the server itself
// makes of the same text.
func TestAnyPayloadIsStoredExactlyOrRefused(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	to.function("BEGIN " + deed + ` RETURN jsonb_build_object('outcome', 'completed', 'response', payload); END`)
	inbox, call := newAdapter(t, spec(to.url, intoInbox)), newAdapter(t, spec(to.url, callFunction))
	step := 0
	rapid.Check(t, func(t *rapid.T) {
		step++
		payload := document(3).Draw(t, "payload")
		sent := request(fmt.Sprint("step-", step), payload)
		into, called := inbox.Dispatch(to.t.Context(), sent), call.Dispatch(to.t.Context(), sent)
		var want, got string
		if err := to.QueryRow(to.t.Context(), "SELECT $1::text::jsonb::text", payload).Scan(&want); err != nil {
			for _, refused := range []dispatch.Result{into, called} {
				if refused.Outcome != dispatch.Rejected || !strings.HasPrefix(refused.ErrorClass, "sqlstate_22") || refused.Problem != nil {
					t.Fatalf("%s: %+v, but the server says %v", payload, refused, err)
				}
			}
			return
		}
		if into.Outcome != dispatch.Completed || called.Outcome != dispatch.Completed {
			t.Fatalf("%s: %+v, %+v", payload, into, called)
		}
		if err := to.QueryRow(to.t.Context(), "SELECT payload::text FROM inbox.message WHERE step_id = $1", sent.Tuple.StepID).Scan(&got); err != nil || got != want {
			t.Fatalf("stored %s, want %s (%v)", got, want, err)
		}
		if string(called.Response) != want {
			t.Fatalf("answered %s, want %s", called.Response, want)
		}
	})
}

func document(depth int) *rapid.Generator[string] {
	scalars := rapid.OneOf(
		rapid.SampledFrom([]string{"null", "true", `""`, "1e400", "-0", "0.10", "9007199254740993", `"\u0000"`, `"\ud800"`, `"\ud83d\ude00"`, `"\\u0000"`, `"'$1"`}),
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,30})?`),
		rapid.Map(rapid.String(), quoted),
	)
	if depth == 0 {
		return scalars
	}
	return rapid.OneOf(
		scalars,
		rapid.Map(rapid.SliceOfN(rapid.Deferred(func() *rapid.Generator[string] { return document(depth - 1) }), 0, 4),
			func(parts []string) string { return "[" + strings.Join(parts, ",") + "]" }),
		rapid.Map(rapid.MapOfN(rapid.Map(rapid.String(), quoted), rapid.Deferred(func() *rapid.Generator[string] { return document(depth - 1) }), 0, 4),
			func(fields map[string]string) string {
				var parts []string
				for name, value := range fields {
					parts = append(parts, name+": "+value)
				}
				return "{ " + strings.Join(parts, ", ") + " }"
			}),
	)
}

func quoted(text string) string {
	written, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(written)
}
