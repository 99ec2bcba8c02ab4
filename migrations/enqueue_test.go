package migrations_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
)

const (
	callEnqueue = "SELECT intent_id, created, status, idempotency_key FROM outbox.enqueue($1, $2, $3, $4, $5)"
	plainInsert = `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING`
)

// charge is the documented intent, with a payload.
func charge(payload string) []any {
	return []any{"run-001", "step-1", "stripe/create_charge", "invoice_442", payload}
}

type enqueued struct {
	IntentID       int64
	Created        bool
	Status         string
	IdempotencyKey string
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func enqueue(t *testing.T, db querier, args ...any) (enqueued, error) {
	rows, _ := db.Query(t.Context(), callEnqueue, args...)
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[enqueued])
}

func TestTheKeyIsComputedAsInGo(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../dispatch/testdata/idempotency_keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Run        string `json:"agent_run_id"`
		Step       string `json:"step_id"`
		Tool       string `json:"tool_name"`
		Scope      string `json:"business_scope"`
		Namespace  string
		Tenant     string
		Generation int
		Key        string `json:"idempotency_key"`
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	pool := drainertest.Connect(t, drainertest.Database(t))
	for _, v := range vectors {
		var got string
		err := pool.QueryRow(t.Context(), "SELECT outbox.idempotency_key($1, $2, $3, $4, $5, $6, $7)",
			v.Run, v.Step, v.Tool, v.Scope, v.Namespace, v.Tenant, v.Generation).Scan(&got)
		if err != nil || got != v.Key {
			t.Errorf("%+v has the key %s (%v)", v, got, err)
		}
	}
}

func TestTheKeyOfAnyTupleIsComputedAsInGo(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	anything := rapid.Rune().Filter(func(r rune) bool { return r != 0 })
	part := rapid.StringOfN(rapid.OneOf(rapid.RuneFrom([]rune("1:,/é")), anything), 1, -1, dispatch.MaxPartBytes)
	rapid.Check(t, func(rt *rapid.T) {
		tuple := dispatch.Tuple{
			AgentRunID: part.Draw(rt, "run"), StepID: part.Draw(rt, "step"),
			ToolName: part.Draw(rt, "tool"), BusinessScope: part.Draw(rt, "scope"),
		}
		own := dispatch.Qualifiers{Namespace: part.Draw(rt, "namespace"), Tenant: part.Draw(rt, "tenant"), Generation: rapid.IntRange(0, 1<<31-1).Draw(rt, "generation")}
		var unqualified, qualified string
		err := pool.QueryRow(t.Context(), "SELECT outbox.idempotency_key($1, $2, $3, $4), outbox.idempotency_key($1, $2, $3, $4, $5, $6, $7)",
			tuple.AgentRunID, tuple.StepID, tuple.ToolName, tuple.BusinessScope, own.Namespace, own.Tenant, own.Generation).Scan(&unqualified, &qualified)
		if err != nil || unqualified != tuple.IdempotencyKey() || qualified != tuple.QualifiedKey(own) {
			rt.Fatalf("%q has the keys %s and with %+v %s in SQL (%v), %s and %s in Go", tuple, unqualified, own, qualified, err, tuple.IdempotencyKey(), tuple.QualifiedKey(own))
		}
	})
}

func TestEnqueueCreatesOnceAndTellsOfTheDuplicate(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))

	first, err := enqueue(t, pool, charge(`{"cents": 1000, "currency": "eur"}`)...)
	if err != nil {
		t.Fatal(err)
	}
	want := enqueued{first.IntentID, true, "pending", "idem_v1_d1aced049657b25a78f3041749a08d78"}
	if first != want {
		t.Errorf("first: %+v, want %+v", first, want)
	}

	again, err := enqueue(t, pool, charge(`{"currency": "eur", "cents": 1000.0}`)...)
	want.Created = false
	if err != nil || again != want {
		t.Errorf("again: %+v, want %+v (%v)", again, want, err)
	}
	if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM outbox.duplicate WHERE same_payload AND intent_id = $1", first.IntentID); n != 1 {
		t.Errorf("%d duplicates were recorded, want 1", n)
	}
	drainertest.AssertInvariant(t, pool)
}

func TestEnqueueQueuesForItsProviderWhenDue(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, pool, "SELECT * FROM outbox.enqueue('r', '1', 'stripe/refund', 's', '{}')")
	drainertest.Exec(t, pool, "SELECT * FROM outbox.enqueue('r', '2', 'ping', 's', '{}', now() + interval '1 hour', '{\"traceparent\": \"00\"}')")

	if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM outbox.queue WHERE provider = 'stripe' AND next_attempt_at <= clock_timestamp()"); n != 1 {
		t.Error("the first is not due at its provider")
	}
	if n := drainertest.Value[int](t, pool, `SELECT count(*) FROM outbox.queue q JOIN outbox.intent i ON i.id = q.intent_id
		WHERE q.provider = 'ping' AND q.next_attempt_at = i.not_before AND i.headers ? 'traceparent'`); n != 1 {
		t.Error("the second does not wait for not_before")
	}
}

func TestAKeyCollisionIsRefusedAndStillCounted(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{"enqueue": callEnqueue, "plain insert": plainInsert} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := drainertest.Connect(t, drainertest.Database(t))
			first, err := enqueue(t, pool, charge(`{"cents": 1000}`)...)
			if err != nil {
				t.Fatal(err)
			}

			tx := drainertest.Begin(t, pool)
			drainertest.Exec(t, tx, "SELECT * FROM outbox.enqueue('run-001', 'step-2', 'mail/send', 'invoice_442', '{}')")
			if _, err := tx.Exec(t.Context(), statement, charge(`{"cents": 1001}`)...); sqlState(err) != "OB001" {
				t.Errorf("got %v, want OB001", err)
			} else if strings.Contains(err.Error(), "1001") {
				t.Errorf("the error repeats the payload: %v", err)
			}
			_ = tx.Rollback(t.Context())

			if n := drainertest.Value[int](t, pool, "SELECT last_value FROM outbox.collisions"); n != 1 {
				t.Errorf("%d collisions were counted, want 1", n)
			}
			// log_cnt is how far ahead the write-ahead log is.
			if n := drainertest.Value[int](t, pool, "SELECT last_value + log_cnt FROM outbox.collisions"); n != 1 {
				t.Errorf("after a crash, and on a standby, %d collisions are counted, want 1", n)
			}
			if n := drainertest.Value[int](t, pool, "SELECT last_value FROM outbox.last_collision"); n != int(first.IntentID) {
				t.Errorf("the last collision names intent %d, want %d", n, first.IntentID)
			}
			if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM outbox.intent"); n != 1 {
				t.Errorf("%d intents are left of the refused transaction, want only the first", n)
			}
		})
	}
}

func TestAFreshDatabaseHasCountedNoCollision(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	if n := drainertest.Value[int](t, pool, "SELECT c.last_value + l.last_value FROM outbox.collisions c, outbox.last_collision l"); n != 0 {
		t.Errorf("the counters stand at %d", n)
	}
}

func TestArgumentsThatMakeNoIntentAreRefusedByName(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	for name, c := range map[string]struct {
		args []any
		says string
	}{
		"empty run":      {[]any{"", "s", "t", "b", "{}"}, "agent_run_id is empty"},
		"null scope":     {[]any{"r", "s", "t", nil, "{}"}, "business_scope is empty"},
		"256 bytes":      {[]any{"r", strings.Repeat("é", 128), "t", "b", "{}"}, "step_id is 256 bytes long"},
		"no provider":    {[]any{"r", "s", "/op", "b", "{}"}, "tool_name begins with a slash"},
		"an undo's step": {[]any{"r", "compensate:1", "t", "b", "{}"}, "kept for undos"},
		"null payload":   {[]any{"r", "s", "t", "b", nil}, "payload is null"},
	} {
		_, err := enqueue(t, pool, c.args...)
		if sqlState(err) != "OB003" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want OB003 and %q", name, err, c.says)
		}
		_, err = pool.Exec(t.Context(), plainInsert, c.args...)
		if state := sqlState(err); state != "23514" && state != "23502" {
			t.Errorf("%s, inserted plainly: got %v, want a violated constraint", name, err)
		}
	}
	if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM outbox.intent"); n != 0 {
		t.Errorf("%d intents were created", n)
	}
	if _, err := enqueue(t, pool, strings.Repeat("r", 255), strings.Repeat("é", 127), "t", "b", "null"); err != nil {
		t.Errorf("parts of 255 bytes and a JSON null: %v", err)
	}
}

// A stored value that cannot be read again would stop its readers, such as a lane or a listing.
func TestWhatNobodyCouldReadAgainIsRefused(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	for name, c := range map[string]struct{ payload, notBefore, headers, says string }{
		"a long text":                       {`"` + strings.Repeat("x", 1<<20) + `"`, "now", "{}", "longer than 1 MiB"},
		"short numbers that make long text": {"[" + strings.Repeat("1e131071,", 8) + "1]", "now", "{}", "longer than 1 MiB"},
		"long headers":                      {"{}", "now", `{"baggage": "` + strings.Repeat("x", 1<<16) + `"}`, "longer than 64 KiB"},
		"never":                             {"{}", "infinity", "{}", "later than the year 9998"},
		"a year of five digits":             {"{}", "10000-01-01", "{}", "later than the year 9998"},
	} {
		args := []any{"r", "s", "t", "b", c.payload, c.notBefore, c.headers}
		_, err := pool.Exec(t.Context(), "SELECT FROM outbox.enqueue($1, $2, $3, $4, $5, $6::text::timestamptz, $7)", args...)
		if sqlState(err) != "OB003" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want OB003 and %q", name, err, c.says)
		}
		_, err = pool.Exec(t.Context(), `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, not_before, headers)
			VALUES ($1, $2, $3, $4, $5, $6::text::timestamptz, $7)`, args...)
		if sqlState(err) != "23514" {
			t.Errorf("%s, inserted plainly: got %v, want a violated constraint", name, err)
		}
	}
	full := []any{"r", "s", "t", "b", `"` + strings.Repeat("x", 1<<20-4) + `"`, "9998-12-31", "{}"}
	drainertest.Exec(t, pool, "SELECT FROM outbox.enqueue($1, $2, $3, $4, $5, $6::text::timestamptz, $7)", full...)
}

func TestARolledBackEnqueueLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	tx := drainertest.Begin(t, pool)
	if _, err := enqueue(t, tx, charge(`{}`)...); err != nil {
		t.Fatal(err)
	}
	drainertest.Exec(t, tx, "SAVEPOINT inner_step")
	drainertest.Exec(t, tx, plainInsert, "run-001", "step-2", "t", "b", "{}")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := drainertest.Value[int](t, pool, "SELECT (SELECT count(*) FROM outbox.intent) + (SELECT count(*) FROM outbox.queue)"); n != 0 {
		t.Errorf("%d rows were left", n)
	}
}

func TestAPlainInsertQueuesAndRecordsDuplicates(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	const bulk = `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run', n::text, 'noop/x', 'scope', '{}' FROM generate_series(1, $1::int) n ON CONFLICT DO NOTHING`
	drainertest.Exec(t, pool, bulk, 3)
	drainertest.Exec(t, pool, bulk, 5)
	drainertest.Exec(t, pool, callEnqueue, "run", "4", "noop/x", "scope", "{}")

	if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM outbox.queue WHERE provider = 'noop'"); n != 5 {
		t.Errorf("%d rows are queued, want 5", n)
	}
	if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM outbox.duplicate"); n != 4 {
		t.Errorf("%d duplicates were recorded, want 4", n)
	}
	drainertest.AssertInvariant(t, pool)
}

func TestTwoOfAKeyInOnePlainInsert(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	const twice = `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		VALUES ('r', 's', 't', 'b', '{"n": 1}'), ('r', 's', 't', 'b', $1) ON CONFLICT DO NOTHING`
	if _, err := pool.Exec(t.Context(), twice, `{"n": 2}`); sqlState(err) != "OB001" {
		t.Errorf("two payloads for one key: got %v, want OB001", err)
	}
	if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM outbox.intent"); n != 0 {
		t.Errorf("%d intents were created", n)
	}
}

func TestOneOfManyRacingTwinsCreates(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	const racers = 8
	var (
		race    sync.WaitGroup
		results [racers]enqueued
	)
	start := make(chan struct{})
	for i := range racers {
		race.Go(func() {
			<-start
			var err error
			if results[i], err = enqueue(t, pool, charge(`{}`)...); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	race.Wait()

	created := 0
	for _, r := range results {
		if r.Created {
			created++
		}
		if r.IntentID != results[0].IntentID {
			t.Errorf("two intents, %d and %d, for one key", r.IntentID, results[0].IntentID)
		}
	}
	if created != 1 {
		t.Errorf("%d racers created the intent, want 1", created)
	}
	if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM outbox.duplicate"); n != racers-1 {
		t.Errorf("%d duplicates were recorded, want %d", n, racers-1)
	}
}

// An enqueue cannot compare its payload with that of a twin that has not committed. It can only wait for the twin.
func TestATwinThatCommitsInBetweenIsNeverLostInSilence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ statement, payload, wantState string }{
		"enqueue, same payload":     {callEnqueue, `{"n": 1}`, ""},
		"enqueue, other payload":    {callEnqueue, `{"n": 2}`, "OB001"},
		"plain insert, same":        {plainInsert, `{"n": 1}`, "40001"},
		"plain insert, other":       {plainInsert, `{"n": 2}`, "40001"},
		"plain insert of a new key": {strings.Replace(plainInsert, "$1", "$1 || '-new'", 1), `{"n": 2}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := drainertest.Connect(t, drainertest.Database(t))
			tx := drainertest.Begin(t, pool)
			drainertest.Exec(t, tx, callEnqueue, charge(`{"n": 1}`)...)

			second := make(chan error, 1)
			go func() {
				_, err := pool.Exec(t.Context(), c.statement, charge(c.payload)...)
				second <- err
			}()
			if c.wantState != "" || c.statement == callEnqueue {
				drainertest.AwaitBlocked(t, pool)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-second; sqlState(err) != c.wantState {
				t.Errorf("got %v, want SQLSTATE %q", err, c.wantState)
			}
			drainertest.AssertInvariant(t, pool)
		})
	}
}

func TestAClosedRunTakesNoFurtherStep(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	first, err := enqueue(t, pool, charge(`{}`)...)
	if err != nil {
		t.Fatal(err)
	}
	drainertest.Exec(t, pool, "INSERT INTO outbox.saga (agent_run_id, cause) VALUES ('run-001', $1)", first.IntentID)

	const want = "outbox: this agent run is closed: it is, or was, compensated or cancelled"
	for _, state := range []string{"begun", "compensated", "compensation_failed", "resolved", "cancelled"} {
		drainertest.Exec(t, pool, "UPDATE outbox.saga SET state = $1", state)
		for name, statement := range map[string]string{"enqueue": callEnqueue, "plain insert": plainInsert} {
			_, err := pool.Exec(t.Context(), statement, "run-001", "step-2", "t", "b", "{}")
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != "OB002" || refused.Message != want || refused.Hint != "Start a new run." {
				t.Errorf("%s, %s: got %v, want OB002: %s", name, state, err, want)
			}
		}
	}
	if again, err := enqueue(t, pool, charge(`{}`)...); err != nil || again.Created {
		t.Errorf("what was already enqueued: %+v, %v", again, err)
	}
	drainertest.Exec(t, pool, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
		VALUES ('run-001', 'compensate:1', 'stripe/refund', 'invoice_442', '{}', $1)`, first.IntentID)
	drainertest.AssertInvariant(t, pool)
}

// With a plan from the time when the table was empty, the time of this insert would be quadratic.
func TestABulkInsertIntoAnEmptyAnalyzedTableIsQuick(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, pool, "VACUUM ANALYZE outbox.intent")
	tx := drainertest.Begin(t, pool)
	drainertest.Exec(t, tx, "SET LOCAL statement_timeout = '20s'")
	drainertest.Exec(t, tx, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run', n::text, 'noop/x', 'scope', '{}' FROM generate_series(1, 30000) n`)
}

// The test enqueues with the function and with a plain INSERT. The key of an intent that waits stays the same, and an
// agent that enqueues it again is told that key.
func TestANamespaceEntersTheKeysOfNewIntentsAlone(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	keyOf := func(step string) (key string) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT idempotency_key FROM outbox.status WHERE step_id = $1`, step).Scan(&key); err != nil {
			t.Fatal(err)
		}
		return key
	}
	var told []string
	seen := 0
	add := func(tool, namespace string) {
		t.Helper()
		seen++
		byFunction, byInsert := fmt.Sprintf("f%d", seen), fmt.Sprintf("i%d", seen)
		receipt, err := enqueue(t, pool, "r", byFunction, tool, "b", "{}")
		if err != nil {
			t.Fatal(err)
		}
		drainertest.Exec(t, pool, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', $1, $2, 'b', '{}')`, byInsert, tool)
		if got := keyOf(byFunction); got != receipt.IdempotencyKey {
			t.Errorf("enqueue told the key %s, the status has %s", receipt.IdempotencyKey, got)
		}
		for _, step := range []string{byFunction, byInsert} {
			want := dispatch.Tuple{AgentRunID: "r", StepID: step, ToolName: tool, BusinessScope: "b"}.QualifiedKey(dispatch.Qualifiers{Namespace: namespace})
			if got := keyOf(step); got != want {
				t.Errorf("%s of %s has the key %s, want that with the namespace %q", step, tool, got, namespace)
			}
		}
		told = append(told, receipt.IdempotencyKey)
	}
	add("stripe/charge", "")
	drainertest.Exec(t, pool, `INSERT INTO outbox.setting VALUES ('namespace', '')`)
	add("stripe/charge", "")
	drainertest.Exec(t, pool, `UPDATE outbox.setting SET value = 'shop-eu'`)
	add("stripe/charge", "shop-eu")
	drainertest.Exec(t, pool, `INSERT INTO outbox.provider (name, namespace) VALUES ('stripe', 'cards'), ('mail', NULL)`)
	add("stripe/charge", "cards")
	add("mail/send", "shop-eu")
	add("stripes", "shop-eu")
	drainertest.Exec(t, pool, `UPDATE outbox.provider SET namespace = NULL; DELETE FROM outbox.setting`)
	add("stripe/charge", "")
	for i, key := range told {
		if got := keyOf(fmt.Sprintf("f%d", i+1)); got != key {
			t.Errorf("the key of what waits became %s, was %s", got, key)
		}
	}
	again, err := enqueue(t, pool, "r", "f4", "stripe/charge", "b", "{}")
	if err != nil || again.Created || again.IdempotencyKey != told[3] {
		t.Errorf("enqueued again it is %+v (%v), want the key %s", again, err, told[3])
	}
}

func TestAToolThatNoDaemonServesIsRefusedOnceItsProviderIsKnown(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	insert := func(tx pgx.Tx, tool string) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
			SELECT 'r', n::text, CASE n WHEN 2 THEN $1 ELSE 'stripe/create_charge' END, 'b', '{}' FROM generate_series(1, 3) n`, tool)
		return err
	}
	call := func(tx pgx.Tx, tool string) error {
		_, err := tx.Exec(t.Context(), `SELECT * FROM outbox.enqueue('r', 'step', $1, 'b', '{}')`, tool)
		return err
	}
	undo := func(tx pgx.Tx, tool string) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
			VALUES ('r', 'compensate:k', $1, 'b', '{}', 1)`, tool)
		return err
	}
	const published = `INSERT INTO outbox.tool (name) VALUES ('stripe/create_charge'), ('stripe/refund'), ('mail/send')`
	for name, test := range map[string]struct {
		before string
		way    func(pgx.Tx, string) error
		tool   string
		refuse bool
		hint   string
	}{
		"served":                                   {published, call, "stripe/refund", false, ""},
		"served, inserted":                         {published, insert, "mail/send", false, ""},
		"a letter is missing":                      {published, call, "stripe/creat_charge", true, `Did you mean "stripe/create_charge"?`},
		"a letter too many, inserted":              {published, insert, "stripe/refunds", true, `Did you mean "stripe/refund"?`},
		"letters in another order":                 {published, call, "stripe/refnud", true, `Did you mean "stripe/refund"?`},
		"letters of a short name in another order": {published, call, "mail/sned", true, `Did you mean "mail/send"?`},
		"a short name, like none":                  {published, call, "mail/file", true, "Add it to the daemons' configuration"},
		"two letters, neither the same":            {published + `, ('box/go')`, call, "box/in", true, "Add it to the daemons' configuration"},
		"like none":                                {published, call, "stripe/x", true, "Add it to the daemons' configuration"},
		"no operation":                             {published, call, "stripe", true, "Add it to the daemons' configuration"},
		"a directive of a format":                  {published, call, "stripe/%s%%", true, "Add it"},
		"another provider":                         {published, call, "github/create_issue", false, ""},
		"before any daemon":                        {`SELECT`, call, "stripe/creat_charge", false, ""},
		"an undo":                                  {published, undo, "stripe/none", false, ""},
		"the owner lets agents be first":           {published + `; INSERT INTO outbox.setting VALUES ('unknown_tools', 'accept')`, call, "stripe/new", false, ""},
		"the owner says what holds anyhow":         {published + `; INSERT INTO outbox.setting VALUES ('unknown_tools', 'refuse')`, insert, "stripe/new", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tx := drainertest.Begin(t, pool)
			drainertest.Exec(t, tx, test.before)
			err := test.way(tx, test.tool)
			var refusal *pgconn.PgError
			switch {
			case !test.refuse:
				if err != nil {
					t.Error(err)
				}
			case !errors.As(err, &refusal) || refusal.Code != "OB004" || !strings.Contains(refusal.Message, test.tool) || !strings.HasPrefix(refusal.Hint, test.hint):
				t.Errorf("%+v, want OB004 with the hint %s", err, test.hint)
			}
		})
	}
}

// The setting is for agents that forget to write their state in the transaction of the intent.
func TestAnEnqueueWithoutStateIsToldOrRefusedWhereTheOwnerSaysSo(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, pool, `CREATE TABLE public.agent_state (n int)`)
	config := pool.Config().ConnConfig.Copy()
	var notices []string
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) { notices = append(notices, notice.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	enqueue := func(state string) error {
		notices = nil
		return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			drainertest.Exec(t, tx, state)
			_, err := tx.Exec(t.Context(), `SELECT outbox.enqueue('r', 's', 'p/o', 'b', '{}')`)
			return err
		})
	}
	const none, read, written = `SELECT`, `SELECT FROM public.agent_state`, `INSERT INTO public.agent_state VALUES (1)`
	for _, value := range []string{"", "off", "warn", "error"} {
		if value != "" {
			drainertest.Exec(t, pool, `INSERT INTO outbox.setting VALUES ('require_state', $1)
				ON CONFLICT (name) DO UPDATE SET value = excluded.value`, value)
		}
		for _, state := range []string{none, read, written} {
			err := enqueue(state)
			var refusal *pgconn.PgError
			if refused := errors.As(err, &refusal) && refusal.Code == "OB003"; refused != (value == "error" && state != written) {
				t.Errorf("%q, after %s: %v", value, state, err)
			}
			if told := len(notices) > 0; told != (value == "warn" && state != written) {
				t.Errorf("%q, after %s: notices %q", value, state, notices)
			}
		}
	}
	if _, err := pool.Exec(t.Context(), `UPDATE outbox.setting SET value = 'eror' WHERE name = 'require_state'`); err == nil {
		t.Error("a misspelt value is taken, and would refuse nothing")
	}
}

func TestAnIncidentThatOpensAgainIsANewGenerationOnlyIfItWasOver(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before string
		want   int
	}{
		"still open":   {"detail = 'nobody looked'", 1},
		"acknowledged": {"acknowledged_at = now(), acknowledged_by = 'on-call', reason = 'mine'", 2},
		"resolved":     {"resolved_at = now(), resolved_by = 'on-call'", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := drainertest.Connect(t, drainertest.Database(t))
			drainertest.Exec(t, pool, "INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at) VALUES ('key_collision', 1, 'r', 'yesterday')")
			drainertest.Exec(t, pool, "UPDATE outbox.incident SET "+test.before)
			drainertest.Exec(t, pool, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('key_collision', 1, 'r')
				ON CONFLICT (kind, intent_id) DO UPDATE SET opened_at = now()`)

			var generation int
			var open, sinceYesterday bool
			err := pool.QueryRow(t.Context(), `SELECT generation, opened_at < now() - interval '1 hour',
				num_nulls(acknowledged_at, acknowledged_by, reason, resolved_at, resolved_by) = 5 FROM outbox.incident`,
			).Scan(&generation, &sinceYesterday, &open)
			if err != nil {
				t.Fatal(err)
			}
			if generation != test.want || !open || sinceYesterday != (test.want == 1) {
				t.Errorf("generation %d, open %t, since yesterday %t", generation, open, sinceYesterday)
			}
		})
	}
}
