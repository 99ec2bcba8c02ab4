package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestAnIntentBecomesARow(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	sent := request("step-1", `{"cents": 123456789012345678901234567890.10, "to": "Zoë"}`)
	got := newAdapter(t, spec(to.url, intoInbox)).Dispatch(t.Context(), sent)
	dispatchtest.Expect(t, got, dispatch.Completed, "")
	if got.Replayed {
		t.Error("a new row is called a replay")
	}
	var row [6]string
	if err := to.QueryRow(t.Context(), "SELECT agent_run_id, step_id, tool_name, business_scope, idempotency_key, payload::text FROM inbox.message WHERE headers ? 'traceparent'").
		Scan(&row[0], &row[1], &row[2], &row[3], &row[4], &row[5]); err != nil {
		t.Fatal(err)
	}
	want := [6]string{"run-001", "step-1", "shop/order", "invoice_442", sent.IdempotencyKey, `{"to": "Zoë", "cents": 123456789012345678901234567890.10}`}
	if row != want {
		t.Errorf("got %q, want %q", row, want)
	}
}

func TestARowThatIsThereAlreadyIsRecognisedByItsPayload(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	adapter := newAdapter(t, spec(to.url, intoInbox))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request("step-1", `{"a":1.0,"b":[9007199254740993]}`)), dispatch.Completed, "")
	for payload, same := range map[string]bool{
		`{"a":1.0,"b":[9007199254740993]}`:      true,
		"{\"b\": [9007199254740993],\n\"a\":1}": true,  // the same value, in another form
		`{"a":1.0,"b":[9007199254740992]}`:      false, // the same float64
		`{"a":1.0}`:                             false,
		`null`:                                  false,
	} {
		got := adapter.Dispatch(t.Context(), request("step-1", payload))
		if same {
			dispatchtest.Expect(t, got, dispatch.Completed, "")
		} else {
			dispatchtest.Expect(t, got, dispatch.Rejected, "payload_mismatch")
		}
		if got.Replayed != same {
			t.Errorf("%s: replayed %t", payload, got.Replayed)
		}
	}
	if rows := to.count("inbox.message"); rows != 1 {
		t.Errorf("%d rows", rows)
	}
}

// The same four-tuple comes under another key from another outbox, and after a retry with a new key.
func TestARowOfAnotherKeyIsNotTheIntents(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	adapter := newAdapter(t, spec(to.url, intoInbox))
	first, second := request("step-1", `{}`), request("step-1", `{}`)
	second.IdempotencyKey = second.Tuple.QualifiedKey(dispatch.Qualifiers{Namespace: "another outbox"})
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), first), dispatch.Completed, "")
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), second), dispatch.Rejected, "row_of_another_key")
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), first), dispatch.Completed, "")
}

func TestManyAtOnceLeaveOneRow(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	adapters := []dispatch.Adapter{newAdapter(t, spec(to.url, intoInbox)), newAdapter(t, spec(to.url, intoInbox))}
	for round := range 5 {
		results := make([]dispatch.Result, 50)
		var all sync.WaitGroup
		for i := range results {
			all.Go(func() {
				results[i] = adapters[i%2].Dispatch(t.Context(), request(fmt.Sprint("step-", round), `{"n":1}`))
			})
		}
		all.Wait()
		first := 0
		for _, got := range results {
			dispatchtest.Expect(t, got, dispatch.Completed, "")
			if !got.Replayed {
				first++
			}
		}
		if rows := to.count("inbox.message"); first != 1 || rows != round+1 {
			t.Errorf("round %d: %d of the attempts say that they inserted, and there are %d rows", round, first, rows)
		}
	}
}

func TestAnInsertWaitsForAnotherOfTheSameKey(t *testing.T) {
	t.Parallel()
	other := `INSERT INTO inbox.message (agent_run_id, step_id, tool_name, business_scope, idempotency_key, payload, headers)
		VALUES ('run-001', 'step-1', 'shop/order', 'invoice_442', '` + request("step-1", "").IdempotencyKey + `', '{"n":1}', '{}')`
	for name, test := range map[string]struct {
		end      string
		payload  string
		outcome  dispatch.Outcome
		class    string
		replayed bool
	}{
		"that commits":                      {"COMMIT", `{"n":1}`, dispatch.Completed, "", true},
		"that rolls back":                   {"ROLLBACK", `{"n":1}`, dispatch.Completed, "", false},
		"that commits with another payload": {"COMMIT", `{"n":2}`, dispatch.Rejected, "payload_mismatch", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newRecipient(t)
			conn, err := to.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			drainertest.Exec(t, conn, "BEGIN; "+other)
			result := make(chan dispatch.Result, 1)
			adapter := newAdapter(t, spec(to.url, intoInbox))
			go func() { result <- adapter.Dispatch(t.Context(), request("step-1", test.payload)) }()
			to.awaitWaiting()
			drainertest.Exec(t, conn, test.end)
			got := <-result
			dispatchtest.Expect(t, got, test.outcome, test.class)
			if got.Replayed != test.replayed {
				t.Errorf("replayed %t", got.Replayed)
			}
			if rows := to.count("inbox.message"); rows != 1 {
				t.Errorf("%d rows", rows)
			}
		})
	}
}

func TestAnInboxRefuses(t *testing.T) {
	t.Parallel()
	const trigger = `CREATE FUNCTION shop.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s END $$;
		CREATE %s ON inbox.message %s FOR EACH ROW EXECUTE FUNCTION shop.refuse()`
	for name, test := range map[string]struct {
		setup   string
		outcome dispatch.Outcome
		class   string
	}{
		"by a constraint":              {"ALTER TABLE inbox.message ADD CHECK (payload ? 'total')", dispatch.Rejected, "sqlstate_23514"},
		"by a constraint at commit":    {fmt.Sprintf(trigger, "RAISE 'no'; ", "CONSTRAINT TRIGGER t AFTER INSERT", "DEFERRABLE INITIALLY DEFERRED"), dispatch.Rejected, "sqlstate_p0001"},
		"by another unique index":      {"CREATE UNIQUE INDEX ON inbox.message ((1)); INSERT INTO inbox.message VALUES ('r', 's', 't', 'b', 'k', '1', '{}')", dispatch.Rejected, "sqlstate_23505"},
		"silently":                     {fmt.Sprintf(trigger, "RETURN NULL;", "TRIGGER t BEFORE INSERT", ""), dispatch.Ambiguous, "row_missing"},
		"without the table":            {"DROP TABLE inbox.message", dispatch.Throttled, "sqlstate_42p01"},
		"without a column":             {"ALTER TABLE inbox.message DROP COLUMN headers", dispatch.Throttled, "sqlstate_42703"},
		"without its primary key":      {"ALTER TABLE inbox.message DROP CONSTRAINT message_pkey", dispatch.Throttled, "sqlstate_42p10"},
		"by privileges":                {"ALTER DATABASE %s SET ROLE pg_monitor", dispatch.Throttled, "sqlstate_42501"},
		"while it is read-only":        {"ALTER DATABASE %s SET default_transaction_read_only = on", dispatch.Throttled, "sqlstate_25006"},
		"what it does not get in time": {"ALTER DATABASE %s SET statement_timeout = '50ms'; " + fmt.Sprintf(trigger, "PERFORM pg_sleep(20); RETURN NEW;", "TRIGGER t BEFORE INSERT", ""), dispatch.Throttled, "sqlstate_57014"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newRecipient(t)
			to.execute(forThis(to, test.setup))
			before := to.rows()
			got := newAdapter(t, spec(to.url, intoInbox)).Dispatch(t.Context(), request("step-1", `{}`))
			dispatchtest.Expect(t, got, test.outcome, test.class)
			if after := to.rows(); after != before {
				t.Errorf("%d rows before, %d after", before, after)
			}
		})
	}
}

// TestEveryExecutionModeSendsTheSame covers the modes that poolers need.
func TestEveryExecutionModeSendsTheSame(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			to := newRecipient(t, functionSQL(`BEGIN INSERT INTO shop.deed VALUES (key, payload);
				RETURN jsonb_build_object('outcome', 'completed', 'response', payload); END`))
			const payload = `{"quote": "it's \\ \" $1", "n": 9007199254740993.50}`
			inbox := newAdapter(t, spec(with(to.url, "default_query_exec_mode="+mode), intoInbox))
			call := newAdapter(t, spec(with(to.url, "default_query_exec_mode="+mode), callFunction))
			dispatchtest.Expect(t, inbox.Dispatch(t.Context(), request("step-1", payload)), dispatch.Completed, "")
			dispatchtest.Expect(t, inbox.Dispatch(t.Context(), request("step-1", payload)), dispatch.Completed, "")
			dispatchtest.Expect(t, inbox.Dispatch(t.Context(), request("step-1", `{}`)), dispatch.Rejected, "payload_mismatch")
			got := call.Dispatch(t.Context(), request("step-1", payload))
			dispatchtest.Expect(t, got, dispatch.Completed, "")
			if string(got.Response) != `{"n": 9007199254740993.50, "quote": "it's \\ \" $1"}` {
				t.Errorf("response %s", got.Response)
			}
			if !drainertest.Value[bool](t, to, "SELECT m.payload = $1::text::jsonb AND d.payload = m.payload FROM inbox.message m, shop.deed d", payload) {
				t.Error("stored otherwise than sent")
			}
		})
	}
}

// TestAnyPayloadIsStoredExactlyOrRefused compares the stored value with the server's own conversion of the same
// text.
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

// The driver writes UTF-8, which the server reads in the client's encoding.
func TestARecipientsEncodingChangesNoPayload(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]string{"of the database": "application_name=drainer", "of the URL": "client_encoding=LATIN1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newRecipient(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_encoding = ''LATIN1''', current_database()); END $$`)
			got := newAdapter(t, spec(with(to.url, options), intoInbox)).Dispatch(t.Context(), request("step-1", `{"name": "Müller"}`))
			if got.Outcome != dispatch.Completed {
				t.Fatalf("%+v", got)
			}
			if stored := drainertest.Value[int](t, to, `SELECT count(*) FROM inbox.message WHERE payload->>'name' = U&'M\00fcller'`); stored != 1 {
				t.Errorf("%d messages have the name", stored)
			}
		})
	}
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

// keyMark is in every statement that carries an intent.
const keyMark = "idem_v1_"

const completing = "BEGIN " + deed + ` RETURN '{"outcome":"completed"}'; END`

func TestWithoutAConnectionNothingIsSent(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	mute := dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	elsewhere := func(host string) string { return changed(t, to.url, func(u *url.URL) { u.Host = host }) }
	for name, test := range map[string]struct{ url, class string }{
		"no listener":      {elsewhere(dispatchtest.Address(t)), "dial"},
		"no such host":     {elsewhere("db.invalid"), "dns"},
		"no answer":        {elsewhere(mute), "timeout"},
		"no such user":     {changed(t, to.url, func(u *url.URL) { u.User = url.User("nobody") }), "auth"},
		"no such database": {changed(t, to.url, func(u *url.URL) { u.Path = "/none" }), "sqlstate_3d000"},
		"no TLS there":     {strings.ReplaceAll(to.url, "sslmode=disable", "sslmode=verify-full"), "tls"},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(test.url, intoInbox)
			if test.class == "timeout" {
				s.Timeout = 300 * time.Millisecond
			}
			want := dispatch.NotSent
			if test.class == "auth" {
				want = dispatch.CredentialsRefused
			}
			dispatchtest.Expect(t, newAdapter(t, s).Dispatch(t.Context(), request("step-1", `{}`)), want, test.class)
		})
	}
	t.Run("forbidden", func(t *testing.T) {
		s := spec(elsewhere("db.example.com:5432"), intoInbox)
		asked := ""
		s.Network = dispatch.NewNetwork(func(_ context.Context, _, address string) (net.Conn, error) {
			asked = address
			return nil, dispatch.ErrEgressRefused
		}, nil)
		dispatchtest.Expect(t, newAdapter(t, s).Dispatch(t.Context(), request("step-1", `{}`)), dispatch.NotSent, "egress_refused")
		if asked != "db.example.com:5432" {
			t.Errorf("the dialer was asked for %q: the name is its to resolve", asked)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		dispatchtest.Expect(t, newAdapter(t, spec(to.url, intoInbox)).Dispatch(ctx, request("step-1", `{}`)), dispatch.NotSent, "cancelled")
	})
	if rows := to.count("inbox.message"); rows != 0 {
		t.Errorf("%d rows", rows)
	}
}

// TestALostAnswerIsInDoubtOnlyFromTheCommitOn cuts a working connection at a statement that contains a mark.
func TestALostAnswerIsInDoubtOnlyFromTheCommitOn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool    string
		on      func(*session, []byte) bool
		outcome dispatch.Outcome
		class   string
		effects int
	}{
		"insert, its answer lost":      {intoInbox, hangUpAfter(keyMark), dispatch.Ambiguous, "reset", 1},
		"insert, itself lost":          {intoInbox, hangUpBefore(keyMark), dispatch.Ambiguous, "reset", 0},
		"insert, no answer":            {intoInbox, swallow(keyMark), dispatch.Ambiguous, "timeout", 1},
		"insert, babble":               {intoInbox, babble(keyMark), dispatch.Ambiguous, "protocol", -1},
		"call, its answer lost":        {callFunction, hangUpAfter(keyMark), dispatch.Throttled, "reset", 0},
		"call, itself lost":            {callFunction, hangUpBefore(keyMark), dispatch.Throttled, "reset", 0},
		"call, no answer":              {callFunction, swallow(keyMark), dispatch.Throttled, "timeout", 0},
		"call, babble":                 {callFunction, babble(keyMark), dispatch.Throttled, "protocol", 0},
		"begin, itself lost":           {callFunction, hangUpBefore("begin"), dispatch.NotSent, "reset", 0},
		"commit, its answer lost":      {callFunction, hangUpAfter("commit"), dispatch.Ambiguous, "reset", 1},
		"commit, itself lost":          {callFunction, hangUpBefore("commit"), dispatch.Ambiguous, "reset", 0},
		"commit, no answer":            {callFunction, swallow("commit"), dispatch.Ambiguous, "timeout", 1},
		"commit, babble":               {callFunction, babble("commit"), dispatch.Ambiguous, "reset", -1},
		"function waits for its reply": {callFunction, nil, dispatch.Completed, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newRecipient(t)
			to.function(completing)
			through := newProxy(t, to.url)
			adapter := newAdapter(t, spec(through.url, test.tool))
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request("warm", `{}`)), dispatch.Completed, "")
			through.intercept(test.on)
			ctx := t.Context()
			if test.class == "timeout" {
				brief, cancel := context.WithTimeout(ctx, 3*time.Second) // by then the server has executed it
				defer cancel()
				ctx = brief
			}
			dispatchtest.Expect(t, adapter.Dispatch(ctx, request("step-1", `{}`)), test.outcome, test.class)
			through.intercept(nil)
			to.awaitIdle()
			if effects := to.count("inbox.message") + to.count("shop.deed") - 1; test.effects >= 0 && effects != test.effects {
				t.Errorf("%d effects, want %d", effects, test.effects)
			}
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request("step-2", `{}`)), dispatch.Completed, "")
		})
	}
}

// TestNoOutcomeContradictsTheDatabase cuts connections after any number of bytes, and compares the outcomes with
// the rows in the database.
func TestNoOutcomeContradictsTheDatabase(t *testing.T) {
	t.Parallel()
	const inInbox, inShop = "SELECT step_id FROM inbox.message", "SELECT payload->>'step' FROM shop.deed"
	for _, test := range []struct{ tool, effects, mode string }{
		{intoInbox, inInbox, "cache_statement"},
		{intoInbox, inInbox, "exec"},
		{intoInbox, inInbox, "simple_protocol"},
		{callFunction, inShop, "cache_statement"},
		{callFunction, inShop, "simple_protocol"},
	} {
		t.Run(test.tool+", "+test.mode, func(t *testing.T) {
			t.Parallel()
			tool, effects := test.tool, test.effects
			to := newRecipient(t)
			to.function(completing)
			through := newProxy(t, with(to.url, "default_query_exec_mode="+test.mode))
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			through.limited(func() int64 { return 1 + random.Int64N(4000) })
			adapters := []dispatch.Adapter{newAdapter(t, spec(through.url, tool)), newAdapter(t, spec(through.url, tool))}

			const intents, workers = 160, 8
			results := make([]dispatch.Result, intents)
			var all sync.WaitGroup
			for worker := range workers {
				all.Go(func() {
					for i := worker; i < intents; i += workers {
						step := fmt.Sprint("step-", i)
						results[i] = adapters[worker%2].Dispatch(t.Context(), request(step, `{"step":"`+step+`"}`))
					}
				})
			}
			all.Wait()
			to.awaitIdle()
			times := to.times(effects)
			seen := map[dispatch.Outcome]int{}
			for i, got := range results {
				seen[got.Outcome]++
				n := times[fmt.Sprint("step-", i)]
				if n > 1 || (got.Outcome == dispatch.Completed) != (n == 1) && got.Outcome != dispatch.Ambiguous {
					t.Errorf("%s %q, and its effect is there %d times", got.Outcome, got.ErrorClass, n)
				}
			}
			t.Log(seen)
			for _, outcome := range []dispatch.Outcome{dispatch.Completed, dispatch.NotSent} {
				if seen[outcome] == 0 {
					t.Errorf("nothing was %s: the cuts prove nothing", outcome)
				}
			}
			if seen[dispatch.Ambiguous]+seen[dispatch.Throttled] == 0 {
				t.Error("nothing was cut in the middle: the cuts prove nothing")
			}
		})
	}
}
