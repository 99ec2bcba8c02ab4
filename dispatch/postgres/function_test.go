package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// deed is the effect of the functions here.
const deed = "INSERT INTO shop.deed VALUES (key, payload); "

func TestAFunctionsAnswerIsTheResult(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	to.function(`BEGIN ` + deed + ` RETURN jsonb_build_object('outcome', 'completed', 'ref', 9007199254740993, 'replayed', true,
		'response', jsonb_build_object('by', agent_run_id || step_id || tool_name || business_scope, 'n', payload->'n')); END`)
	sent := request("step-1", `{"n": 1.10}`)
	got := newAdapter(t, spec(to.url, callFunction)).Dispatch(t.Context(), sent)
	dispatchtest.Expect(t, got, dispatch.Completed, "")
	if got.ProviderRef != "9007199254740993" || !got.Replayed {
		t.Errorf("got %+v", got)
	}
	if string(got.Response) != `{"n": 1.10, "by": "run-001step-1shop/orderinvoice_442"}` {
		t.Errorf("response %s", got.Response)
	}
	if key := drainertest.Value[string](t, to, "SELECT key FROM shop.deed"); key != sent.IdempotencyKey {
		t.Errorf("key %q", key)
	}
}

func TestWhatAFunctionDidIsKeptOnlyIfItCompleted(t *testing.T) {
	t.Parallel()
	returning := func(answer string) string { return "BEGIN " + deed + " RETURN " + answer + "; END" }
	raising := func(state string) string {
		return "BEGIN " + deed + " RAISE 'no' USING ERRCODE = '" + state + "'; END"
	}
	for name, test := range map[string]struct {
		body    string
		class   dispatch.Class
		outcome dispatch.Outcome
		error   string
	}{
		"completed":                {returning(`'{"outcome":"completed"}'`), "", dispatch.Completed, ""},
		"rejected":                 {returning(`'{"outcome":"rejected","response":{"why":"sold out"}}'`), "", dispatch.Rejected, "function_rejected"},
		"throttled":                {returning(`'{"outcome":"throttled"}'`), "", dispatch.Throttled, "function_throttled"},
		"in flight":                {returning(`'{"outcome":"in_flight"}'`), "", dispatch.InFlight, "function_in_flight"},
		"in flight, sent once":     {returning(`'{"outcome":"in_flight"}'`), dispatch.NonIdempotent, dispatch.Throttled, "protocol"},
		"absent of an effect":      {returning(`'{"outcome":"absent"}'`), "", dispatch.Throttled, "protocol"},
		"ambiguous":                {returning(`'{"outcome":"ambiguous"}'`), "", dispatch.Throttled, "protocol"},
		"lost":                     {returning(`'{"outcome":"lost"}'`), "", dispatch.Throttled, "protocol"},
		"no outcome":               {returning(`'{}'`), "", dispatch.Throttled, "protocol"},
		"another field":            {returning(`'{"outcome":"completed","reff":1}'`), "", dispatch.Throttled, "protocol"},
		"a reference that is none": {returning(`'{"outcome":"completed","ref":[1]}'`), "", dispatch.Throttled, "protocol"},
		"no object":                {returning(`'"completed"'`), "", dispatch.Throttled, "protocol"},
		"null":                     {returning(`NULL`), "", dispatch.Throttled, "protocol"},
		"forgotten":                {"BEGIN " + deed + " END", "", dispatch.Throttled, "sqlstate_2f005"},
		"raised":                   {"BEGIN " + deed + " RAISE 'sold out'; END", "", dispatch.Rejected, "sqlstate_p0001"},
		"raised by its own code":   {raising("SHOP1"), "", dispatch.Rejected, "sqlstate_shop1"},
		"data":                     {"BEGIN " + deed + " RETURN 1/0; END", "", dispatch.Rejected, "sqlstate_22012"},
		"a constraint":             {raising("23514"), "", dispatch.Rejected, "sqlstate_23514"},
		"serialization":            {raising("40001"), "", dispatch.Throttled, "sqlstate_40001"},
		"deadlock":                 {raising("40P01"), "", dispatch.Throttled, "sqlstate_40p01"},
		"lock not available":       {raising("55P03"), "", dispatch.Throttled, "sqlstate_55p03"},
		"no room":                  {raising("53100"), "", dispatch.Throttled, "sqlstate_53100"},
		"connection":               {raising("08006"), "", dispatch.Throttled, "sqlstate_08006"},
		"internal":                 {raising("XX000"), "", dispatch.Throttled, "sqlstate_xx000"},
		"no such table":            {"BEGIN " + deed + " DELETE FROM shop.none; END", "", dispatch.Throttled, "sqlstate_42p01"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newRecipient(t)
			to.function(test.body)
			s := spec(to.url, callFunction)
			if test.class != "" {
				s.Tools["order"] = dispatch.ToolSpec{Class: test.class, Settings: dispatchtest.Block(callFunction)}
			}
			got := newAdapter(t, s).Dispatch(t.Context(), request("step-1", `{}`))
			dispatchtest.Expect(t, got, test.outcome, test.error)
			kept := 0
			if test.outcome == dispatch.Completed {
				kept = 1
			}
			if deeds := to.count("shop.deed"); deeds != kept {
				t.Errorf("%d deeds, want %d", deeds, kept)
			}
		})
	}
}

func TestAFunctionOfAnotherTypeDoesNotRun(t *testing.T) {
	t.Parallel()
	const signature = "CREATE FUNCTION shop.act(payload jsonb, key text, a text, b text, c text, d text) RETURNS "
	const body = " LANGUAGE sql AS $$ INSERT INTO shop.deed VALUES (key, payload) "
	for name, test := range map[string]struct{ create, class string }{
		"void":          {signature + "void" + body + "$$", "sqlstate_42846"},
		"integer":       {signature + "integer" + body + "RETURNING 1 $$", "sqlstate_42846"},
		"a row":         {signature + "shop.deed" + body + "RETURNING * $$", "sqlstate_42846"},
		"no rows":       {signature + "SETOF jsonb" + body + "; SELECT '{}'::jsonb WHERE false $$", "protocol"},
		"many rows":     {signature + "SETOF jsonb" + body + `; SELECT '{"outcome":"completed"}'::jsonb FROM generate_series(1, 2) $$`, "protocol"},
		"not there":     {"SELECT 1", "sqlstate_42883"},
		"fewer in":      {"CREATE FUNCTION shop.act(payload jsonb) RETURNS jsonb" + " LANGUAGE sql AS 'SELECT payload'", "sqlstate_42883"},
		"not permitted": {"ALTER DATABASE %s SET ROLE pg_monitor", "sqlstate_42501"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newRecipient(t)
			to.execute(forThis(to, test.create))
			got := newAdapter(t, spec(to.url, callFunction)).Dispatch(t.Context(), request("step-1", `{}`))
			dispatchtest.Expect(t, got, dispatch.Throttled, test.class)
			if ofFunction := strings.HasPrefix(test.class, "sqlstate_42"); got.OfOperation != ofFunction {
				t.Errorf("it speaks for this function alone: %t, want %t", got.OfOperation, ofFunction)
			}
			if deeds := to.count("shop.deed"); deeds != 0 {
				t.Errorf("%d deeds", deeds)
			}
		})
	}
}

func TestAFunctionsWordsAreNotCut(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	adapter := newAdapter(t, spec(to.url, callFunction))
	for _, body := range []string{"BEGIN RAISE '%%', '%s'; END", `BEGIN RETURN '{"outcome":"completed","ref":"%s"}'; END`} {
		dispatchtest.ExpectWhole(t, func(words string) dispatch.Result {
			to.function(fmt.Sprintf(body, words))
			return adapter.Dispatch(t.Context(), request("step-1", `{}`))
		})
	}
}

func TestWhatAFunctionRaisesIsKeptAsItsOwnWords(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	adapter := newAdapter(t, spec(to.url, callFunction))
	to.function("BEGIN RAISE 'sold out'; END")
	got := adapter.Dispatch(t.Context(), request("step-1", `{}`))
	if got.Problem == nil || got.Problem.Title != "sold out" {
		t.Errorf("got %+v", got.Problem)
	}
	to.function("BEGIN PERFORM (payload->>'card')::integer; END")
	got = adapter.Dispatch(t.Context(), request("step-2", `{"card":"canary"}`))
	dispatchtest.Expect(t, got, dispatch.Rejected, "sqlstate_22p02")
	if got.Problem != nil {
		t.Errorf("the server's words may quote the payload: %+v", got.Problem)
	}
}

func TestAFunctionAnswersLookups(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	s := spec(to.url, callFunction)
	s.Tools["order"] = dispatch.ToolSpec{Class: dispatch.ReadOnly, AnswersLookups: true, Settings: dispatchtest.Block(callFunction)}
	adapter := newAdapter(t, s)
	to.function(`BEGIN IF EXISTS (SELECT FROM shop.deed d WHERE d.key = act.key) THEN RETURN '{"outcome":"completed","ref":"7"}'; END IF;
		RETURN '{"outcome":"absent"}'; END`)
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request("step-1", `{}`)), dispatch.Absent, "function_absent")
	to.execute("INSERT INTO shop.deed VALUES ($1, '{}')", request("step-1", "").IdempotencyKey)
	got := adapter.Dispatch(t.Context(), request("step-1", `{}`))
	dispatchtest.Expect(t, got, dispatch.Completed, "")
	if got.ProviderRef != "7" {
		t.Errorf("reference %q", got.ProviderRef)
	}
	to.function(completing)
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request("step-2", `{}`)), dispatch.Throttled, "sqlstate_25006")
}

func TestAConstraintAtCommitUndoesAFunction(t *testing.T) {
	t.Parallel()
	for state, outcome := range map[string]dispatch.Outcome{"23514": dispatch.Rejected, "40001": dispatch.Throttled} {
		to := newRecipient(t)
		to.execute(fmt.Sprintf(`CREATE FUNCTION shop.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = '%s'; END $$;
			CREATE CONSTRAINT TRIGGER t AFTER INSERT ON shop.deed DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION shop.refuse()`, state))
		to.function(completing)
		got := newAdapter(t, spec(to.url, callFunction)).Dispatch(t.Context(), request("step-1", `{}`))
		dispatchtest.Expect(t, got, outcome, "sqlstate_"+state)
		if deeds := to.count("shop.deed"); deeds != 0 {
			t.Errorf("%d deeds", deeds)
		}
	}
}

// TestAStatementThatIsCutShortHasNoEffect ends a statement while it waits for a lock. The function waits after its
// effect.
func TestAStatementThatIsCutShortHasNoEffect(t *testing.T) {
	t.Parallel()
	terminate := func(to recipient, pid int, _ context.CancelFunc) { to.execute("SELECT pg_terminate_backend($1)", pid) }
	cancel := func(to recipient, pid int, _ context.CancelFunc) { to.execute("SELECT pg_cancel_backend($1)", pid) }
	giveUp := func(_ recipient, _ int, cancel context.CancelFunc) { cancel() }
	const lockDeed, lockInbox = "SELECT pg_advisory_xact_lock(442)", "LOCK inbox.message"
	for name, test := range map[string]struct {
		tool, lock, effects string
		cut                 func(to recipient, pid int, cancel context.CancelFunc)
		outcome             dispatch.Outcome
		class               string
	}{
		"function, terminated": {callFunction, lockDeed, "shop.deed", terminate, dispatch.Throttled, "sqlstate_57p01"},
		"function, cancelled":  {callFunction, lockDeed, "shop.deed", cancel, dispatch.Throttled, "sqlstate_57014"},
		"function, given up":   {callFunction, lockDeed, "shop.deed", giveUp, dispatch.Throttled, "cancelled"},
		"insert, terminated":   {intoInbox, lockInbox, "inbox.message", terminate, dispatch.Ambiguous, "sqlstate_57p01"},
		"insert, cancelled":    {intoInbox, lockInbox, "inbox.message", cancel, dispatch.Throttled, "sqlstate_57014"},
		"insert, given up":     {intoInbox, lockInbox, "inbox.message", giveUp, dispatch.Ambiguous, "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newRecipient(t)
			to.function("BEGIN " + deed + ` PERFORM pg_advisory_xact_lock(442); RETURN '{"outcome":"completed"}'; END`)
			adapter := newAdapter(t, spec(to.url, test.tool))
			got, release := to.cutShort(adapter, test.lock, func(pid int, cancel context.CancelFunc) { test.cut(to, pid, cancel) })
			dispatchtest.Expect(t, got, test.outcome, test.class)
			release()
			if effects := to.count(test.effects); effects != 0 {
				t.Errorf("%d effects", effects)
			}
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request("step-1", `{}`)), dispatch.Completed, "")
		})
	}
}
