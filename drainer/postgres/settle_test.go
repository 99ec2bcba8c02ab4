package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestSettlingTwiceIsHarmless(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	rows := o.claim(worker, 2)
	// The claim is not finished, so only the attempts themselves refuse the second settling.
	once := drainer.Batch{Settle: []drainer.Settlement{ended(rows[0], dispatch.Completed), ended(rows[1], dispatch.Throttled)}}
	if refused := o.batch(worker, once).Refused; len(refused) != 0 {
		t.Errorf("the first settling was refused for %v", refused)
	}
	if refused := o.batch(worker, once).Refused; !slices.Equal(refused, []int{0, 1}) {
		t.Errorf("the second settling was refused for %v, want both", refused)
	}
	o.batch(worker, drainer.Batch{Finish: []int64{rows[0].ClaimID}})
	if refused := o.batch(worker, once).Refused; !slices.Equal(refused, []int{0, 1}) {
		t.Errorf("settling without a claim was refused for %v, want both", refused)
	}
	o.assertStatuses(map[string]int{"completed": 1, "pending": 1})
}

// A worker that got no reply to its first turn sends it again, and the first one may still run.
func TestSettlingTwiceAtOnceSettlesOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	for round := range 20 {
		o.enqueue("run", round, round+1)
		once := drainer.Batch{Settle: []drainer.Settlement{ended(o.claim(worker, 1)[0], dispatch.Completed)}}
		var first, second error
		settle := func(err *error) func() {
			return func() { _, *err = o.Commit(t.Context(), worker, once) }
		}
		both(settle(&first), settle(&second))
		if first != nil && second != nil {
			t.Fatalf("neither settled: %v, %v", first, second)
		}
		if refused := o.batch(worker, once).Refused; len(refused) != 1 {
			t.Fatalf("the third settling was refused for %v, want the row", refused)
		}
	}
	o.assertStatuses(map[string]int{"completed": 20})
}

// A provider's own lane and its detour share batches. One may settle an attempt again while the other settles the next
// attempt.
func TestARepeatedSettlementBesideANewerOneWritesNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	older := ended(o.claim(worker, 1)[0], dispatch.Throttled)
	o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{older}})
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
	newer := ended(o.claim(worker, 1)[0], dispatch.Completed)
	if refused := o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{older, newer}}).Refused; !slices.Equal(refused, []int{0}) {
		t.Errorf("refused %v, want the repetition", refused)
	}
	o.assertStatuses(map[string]int{"completed": 1})
	if again := o.claim(worker, 1); len(again) != 0 {
		t.Errorf("a completed intent was claimed again: %+v", again[0])
	}
}

// The client has given up the first try, and the lane settles the same rows again.
func TestATurnThatIsRepeatedWaitsForItsFirstTry(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	rows := o.claim(worker, 2)
	slow := drainertest.Begin(t, o.db)
	// the settlement waits here, with the first of the two settled and nothing finished
	if _, err := slow.Exec(t.Context(), `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
		VALUES ($1, 1, 'w', 'completed', 'completed')`, rows[1].IntentID); err != nil {
		t.Fatal(err)
	}
	tries := make(chan error)
	for waiting := 1; waiting <= 2; waiting++ {
		batch := settling(dispatch.Completed, rows...)
		batch.Settle[0].Repeats = waiting == 2
		go func() {
			_, err := o.Commit(t.Context(), worker, batch)
			tries <- err
		}()
		drainertest.Eventually(t, "it waits for a lock", func() bool {
			return waiting == stored[int](o, `SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted
				AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`)
		})
	}
	if err := slow.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-tries; err != nil {
			t.Error(err)
		}
	}
	o.assertStatuses(map[string]int{"completed": 2})
}

// A busy lane has two turns in progress, and their rows can be of one claim.
func TestATurnSettlesBesideAnotherOneThatHoldsTheSameClaim(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	rows := o.claim(worker, 2)
	other := drainertest.Begin(t, o.db)
	drainertest.Exec(t, other, `SELECT FROM outbox.claim WHERE claim_id = $1 FOR KEY SHARE`, rows[0].ClaimID)
	if refused := o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{ended(rows[1], dispatch.Completed)}}).Refused; len(refused) != 0 {
		t.Errorf("its row was refused: %v", refused)
	}
	o.declareDead(worker)
	if lost := o.reap(); len(lost) != 0 {
		t.Errorf("%d rows were reaped from under the other turn", len(lost))
	}
	o.assertStatuses(map[string]int{"completed": 1, "in_progress": 1})
}

func TestOneRowOfAClaimSettlesWithoutTheOthers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 3)
	rows := o.claim(worker, 3)
	o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{ended(rows[1], dispatch.Completed)}})
	o.assertStatuses(map[string]int{"completed": 1, "in_progress": 2})
	o.declareDead(worker)
	if lost := o.reap(); len(lost) != 2 {
		t.Errorf("%d rows reaped, want the 2 without an outcome", len(lost))
	}
	o.assertStatuses(map[string]int{"completed": 1, "pending": 2})
}

func TestWhatProvesNoEffectIsRefusedAfterReaping(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	zombie := o.join()
	o.enqueue("run", 0, 1)
	rows := o.claim(zombie, 1)
	o.declareDead(zombie)
	o.reap()
	if refused := o.settle(zombie, dispatch.Rejected, rows...).Refused; !slices.Equal(refused, []int{0}) {
		t.Errorf("refused %v, want the row", refused)
	}
	again := o.claim(o.join(), 1)
	if len(again) != 1 || again[0].Attempt != rows[0].Attempt+1 || !again[0].MaybeApplied {
		t.Fatalf("reclaimed %+v, want the next attempt, in doubt", again)
	}
	if refused := o.settle(zombie, dispatch.Rejected, rows...).Refused; !slices.Equal(refused, []int{0}) {
		t.Errorf("refused %v, want the row", refused)
	}
	o.assertStatuses(map[string]int{"in_progress": 1})
}

func TestAnotherWorkersIdDoesNotSettle(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	rows := o.claim(o.join(), 1)
	if refused := o.settle(o.join(), dispatch.Completed, rows...).Refused; len(refused) != 1 {
		t.Errorf("refused %v, want the row", refused)
	}
	o.assertStatuses(map[string]int{"in_progress": 1})
}

// Lanes share a batch. A claim that one lane lost must not affect the rows of the others, and each row is requeued for
// its own lane.
func TestATurnSettlesOfSeveralClaimsThoseThatItHolds(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueueTool("sim/act", "run", 3)
	o.enqueueTool("other/act", "run", 2)
	worker, lost := o.join(), o.join()
	rows := append(o.claim(worker, 1), o.claim(lost, 1)...)
	rows = append(rows, o.claim(worker, 1)...)
	others := drainer.Batch{Claims: []drainer.Claim{{Provider: "other", Server: "other", Limit: 2}}}
	rows = append(rows, o.batch(worker, others).Claimed[0].Rows...)
	if refused := o.settle(worker, dispatch.Throttled, rows...).Refused; !slices.Equal(refused, []int{1}) {
		t.Errorf("refused %v, want the row of the claim that is another's", refused)
	}
	o.assertStatuses(map[string]int{"pending": 4, "in_progress": 1})
	if astray := stored[int](o, `SELECT count(*) FROM outbox.queue q JOIN outbox.intent i ON i.id = q.intent_id WHERE q.provider <> i.provider`); astray > 0 {
		t.Errorf("%d rows went back to a lane that is not theirs", astray)
	}
}

func TestSettlingRacesReapingOneOfThemWins(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	for round := range 30 {
		o.enqueue("run", round*4, round*4+4)
		worker := o.join()
		rows := o.claim(worker, 4)
		o.declareDead(worker)
		var refused []int
		var lost []drainer.Settlement
		both(
			func() { refused = o.settle(worker, dispatch.Completed, rows...).Refused },
			func() { lost = o.reap() },
		)
		if len(refused) != len(lost) {
			t.Fatalf("%d outcomes refused, but %d rows lost", len(refused), len(lost))
		}
		o.reap() // takes the rows that the reaper skipped because the settling held their claim
		o.settle(o.successor(), dispatch.Completed, o.claim(o.successor(), 4)...)
	}
}

func TestARetryIsNotClaimedByTheTurnThatPutItBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	batch := settling(dispatch.Throttled, o.claim(worker, 1)...)
	batch.Claims = claimOf(10).Claims
	if claimed := o.batch(worker, batch).Claimed[0].Rows; len(claimed) != 0 {
		t.Errorf("claimed intents %v in the turn that requeued them", ids(claimed))
	}
	if claimed := o.claim(worker, 10); len(claimed) != 1 || claimed[0].Attempt != 2 || claimed[0].Tries != 2 {
		t.Errorf("claimed %+v, want attempt 2", claimed)
	}
}

func TestAReleaseCostsNoTryAndStartsNoClock(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.settle(worker, dispatch.Released, o.claim(worker, 1)...)
	row := o.claim(worker, 1)[0]
	if row.Attempt != 2 || row.Tries != 1 || row.FirstAttemptAt != nil || row.MaybeApplied {
		t.Errorf("%+v, want attempt 2 of try 1, never sent", row)
	}
	o.settle(worker, dispatch.Ambiguous, row)
	row = o.claim(worker, 1)[0]
	first := row.FirstAttemptAt
	if first == nil || !row.MaybeApplied || row.Tries != 2 {
		t.Fatalf("%+v, want try 2, in doubt, with a first send", row)
	}
	o.settle(worker, dispatch.Ambiguous, row)
	if row = o.claim(worker, 1)[0]; row.FirstAttemptAt == nil || !row.FirstAttemptAt.Equal(*first) {
		t.Errorf("the first send moved from %v to %v", first, row.FirstAttemptAt)
	}
}

func TestADelayForEverIsStored(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	settlement := ended(o.claim(worker, 1)[0], dispatch.Throttled)
	settlement.Decision.Delay = 1<<63 - 1
	if _, err := o.Commit(t.Context(), worker, drainer.Batch{Settle: []drainer.Settlement{settlement}, Finish: []int64{settlement.Row.ClaimID}}); err != nil {
		t.Fatal(err)
	}
	o.assertStatuses(map[string]int{"pending": 1})
	if due := stored[time.Time](o, `SELECT next_attempt_at FROM outbox.queue`); time.Until(due) < 200*365*24*time.Hour {
		t.Errorf("due at %s", due)
	}
}

func both(one, other func()) {
	var group sync.WaitGroup
	group.Go(one)
	group.Go(other)
	group.Wait()
}

// A worker that lost its row may still learn that the effect happened.
func TestAnEffectThatIsKnownLateIsRecorded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		onRecord  string // the status that was settled meanwhile
		saga      string // of the run; empty for none
		acts      bool
		status    string
		sagaAfter string
		pages     bool
	}{
		{"on record as failed", "failed", "", true, "completed", "", false},
		{"on record as unknown", "unknown", "", true, "completed", "", false},
		{"while its run goes back, which undoes it", "failed", "begun", true, "completed", "begun", false},
		{"after its run went back", "failed", "compensated", true, "completed", "compensation_failed", true},
		{"after people settled its run", "cancelled", "resolved", true, "completed", "compensation_failed", true},
		{"of a tool that only reads", "failed", "compensated", false, "completed", "compensated", false},
		{"on record as completed", "completed", "compensated", true, "completed", "compensated", false},
		{"undone already", "compensated", "compensated", true, "compensated", "compensated", false},
	} {
		o := newOutbox(t)
		worker, rows := o.losing(test.onRecord)
		if test.saga != "" {
			o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('run', $1)`, test.saga)
		}
		batch := settling(dispatch.Completed, rows...)
		batch.Settle[0].Acts, batch.Settle[0].Result.ProviderRef = test.acts, "ch_1"
		for range 2 { // a lane repeats a batch until it gets a reply
			o.batch(worker, batch)
		}
		if got := stored[string](o, `SELECT status FROM outbox.status`); got != test.status {
			t.Errorf("%s: the intent is %s, want %s", test.name, got, test.status)
		}
		if got := stored[string](o, `SELECT coalesce((SELECT state FROM outbox.saga), '')`); got != test.sagaAfter {
			t.Errorf("%s: the saga is %q, want %q", test.name, got, test.sagaAfter)
		}
		if got := stored[bool](o, `SELECT EXISTS (SELECT FROM outbox.incident WHERE detail = 'late_effect')`); got != test.pages {
			t.Errorf("%s: it pages %v, want %v", test.name, got, test.pages)
		}
	}
}

// A row that waits for a retry or a lookup has not been sent again yet.
func TestAnEffectThatIsKnownBeforeItsRowIsTriedAgainTakesItOutOfTheQueue(t *testing.T) {
	t.Parallel()
	for _, lookup := range []bool{false, true} {
		o := newOutbox(t)
		worker := o.join()
		o.enqueue("run", 0, 1)
		rows := o.claim(worker, 1)
		o.declareDead(worker)
		o.reap()
		o.exec(`UPDATE outbox.queue SET lookup = $1`, lookup)
		o.batch(o.join(), settling(dispatch.Completed, rows...))
		if got := stored[string](o, `SELECT status || ' ' || history FROM outbox.status, LATERAL (SELECT string_agg(outcome, ' ' ORDER BY attempt) AS history FROM outbox.attempt) a`); got != "completed lost completed" {
			t.Errorf("lookup %t: the intent is %s", lookup, got)
		}
		if waiting := stored[int](o, `SELECT count(*) FROM outbox.queue`); waiting != 0 {
			t.Errorf("lookup %t: it still waits", lookup)
		}
	}
}

// Once the row is claimed again, only the worker that claimed it settles it.
func TestAnEffectThatIsKnownWhileItsRowIsTriedAgainIsLeftToThatAttempt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	lost, other := o.join(), o.join()
	o.enqueue("run", 0, 1)
	rows := o.claim(lost, 1)
	o.declareDead(lost)
	o.reap()
	again := o.claim(other, 1)
	o.batch(o.join(), settling(dispatch.Completed, rows...))
	if got := stored[string](o, `SELECT status FROM outbox.status`); got != "in_progress" {
		t.Errorf("the intent is %s, want it in progress", got)
	}
	if reply := o.batch(other, settling(dispatch.Completed, again...)); len(reply.Refused) != 0 {
		t.Error("the attempt under way is refused")
	}
}

// The pass that ends a saga has read its steps before. An effect that it cannot have seen waits for the pass, also if
// the saga did not exist a moment ago.
func TestAnEffectThatIsKnownWhileItsRunGoesBackIsTold(t *testing.T) {
	t.Parallel()
	for name, begunBefore := range map[string]bool{"the saga was there": true, "the saga was not there": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			worker, rows := o.losing("failed")
			const begin = `INSERT INTO outbox.saga (agent_run_id) VALUES ('run')`
			if begunBefore {
				o.exec(begin)
			}
			pass := o.begin()
			if !begunBefore {
				drainertest.Exec(t, pass, begin)
			}
			drainertest.Exec(t, pass, `SELECT FROM outbox.saga FOR UPDATE`)
			drainertest.Exec(t, pass, holdAll)
			batch := settling(dispatch.Completed, rows...)
			batch.Settle[0].Acts = true
			o.settleBehind(pass, worker, batch, `UPDATE outbox.saga SET state = 'compensated', ended_at = now()`)
			if state := stored[string](o, `SELECT state FROM outbox.saga`); state != "compensation_failed" {
				t.Errorf("the saga is %s although its step is applied", state)
			}
			if !stored[bool](o, `SELECT EXISTS (SELECT FROM outbox.incident WHERE detail = 'late_effect')`) {
				t.Error("nobody is told")
			}
		})
	}
}

// An operator decides that nothing happened while the worker reports the effect.
func TestAnEffectThatIsKnownWhileAnOperatorDeniesItIsRecorded(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker, rows := o.losing("unknown")
	operator := o.begin()
	drainertest.Exec(t, operator, holdAll)
	o.settleBehind(operator, worker, settling(dispatch.Completed, rows...), fmt.Sprintf(
		`INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status) VALUES (%d, %d, 'operator:ann', 'resolved', 'failed')`,
		rows[0].IntentID, rows[0].Attempt+1))
	o.assertStatuses(map[string]int{"completed": 1})
}

// An agent that enqueues its key again locks the intent until its transaction ends, which may be never.
func TestAnAgentsTransactionDoesNotHoldUpALateEffect(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker, rows := o.losing("unknown")
	agent := o.begin()
	drainertest.Exec(t, agent, `SELECT outbox.enqueue(agent_run_id, step_id, tool_name, business_scope, payload) FROM outbox.intent`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := o.Commit(ctx, worker, settling(dispatch.Completed, rows...)); err != nil {
		t.Error(err)
	}
	o.assertStatuses(map[string]int{"completed": 1})
}

// losing returns a worker and its row. Another worker has settled the row with that status.
func (o *outbox) losing(onRecord string) (worker string, rows []*drainer.Row) {
	o.t.Helper()
	worker = o.join()
	o.enqueue("run", 0, 1)
	rows = o.claim(worker, 1)
	o.exec(`DELETE FROM outbox.claim`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, $2, 'another', 'lost', $3)`,
		rows[0].IntentID, rows[0].Attempt, onRecord)
	return worker, rows
}

// holdAll is the statement with which operators and passes begin.
const holdAll = `SELECT outbox.hold(ARRAY(SELECT id FROM outbox.intent))`

func (o *outbox) begin() pgx.Tx {
	o.t.Helper()
	tx, err := o.db.Begin(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// settleBehind starts a batch that waits for a transaction. The transaction then executes one more statement and
// commits.
func (o *outbox) settleBehind(first pgx.Tx, worker string, batch drainer.Batch, then string) {
	o.t.Helper()
	settled := o.inBackground(worker, batch)
	o.awaitBlocked(settled)
	drainertest.Exec(o.t, first, then)
	if err := first.Commit(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
	if err := <-settled; err != nil {
		o.t.Fatal(err)
	}
}

// awaitBlocked returns once a session waits for another one's lock.
func (o *outbox) awaitBlocked(settled <-chan error) {
	o.t.Helper()
	for !stored[bool](o, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`) {
		select {
		case err := <-settled:
			o.t.Fatalf("the turn waited for nobody: %v", err)
		default:
		}
	}
}

func (o *outbox) inBackground(worker string, batch drainer.Batch) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := o.Commit(o.t.Context(), worker, batch)
		done <- err
	}()
	return done
}

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
			batch := settling(dispatch.Completed, rows...)
			for i := range batch.Settle {
				batch.Settle[i].Result.Response = json.RawMessage(`{"id":"ok"}`)
			}
			batch.Settle[1].Result.Response = json.RawMessage(response)
			batch.Claims = claimOf(1).Claims
			reply := o.batch(worker, batch)
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

// An adapter may pass on any part of a provider's answer. The outcome is stored, and so is the outcome of the other row.
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
		reply, err := o.Commit(t.Context(), worker, claimOf(2))
		if err != nil || len(reply.Claimed[0].Rows) != 2 {
			t.Fatalf("claimed %+v, %v", reply, err)
		}
		rows := reply.Claimed[0].Rows
		batch := settling(dispatch.Completed, rows...)
		said := &batch.Settle[0].Result
		said.Response, said.ProviderRef, said.HTTPStatus, said.RetryAfter = response, reference, status, time.Duration(retryAfter)
		said.ErrorClass, said.ResponseHeaders = words, map[string]string{words: words}
		said.Problem = &dispatch.Problem{Type: words, Title: words, Detail: words}
		batch.Settle[1].Result.Response = json.RawMessage(`{"id":"ok"}`)
		if reply, err = o.Commit(t.Context(), worker, batch); err != nil || len(reply.Refused) > 0 {
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

// In a mass failure, other workers have many closed runs, and each worker asks for its own every second.
func TestAWorkerIsToldOfClosedRunsThatItHasClaimedAndOfNoOthers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	holder, idler := o.join(), o.join()
	for _, run := range []string{"cancelled", "failed", "open"} {
		o.enqueue(run, 0, 1)
	}
	o.claim(holder, 3)
	o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('cancelled', 'cancelled'), ('failed', 'begun')`)
	o.exec(`INSERT INTO outbox.saga (agent_run_id) SELECT 'another ' || n FROM generate_series(1, 10000) n`)

	for worker, want := range map[string][]string{holder: {"cancelled", "failed"}, idler: nil} {
		closed, err := o.Closed(t.Context(), worker)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(closed)
		if !slices.Equal(closed, want) {
			t.Errorf("it was told of %d runs, the first of them %q, want %q", len(closed), closed[:min(len(closed), 3)], want)
		}
	}
}

// A saga's begun_at is when its transaction began. It may commit after a claim that did not
// see it, and nothing bounds how long after: an operator's transaction can stay open.
func TestARunWhoseClosingTookLongIsRead(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	worker := o.join()
	o.claim(worker, 1)
	o.exec(`INSERT INTO outbox.saga (agent_run_id, begun_at) SELECT 'run', claimed_at - interval '1 hour' FROM outbox.claim`)
	if runs, err := o.Closed(t.Context(), worker); err != nil || len(runs) != 1 || runs[0] != "run" {
		t.Errorf("it reads %v, %v", runs, err)
	}
}

// Only doubt binds a row to the fallback: its own provider may be back by the next try.
func TestARowThatItsFallbackCannotHaveAppliedGoesBackToItsOwnProvider(t *testing.T) {
	t.Parallel()
	for outcome, kept := range map[dispatch.Outcome]bool{dispatch.Throttled: false, dispatch.Ambiguous: true} {
		o := newOutbox(t)
		o.enqueue("run", 0, 1)
		worker := o.join()
		rows := o.claim(worker, 1)
		rows[0].Via = "backup"
		o.settle(worker, outcome, rows...)
		if got := stored[bool](o, `SELECT via IS NOT NULL FROM outbox.queue`); got != kept {
			t.Errorf("%s: it keeps its fallback is %v, want %v", outcome, got, kept)
		}
	}
}

// An intent is dispatched as the agent committed it, under the key that the agent was told. Each number is exact, a name
// that comes twice has its last value, and of the headers only the texts are sent. A payload that cannot be kept is
// refused when it is enqueued, and the error repeats none of it.
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
		reply, err := o.Commit(t.Context(), worker, drainer.Batch{Claims: []drainer.Claim{{Provider: provider, Server: provider, Limit: 2}}})
		if err != nil || len(reply.Claimed[0].Rows) != 1 {
			t.Fatalf("claimed %+v, %v", reply, err)
		}
		row := reply.Claimed[0].Rows[0]
		if row.Tuple != tuple || !dispatchtest.SameJSON(row.Payload, payload) || !maps.Equal(row.Headers, textsIn(headers)) {
			t.Errorf("%q with %.200q and %.200q is dispatched as %q with %.200q and %.200q", tuple, payload, headers, row.Tuple, row.Payload, row.Headers)
		}
		if _, err := o.Commit(t.Context(), worker, settling(dispatch.Completed, row)); err != nil {
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

// isPlain reports whether jsonb must accept the text. It has no escapes and no numbers with long exponents, and it is
// short.
func isPlain(text []byte) bool {
	return json.Valid(text) && utf8.Valid(text) && len(text) < 1000 && !suspicious.Match(text)
}

var suspicious = regexp.MustCompile(`\\u|[eE][+-]?[0-9]{4}`)

// textsIn returns the members of an object that are text.
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
	batch := settling(dispatch.Completed, o.claim(worker, 2)...)
	batch.Settle[0].Result.ResponseHeaders = map[string]string{"Request-Id": `a "quoted" one`}
	o.batch(worker, batch)
	stored := stored[json.RawMessage](o, `SELECT response_headers FROM outbox.attempt WHERE response_headers IS NOT NULL`)
	var headers map[string]string
	if err := json.Unmarshal(stored, &headers); err != nil || !maps.Equal(headers, batch.Settle[0].Result.ResponseHeaders) {
		t.Errorf("%s is stored, want %v", stored, batch.Settle[0].Result.ResponseHeaders)
	}
}

func TestARequestThatDoesNotReachTheDatabaseSaysWhatItWas(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	over, end := context.WithCancel(t.Context())
	end()
	for want, ask := range map[string]func() error{
		"batch: ":                       func() error { _, err := o.Commit(over, o.join(), claimOf(1)); return err },
		"take back claims: ":            func() error { _, err := o.Reap(over, []string{"sim"}, as(dispatch.Lost)); return err },
		"count due rows: ":              func() error { _, err := o.Due(over, []string{"sim"}, nil); return err },
		"read the gates: ":              func() error { _, err := o.Gates(over, o.join()); return err },
		"read which runs were closed: ": func() error { _, err := o.Closed(over, o.join()); return err },
	} {
		if err := ask(); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q and the cause", err, want)
		}
	}
}

func TestAnUnusableURLIsRefusedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	store, err := postgres.Open(t.Context(), pgpool.At("postgres://ann:canary@127.0.0.1:no-port/outbox"))
	if err == nil || store != nil {
		t.Fatal("it was taken")
	}
	if !errors.Is(err, pgpool.ErrURL) || strings.Contains(err.Error(), "canary") {
		t.Errorf("it says %q", err)
	}
}

// The rows of a dead worker are read after they were locked. If the read fails, nothing changes, and the next reaper
// finds them.
func TestRecoveringThatFailsHalfWayTakesNothingBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	o.claim(worker, 2)
	o.declareDead(worker)
	o.exec(`ALTER TABLE outbox.intent RENAME TO away`)
	if lost, err := o.Reap(t.Context(), []string{"sim"}, as(dispatch.Lost)); err == nil || len(lost) != 0 {
		t.Errorf("%d rows were taken back, and it says %v", len(lost), err)
	}
	o.exec(`ALTER TABLE outbox.away RENAME TO intent`)
	if lost := o.reap(); len(lost) != 2 {
		t.Errorf("the next reaper finds %d rows, want 2", len(lost))
	}
}

// A reply that cannot be read counts as a lost reply.
func TestRowsThatWereClaimedAndCannotBeReadAreGivenBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.exec(`ALTER TABLE outbox.intent ALTER created_at DROP NOT NULL`)
	o.enqueue("run", 0, 1)
	o.exec(`UPDATE outbox.intent SET created_at = NULL`)
	if reply, err := o.Commit(t.Context(), worker, claimOf(1)); err == nil || len(reply.Claimed) != 0 {
		t.Fatalf("%+v, %v, want an error alone", reply, err)
	}
	given, err := o.Reclaim(t.Context(), worker, "sim", "sim", nil, as(dispatch.Released))
	if err != nil || len(given) != 1 {
		t.Errorf("%d rows are given back, %v; want the one that was claimed", len(given), err)
	}
	o.assertStatuses(map[string]int{"pending": 1})
}

func unstorable(batch *drainer.Batch, i int) {
	batch.Settle[i].Result.Response = json.RawMessage(`{"a":"\u0000"}`)
}

func TestRefusalsKeepTheirPlaceAroundAnUnstorableResponse(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 4)
	rows := o.claim(worker, 4)
	o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{ended(rows[0], dispatch.Completed), ended(rows[3], dispatch.Completed)}})
	batch := settling(dispatch.Completed, rows...)
	unstorable(&batch, 1)
	if refused := o.batch(worker, batch).Refused; !slices.Equal(refused, []int{0, 3}) {
		t.Errorf("refused %v, want the first and the last, which were settled before", refused)
	}
	o.assertStatuses(map[string]int{"completed": 4})
}

func TestASagaThatBeginsBesideAnUnstorableResponseIsReported(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	rows := o.claim(worker, 2)
	batch := settling(dispatch.Rejected, rows...)
	unstorable(&batch, 0)
	batch.Settle[1].BeginsSaga = true
	if sagas := o.batch(worker, batch).Sagas; !sagas.Marked {
		t.Errorf("the batch reported %+v, want a saga that is marked", sagas)
	}
}

func TestATurnThatFailsAroundAnUnstorableResponseIsRepeated(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]struct{ unstorable, failing int }{
		"before it": {0, 1},
		"after it":  {1, 0},
	} {
		o := newOutbox(t)
		worker := o.join()
		o.enqueue("run", 0, 2)
		rows := o.claim(worker, 2)
		o.exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no room'; END $$`)
		o.exec(`CREATE TRIGGER fail BEFORE INSERT ON outbox.attempt FOR EACH ROW WHEN (NEW.error = 'fail') EXECUTE FUNCTION fail()`)
		batch := settling(dispatch.Completed, rows...)
		unstorable(&batch, place.unstorable)
		batch.Settle[place.failing].Result.ErrorClass = "fail"
		batch.Claims = claimOf(1).Claims
		if reply, err := o.Commit(t.Context(), worker, batch); err == nil || len(reply.Claimed) != 0 {
			t.Errorf("%s: %+v, %v; want an error alone", name, reply, err)
		}
		o.exec(`DROP TRIGGER fail ON outbox.attempt`)
		o.batch(worker, batch)
		o.assertStatuses(map[string]int{"completed": 2})
	}
}
