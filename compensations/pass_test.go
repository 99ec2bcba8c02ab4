package compensations_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func (w *world) assertSaga(want string) {
	w.t.Helper()
	if got := stored[string](w, `SELECT state FROM outbox.saga WHERE agent_run_id = 'run-1'`); got != want {
		w.t.Errorf("the saga is %s, want %s", got, want)
	}
	ended := stored[bool](w, `SELECT ended_at IS NOT NULL FROM outbox.saga WHERE agent_run_id = 'run-1'`)
	if ended != (want != "begun") {
		w.t.Errorf("a saga that is %s has an end: %t", want, ended)
	}
}

func (w *world) assertStatuses(want ...string) {
	w.t.Helper()
	if got := w.statuses(); !slices.Equal(got, want) {
		w.t.Errorf("the steps are %v, want %v", got, want)
	}
}

// assertUndone checks that the shop was asked to undo exactly these steps, in order.
func (w *world) assertUndone(tool string, steps ...int64) {
	w.t.Helper()
	var want []string
	for _, step := range steps {
		want = append(want, w.undoKey(step, tool))
	}
	if got := w.shop.called(tool); !slices.Equal(got, want) {
		w.t.Errorf("%s was called with the keys %v, want %v", tool, got, want)
	}
}

type incident struct {
	Kind   string
	Intent int64
	Detail string
}

func (w *world) assertIncidents(want ...incident) {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT kind, intent_id, detail FROM outbox.incident WHERE resolved_at IS NULL ORDER BY id`)
	if err != nil {
		w.t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[incident])
	if err != nil {
		w.t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("the incidents are %+v, want %+v", got, want)
	}
}

// Several processes make passes over the same run, and each makes several at once.
func TestARunIsUndoneInReverseOnceHoweverManyTakeItBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	steps := w.completed("shop/order", 4)
	w.rejected()
	other := newSaga(t, drainertest.Connect(t, w.url))
	store := w.store
	for undone := range steps {
		var jobs sync.WaitGroup
		for _, saga := range slices.Repeat([]func() error{
			func() error { return w.saga.Advance(t.Context(), "run-1") },
			func() error { return other.Advance(t.Context(), "run-1") },
		}, 4) {
			jobs.Go(func() {
				if err := saga(); err != nil {
					t.Error(err)
				}
			})
		}
		jobs.Wait()
		w.assertSaga("begun")
		worker, rows := w.claim(store)
		if len(rows) != 1 {
			t.Fatalf("%d undos wait after %d, want one at a time", len(rows), undone)
		}
		if step := *rows[0].Undoes; step != steps[len(steps)-1-undone] {
			t.Errorf("step %d is undone as number %d", step, undone+1)
		}
		// A pass races this settlement, which continues the saga by itself.
		jobs.Go(func() {
			if err := other.Advance(t.Context(), "run-1"); err != nil {
				t.Error(err)
			}
		})
		w.batch(store, worker, settling(rows, dispatch.Completed))
		jobs.Wait()
		if compensated := stored[int](w, `SELECT count(*) FROM outbox.status WHERE status = 'compensated'`); compensated != undone+1 {
			t.Errorf("%d steps are compensated with the commit of undo %d", compensated, undone+1)
		}
	}
	w.advance()
	w.assertSaga("compensated")
	w.assertStatuses("compensated", "compensated", "compensated", "compensated", "failed")
	w.assertIncidents()
	w.advance() // a pass after the saga's end does nothing
	if undos := stored[int](w, `SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`); undos != len(steps) {
		t.Errorf("%d undos of %d steps", undos, len(steps))
	}
}

func TestAnUndoIsMadeOfItsStepAndPointsToIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	step := w.completed("shop/order", 1)[0]
	w.rejected()
	w.goBack()
	undo := w.shop.calls[len(w.shop.calls)-1]
	response := stored[string](w, `SELECT response->>'id' FROM outbox.attempt WHERE intent_id = $1 AND outcome = 'completed'`, step)
	if want := `{"order": "` + response + `"}`; string(undo.Payload) != want {
		t.Errorf("the undo's payload is %s, want %s", undo.Payload, want)
	}
	if undo.Tuple.AgentRunID != "run-1" || undo.Tuple.BusinessScope != "order-1" {
		t.Errorf("the undo is %+v, want it of the step's run and scope", undo.Tuple)
	}
}

func TestWhatCannotBeUndoneEndsTheSagaWithOneIncident(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool     string // of the newest step
		before   func(w *world, step int64)
		incident incident
	}{
		"nobody declared how": {
			tool:     "shop/ship",
			incident: incident{Kind: "compensation_failed", Detail: "no_reversal"},
		},
		"the undo is rejected": {
			tool:     "shop/order",
			before:   func(w *world, _ int64) { w.shop.answer("shop/cancel", dispatch.Rejected) },
			incident: incident{Kind: "compensation_failed", Detail: "test_rejected"},
		},
		"nobody can tell whether it is undone": {
			tool:     "shop/parcel",
			before:   func(w *world, _ int64) { w.shop.answer("shop/recall", dispatch.Ambiguous) },
			incident: incident{Kind: "compensation_failed", Detail: "test_ambiguous"},
		},
		"it is too late": {
			tool: "shop/hold",
			before: func(w *world, step int64) {
				w.exec(`UPDATE outbox.attempt SET started_at = started_at - interval '61 minutes' WHERE intent_id = $1`, step)
			},
			incident: incident{Kind: "reversal_window_expired", Detail: "reversal_window_expired"},
		},
		"its undo cannot be made": {
			tool: "shop/order",
			before: func(w *world, step int64) {
				w.exec(`UPDATE outbox.attempt SET response = '{}' WHERE intent_id = $1`, step)
			},
			incident: incident{Kind: "compensation_failed", Detail: "undo_payload_incomplete"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			older := w.completed("shop/order", 1)[0]
			newest := w.enqueue("step-2", test.tool)
			w.drain()
			w.rejected()
			if test.before != nil {
				test.before(w, newest)
			}
			w.goBack()
			if test.incident.Detail == "no_reversal" {
				fault.Injected(t, 59, 1)
			}
			w.assertSaga("compensation_failed")
			w.assertStatuses("completed", "compensation_failed", "failed")
			test.incident.Intent = newest
			w.assertIncidents(test.incident)
			w.advance()
			w.drain()
			w.assertIncidents(test.incident)
			if undos := all[int64](w, `SELECT compensates FROM outbox.intent WHERE compensates = $1`, older); len(undos) != 0 {
				t.Error("the older step is being undone; want it left to whoever looks at the incident")
			}
		})
	}
}

// A lookup may find the effect. Otherwise, a human says whether there was one.
func TestAStepInDoubtIsWaitedForAndThenUndoneIfItHappened(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool, undo string
		tell       func(w *world, step int64)
		happened   bool
	}{
		"a human says yes":  {"shop/wire", "shop/release", func(w *world, step int64) { w.resolve(dispatch.StatusCompleted, step) }, true},
		"a human says no":   {"shop/wire", "shop/release", func(w *world, step int64) { w.resolve(dispatch.StatusFailed, step) }, false},
		"a lookup finds it": {"shop/transfer", "shop/return", func(w *world, _ int64) { w.shop.answer("shop/find", dispatch.Completed) }, true},
		"a lookup does not": {"shop/transfer", "shop/return", func(w *world, _ int64) { w.shop.answer("shop/find", dispatch.Absent) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			older := w.completed("shop/order", 1)[0]
			doubtful := w.enqueue("doubtful", test.tool)
			w.enqueue("rejected", "shop/order")
			store := w.store
			worker, rows := w.claim(store)
			w.batch(store, worker, settling(rows, dispatch.Ambiguous, dispatch.Rejected))
			for range 3 {
				w.advance()
			}
			fault.Injected(t, 56, stored[int](w, `SELECT count(*) FROM outbox.status WHERE status = 'unknown'`))
			w.assertSaga("begun")
			w.assertStatuses("completed", "unknown", "failed")
			w.assertNoUndos()
			test.tell(w, doubtful)
			w.goBack()
			w.assertSaga("compensated")
			w.assertUndone("shop/cancel", older)
			if test.happened {
				w.assertUndone(test.undo, doubtful)
				w.assertStatuses("compensated", "compensated", "failed")
				return
			}
			w.assertUndone(test.undo)
			w.assertStatuses("compensated", "failed", "failed")
		})
	}
}

func (w *world) assertNoUndos() {
	w.t.Helper()
	if undos := stored[int](w, `SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`); undos != 0 {
		w.t.Errorf("there are %d undos, want none yet", undos)
	}
}

func TestAStepInFlightIsWaitedForAndUndoneFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	older := w.completed("shop/order", 1)[0]
	flying := w.enqueue("flying", "shop/order")
	store := w.store
	worker, rows := w.claim(store)
	w.rejected()
	w.advance()
	w.assertNoUndos()
	settle := settling(rows, dispatch.Completed)
	settle.Settle[0].Result.Response = []byte(`{"id": "eff_flying"}`)
	w.batch(store, worker, settle)
	w.goBack()
	w.assertSaga("compensated")
	w.assertUndone("shop/cancel", flying, older)
}

// The step that was enqueued first may complete last, and then it may build on the steps after it.
func TestUndosGoByCompletionAndNotByEnqueueing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := w.enqueue("slow", "shop/order")
	store := w.store
	worker, rows := w.claim(store)
	quick := w.completed("shop/order", 1)[0]
	settle := settling(rows, dispatch.Completed)
	settle.Settle[0].Result.Response = []byte(`{"id": "eff_slow"}`)
	w.batch(store, worker, settle)
	w.rejected()
	w.goBack()
	w.assertSaga("compensated")
	w.assertUndone("shop/cancel", slow, quick)
}

// A database that lost its newest WAL, or was restored, uses ids again. The provider still knows the key of an undo that
// was sent to it before.
func TestTheKeyOfAnUndoIsOfItsStepAndNotOfItsNumber(t *testing.T) {
	t.Parallel()
	undoing := func(firstID int, step string) (id int64, key string) {
		w := newWorld(t)
		w.exec(fmt.Sprintf(`ALTER SEQUENCE outbox.intent_id_seq RESTART %d`, firstID))
		id = w.enqueue(step, "shop/order")
		w.drain()
		w.rejected()
		w.goBack()
		w.assertSaga("compensated")
		return id, w.shop.called("shop/cancel")[0]
	}
	before, sent := undoing(100, "one")
	reused, other := undoing(100, "two")
	moved, again := undoing(200, "one")
	if reused != before || moved == before {
		t.Fatalf("the steps have the ids %d, %d and %d, want the first two alike", before, reused, moved)
	}
	if other == sent {
		t.Error("another step with the id of the first is undone under its key: the provider would answer it from memory")
	}
	if again != sent {
		t.Error("the same step with another id is undone under another key: the provider would undo it twice")
	}
}

func TestWhatWaitsForItsTimeIsStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	step := w.completed("shop/order", 1)[0]
	w.exec(`SELECT outbox.enqueue('run-1', 'waiting', 'shop/order', 'order-1', '{}', now() + interval '1 hour')`)
	w.rejected()
	w.assertStatuses("completed", "pending", "failed")
	w.goBack()
	w.assertSaga("compensated")
	w.assertStatuses("compensated", "cancelled", "failed")
	w.assertUndone("shop/cancel", step)
}

// A step that may have been applied and waits for its next attempt is looked up or left to a human. It is never sent
// again.
func TestWhatMayHaveBeenAppliedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	for tool, test := range map[string]struct {
		status    string
		incidents []string
	}{
		"shop/order":   {status: "unknown", incidents: []string{"outcome_unknown"}},
		"shop/reserve": {status: "completed"},
	} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.enqueue("doubtful", tool)
			w.enqueue("rejected", "shop/order")
			store := w.store
			worker, rows := w.claim(store)
			w.batch(store, worker, settling(rows, dispatch.Ambiguous, dispatch.Rejected))
			w.advance()
			w.assertStatuses("pending", "failed") // only its lane can look it up

			// The lane waits until an earlier request can no longer arrive.
			drainertest.Eventually(t, "the lane has asked", func() bool {
				w.drain()
				return slices.Equal(w.statuses(), []string{test.status, "failed"})
			})
			if sent := len(w.shop.called(tool)); sent != 0 {
				t.Errorf("it was sent %d times more", sent)
			}
			if got := all[string](w, `SELECT kind FROM outbox.incident`); !slices.Equal(got, test.incidents) {
				t.Errorf("the incidents are %v, want %v", got, test.incidents)
			}
		})
	}
}

// The claim of such a row records it as a lookup. So if its worker dies, no other worker sends the row again.
func TestWhatMayHaveBeenAppliedIsNotSentAgainThoughItsWorkerDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue("doubtful", "shop/order")
	w.enqueue("rejected", "shop/order")
	store := w.store
	worker, rows := w.claim(store)
	w.batch(store, worker, settling(rows, dispatch.Ambiguous, dispatch.Rejected))
	dying, closed := w.claim(store)
	if len(closed) != 1 || !closed[0].Closed || closed[0].Lookup {
		t.Fatalf("%d rows were claimed, want the one that is closed", len(closed))
	}
	if asks := stored[bool](w, `SELECT true = ALL (lookups) FROM outbox.claim WHERE worker_id = $1`, dying); !asks {
		t.Error("the claim says that the row may be sent")
	}
	w.exec(`DELETE FROM outbox.worker WHERE worker_id = $1`, dying)
	w.drain()
	w.assertStatuses("unknown", "failed")
	if sent := len(w.shop.called("shop/order")); sent != 0 {
		t.Errorf("it was sent %d times more", sent)
	}
}

func TestARunThatGoesBackTakesNoFurtherStep(t *testing.T) {
	t.Parallel()
	refused := 0
	w := newWorld(t)
	known := w.completed("shop/order", 1)[0]
	w.rejected()
	for _, state := range []string{"begun", "compensated", "compensation_failed", "resolved", "cancelled"} {
		w.exec(`UPDATE outbox.saga SET state = $1`, state)
		for _, sql := range []string{
			`SELECT outbox.enqueue('run-1', 'late', 'shop/order', 'order-1', '{}')`,
			`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('run-1', 'late', 'shop/order', 'order-1', '{}')`,
		} {
			if _, err := w.db.Exec(t.Context(), sql); sqlState(err) != "OB002" {
				t.Errorf("%s, %s: %v", state, sql, err)
			}
			refused++
		}
	}
	fault.Injected(t, 55, refused)
	if again := w.enqueue("step-1", "shop/order"); again != known { // an agent's retry gets the intent of its step
		t.Errorf("the step is %d now, and was %d", again, known)
	}
	w.exec(`SELECT outbox.enqueue('run-2', 'step-1', 'shop/order', 'order-1', '{}')`)
}

func TestAStepThatSlipsInIsCancelledAndNeverSent(t *testing.T) {
	t.Parallel()
	nothing := func(*world) {}
	for name, test := range map[string]struct{ before, after func(w *world) }{
		"while the run goes back": {nothing, nothing},
		"and meets the saga":      {nothing, (*world).advance},
		"after the run went back": {(*world).goBack, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.completed("shop/order", 1)
			slipping, err := w.db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := slipping.Exec(t.Context(), `SELECT FROM outbox.saga`); err != nil { // takes the snapshot
				t.Fatal(err)
			}
			w.rejected()
			test.before(w)
			if _, err := slipping.Exec(t.Context(), `SELECT outbox.enqueue('run-1', 'late', 'shop/order', 'order-1', '{}')`); err != nil {
				t.Fatal(err)
			}
			if err := slipping.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			fault.Injected(t, 55, stored[int](w, `SELECT count(*) FROM outbox.intent WHERE step_id = 'late'`))
			test.after(w)
			w.drain()
			if w.shop.wasCalled("late") {
				t.Error("the step was sent")
			}
			if got := stored[string](w, `SELECT status FROM outbox.status WHERE step_id = 'late'`); got != "cancelled" {
				t.Errorf("the step is %s, want cancelled", got)
			}
			w.goBack()
			w.assertSaga("compensated")
		})
	}
}

// A worker that lost its row reports an effect, although the record says that there is none. A human was wrong, or the
// provider's answer to the lookup was.
func TestAnEffectThatComesLateIsAnIncident(t *testing.T) {
	t.Parallel()
	for status, tool := range map[string]string{"failed": "shop/wire", "cancelled": "shop/reserve"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			late := w.enqueue("late", tool)
			store := w.store
			worker, rows := w.claim(store)
			w.rejected()
			w.exec(`DELETE FROM outbox.worker WHERE worker_id = $1`, worker)
			w.shop.answer("shop/find", dispatch.Absent)
			w.drain()
			if status == "failed" {
				w.resolve(dispatch.StatusFailed, late)
			}
			w.goBack()
			w.assertSaga("compensated")
			w.assertStatuses(status, "failed")
			w.assertIncidents()
			for range 2 { // a lane repeats a batch until it gets a reply
				if reply := w.batch(store, worker, settling(rows, dispatch.Completed)); len(reply.Refused) != 1 {
					t.Fatal("the settlement was not refused")
				}
				fault.Injected(t, 57, 1)
			}
			w.assertStatuses("completed", "failed")
			w.assertIncidents(incident{"compensation_failed", late, "late_effect"})
			w.assertSaga("compensation_failed")
		})
	}
}

// A dead worker's undo would be made again, under a new key where an operator asks for one. It is not, once it is known
// to have happened. If an operator undid the step by hand as well, it is undone twice, and an incident tells a human.
func TestAnUndoThatIsKnownLateIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name             string
		refused, byHand  bool
		saga, stepStands string // before and after it is known
	}{
		{"it waits to be tried again", false, false, "begun", "completed"},
		{"it is on record as failed", true, false, "compensation_failed", "compensation_failed"},
		{"its step was undone by hand", true, true, "begun", "compensated"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			steps := w.completed("shop/order", 2)
			w.rejected()
			w.advance()
			store := w.store
			worker, rows := w.claim(store)
			w.exec(`DELETE FROM outbox.worker WHERE worker_id = $1`, worker)
			if test.refused {
				w.shop.answer("shop/cancel", dispatch.Rejected)
				w.drain()
			} else {
				judge := func(row *drainer.Row) (drainer.Settlement, bool) {
					return ended(row, dispatch.Result{Outcome: dispatch.Lost}), true
				}
				if lost, err := store.Reap(t.Context(), []string{"shop"}, judge); err != nil || len(lost) != 1 {
					t.Fatalf("%d rows were taken for lost, %v", len(lost), err)
				}
			}
			if test.byHand {
				w.retry(steps[1:], false)
			}
			w.assertSaga(test.saga)
			made := len(w.shop.called("shop/cancel"))
			for range 2 { // a lane repeats a batch until it gets a reply
				w.batch(store, worker, settling(rows, dispatch.Completed))
			}
			w.assertSaga(test.saga)
			w.assertStatuses("completed", test.stepStands, "failed")
			if test.refused {
				w.assertIncidents(incident{"compensation_failed", steps[1], "late_effect"})
			} else {
				w.assertIncidents()
			}
			if test.saga == "compensation_failed" {
				w.retry(nil, true)
			}
			w.shop.answer("shop/cancel", dispatch.Completed)
			w.goBack()
			w.assertSaga("compensated")
			w.assertStatuses("compensated", "compensated", "failed")
			if again := len(w.shop.called("shop/cancel")) - made; again != 1 {
				t.Errorf("%d undos were made after it was known, want that of the older step", again)
			}
		})
	}
}

// An operator can be quicker than the undo's own settlement. Then no process has recorded that the step is undone, so
// the pass does.
func TestAnUndoThatNobodyWroteDownIsWrittenDownByThePass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	older := w.completed("shop/order", 1)[0]
	newest := w.enqueue("step-2", "shop/transfer")
	w.drain()
	w.rejected()
	w.advance()
	store := w.store
	worker, rows := w.claim(store)
	w.batch(store, worker, settling(rows, dispatch.Ambiguous)) // the undo is to be looked up
	w.advance()
	w.resolve(dispatch.StatusCompleted, w.undoOf(newest))
	w.assertStatuses("completed", "completed", "failed")
	w.goBack()
	w.assertSaga("compensated")
	w.assertStatuses("compensated", "compensated", "failed")
	w.assertUndone("shop/cancel", older)
}

// A lane that got no reply settles again. That moves a saga only once, and a row that another settlement ended moves no
// saga at all.
func TestARefusedSettlementMovesNoSaga(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	step := w.enqueue("step-1", "shop/order")
	store := w.store
	worker, rows := w.claim(store)
	w.batch(store, worker, drainer.Batch{Settle: settling(rows, dispatch.Completed).Settle})
	w.batch(store, worker, settling(rows, dispatch.Rejected))
	if sagas := stored[int](w, `SELECT count(*) FROM outbox.saga`); sagas != 0 {
		t.Error("a refused settlement began a saga")
	}
	w.exec(`UPDATE outbox.attempt SET response = '{"id": "eff_1"}' WHERE intent_id = $1`, step)
	w.rejected()
	w.advance()
	worker, rows = w.claim(store)
	w.batch(store, worker, drainer.Batch{Settle: settling(rows, dispatch.Completed).Settle})
	w.batch(store, worker, settling(rows, dispatch.Rejected))
	w.assertSaga("compensated")
	w.assertStatuses("compensated", "failed")
	w.assertIncidents()
}

// A step that was refunded by hand must not be refunded again, and must not keep older steps from being undone.
func TestASagaGoesOnBeyondAStepThatWasUndoneByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	steps := w.completed("shop/order", 2)
	w.rejected()
	w.shop.answer("shop/cancel", dispatch.Rejected)
	w.goBack()
	w.assertSaga("compensation_failed")

	w.retry(steps[1:], false)
	w.shop.answer("shop/cancel", dispatch.Completed)
	w.goBack()
	w.assertSaga("compensated")
	w.assertStatuses("compensated", "compensated", "failed")
	w.assertUndone("shop/cancel", steps[1], steps[0])
	w.assertIncidents()
}

func TestASagaGoesByThePoliciesThatAreInForceAtItsPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.completed("shop/order", 1)
	w.rejected()
	other := maps.Clone(tools)
	other["order"] = keyed(dispatch.Reversal{Tool: "shop/cancel", Payload: "{reason: \"reloaded\"}"})
	use, err := w.saga.Prepare(compensations.Policies{"shop": other})
	if err != nil {
		t.Fatal(err)
	}
	use()
	w.goBack()
	w.assertSaga("compensated")
	if undo := w.shop.calls[len(w.shop.calls)-1]; string(undo.Payload) != `{"reason": "reloaded"}` {
		t.Errorf("the undo's payload is %s, want that of the newer policies", undo.Payload)
	}
}

func TestPoliciesThatAreOnlyPreparedOrDoNotCompileChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.completed("shop/order", 1)
	w.rejected()
	if _, err := w.saga.Prepare(nil); err != nil {
		t.Fatal(err)
	}
	broken := compensations.Policies{"shop": {"order": keyed(dispatch.Reversal{Tool: "shop/cancel", Payload: "{"})}}
	if _, err := w.saga.Prepare(broken); err == nil {
		t.Error("a payload that does not compile was taken")
	}
	w.goBack()
	w.assertSaga("compensated")
}

// An undo could not record its end at a step that was deleted.
func TestAStepThatIsBeingPrunedIsNotUndone(t *testing.T) {
	t.Parallel()
	db := drainertest.Connect(t, drainertest.Database(t))
	for _, statement := range []string{
		`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
		 VALUES ('run', 'step', 'sim/act', 'scope', '{}', now() - interval '100 days')`,
		`INSERT INTO outbox.attempt (intent_id, attempt, worker, finished_at, outcome, status)
		 SELECT id, 1, 'w', now() - interval '100 days', 'completed', 'completed' FROM outbox.intent`,
		`DELETE FROM outbox.queue`,
	} {
		if _, err := db.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	undoable := compensations.Policies{"sim": {"act": dispatch.Policy{Reversal: dispatch.Reversal{Tool: "sim/undo"}}}}
	saga, err := compensations.New(db, undoable, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}

	pruning := drainertest.Begin(t, db)
	drainertest.Exec(t, pruning, `SELECT outbox.prune(0, 10, 7776000)`)
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.saga (agent_run_id) VALUES ('run')`); err != nil {
		t.Fatal(err)
	}
	advanced := make(chan error, 1)
	go func() { advanced <- saga.Advance(t.Context(), "run") }()
	drainertest.AwaitBlocked(t, db)
	if err := pruning.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-advanced; err != nil {
		t.Fatal(err)
	}
	drainertest.AssertInvariant(t, db)
	var undos int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.intent`).Scan(&undos); err != nil || undos != 0 {
		t.Errorf("%d undos of a step that is gone (%v)", undos, err)
	}
}

// A pass that fails is repeated, so with a payload that an undo cannot repeat, the saga would never end.
func TestAnUndoRepeatsAnyPayloadThatAnAgentCanEnqueue(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{`null`, `"text"`, `0`, `[]`, `{"a": "<&>\u2028"}`, `1e131071`} {
		t.Run(payload, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.finished(1, 2, `'`+payload+`'`)
			w.goBack()
			w.assertSaga("compensated")
			if repeated := stored[int](w, `SELECT count(*) FROM outbox.intent u JOIN outbox.intent i ON i.id = u.compensates AND i.payload = u.payload`); repeated != 2 {
				t.Errorf("%d undos have the payload of their step, want 2", repeated)
			}
		})
	}
}

// An INSERT accepts a deeper payload than a longer statement does, because the longer statement has less stack left.
func TestAnUndoRepeatsAPayloadThatIsNestedAsDeepAsPostgresReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deepest, tooDeep := 1000, 100_000
	for tooDeep-deepest > 1 {
		depth := (deepest + tooDeep) / 2
		_, err := w.db.Exec(t.Context(), `SELECT FROM outbox.enqueue('run-' || $1::text, 'step', 'shop/reserve', 'order-1', $2)`,
			strconv.Itoa(depth), strings.Repeat("[", depth)+strings.Repeat("]", depth))
		if err == nil {
			deepest = depth
		} else if tooDeep = depth; sqlState(err) != "54001" {
			t.Fatal(err)
		}
	}
	w.drain()
	run := "run-" + strconv.Itoa(deepest)
	w.exec(`INSERT INTO outbox.saga (agent_run_id) VALUES ($1)`, run)
	if err := w.saga.Advance(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if undos := w.undos(); len(undos) != 1 {
		t.Errorf("the undos are of the steps %v, want one", undos)
	}
}

// The operator decides before there is a saga, and commits after a pass has begun to read the run.
func TestAResolutionThatHasNotSeenTheSagaIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := w.store
	w.completed("shop/hold", 1)
	found := w.enqueue("found", "shop/hold")
	worker, rows := w.claim(store)
	dead := settling(rows, dispatch.Rejected)
	dead.Settle[0].BeginsSaga = false
	w.batch(store, worker, dead)

	w.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('refused_intent', $1, 'run-1')`, found)
	slow := drainertest.Begin(t, w.db) // blocks the operator's statement
	drainertest.Exec(t, slow, `SELECT FROM outbox.incident FOR UPDATE`)
	resolving := make(chan struct{})
	go func() {
		defer close(resolving)
		conn, err := pgx.Connect(t.Context(), w.url)
		if err != nil {
			t.Error(err)
			return
		}
		console := operator.Open(conn)
		defer console.Close(t.Context())
		by := operator.Signature{Operator: "ann", Reason: "asked the shop"}
		if _, err := console.Change(t.Context(), operator.Resolve{As: dispatch.StatusCompleted}, by, []int64{found}); err != nil {
			t.Error(err)
		}
	}()
	drainertest.AwaitBlocked(t, w.db)
	w.rejected()
	advanced := make(chan error, 1)
	go func() { advanced <- w.saga.Advance(t.Context(), "run-1") }()
	drainertest.Eventually(t, "the pass waits, or has planned", func() bool {
		return stored[bool](w, `SELECT (SELECT plan IS NOT NULL FROM outbox.saga)
			OR (SELECT count(*) > 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
	})
	if err := slow.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-resolving
	if err := <-advanced; err != nil {
		t.Fatal(err)
	}
	w.drain()
	w.goBack()
	w.assertStatuses("compensated", "compensated", "failed")
}

// Each evaluation takes long, and all of them together take longer than a pass may.
// The test runs alone in its package: a pass has a deadline, and the race detector and other tests leave an
// expression a tenth of a processor. On a machine that has other work, too, one of five passes moves some sagas.
func TestSlowExpressionsOfManyRunsKeepNoPassFromMovingSome(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	const runs = 500
	w := newWorld(t)
	w.finished(runs, 1, `(SELECT jsonb_build_object('a', jsonb_agg(n), 'b', jsonb_agg(-n)) FROM generate_series(1, 1500) n)`)
	slow := compensations.Policies{"shop": {
		"reserve": keyed(dispatch.Reversal{Tool: "shop/release", Payload: "{n: (.payload.a - .payload.b | length)}"}),
		"release": keyed(dispatch.Reversal{None: true}),
	}}
	saga, err := compensations.New(w.db, slow, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	fault.Injected(t, 74, runs)
	left := runs
	for pass := 0; pass < 5 && left == runs; pass++ {
		err = saga.Advance(t.Context())
		left = stored[int](w, `SELECT count(*) FROM outbox.saga WHERE moves_at <= now() AND state = 'begun'`)
	}
	if left == runs {
		t.Errorf("passes over %d runs moved none (%.200v)", runs, err)
	}
}

var charge = compensations.Effect{
	Tuple:       dispatch.Tuple{AgentRunID: "run-001", StepID: "step-1", ToolName: "stripe/create_charge", BusinessScope: "invoice_442"},
	Payload:     json.RawMessage(`{"amount": 10.10,  "order": 12345678901234567890, "note": null}`),
	Response:    json.RawMessage(`{"id": "ch_1", "account": 98765432109876543210, "lines": [{"id": 1}, {"id": 2}]}`),
	ProviderRef: "ch_1",
}

func TestAnUndoIsMadeOfWhatTheStepLeftBehind(t *testing.T) {
	t.Parallel()
	unanswered := charge
	unanswered.Response, unanswered.ProviderRef = nil, ""
	answeredNull := charge
	answeredNull.Response = json.RawMessage("null")
	listed := charge
	listed.Payload = json.RawMessage(`[1]`)
	for _, test := range []struct {
		source string
		effect compensations.Effect
		want   string
	}{
		{"", charge, string(charge.Payload)},
		{"", listed, "[1]"},
		{"{charge: .response.id}", charge, `{"charge":"ch_1"}`},
		{"{charge: .provider_ref, amount: .payload.amount}", charge, `{"amount":10.10,"charge":"ch_1"}`},
		{"{order: .payload.order, account: .response.account}", charge, `{"account":98765432109876543210,"order":12345678901234567890}`},
		{"{next: (.payload.order + 1)}", charge, `{"next":12345678901234567891}`},
		{"{key, agent_run_id, step_id, tool_name, business_scope}", charge, `{"agent_run_id":"run-001","business_scope":"invoice_442","key":"` +
			charge.Tuple.IdempotencyKey() + `","step_id":"step-1","tool_name":"stripe/create_charge"}`},
		{"{lines: [.response.lines[].id]}", charge, `{"lines":[1,2]}`},
		{"{deep: {note: .payload.note}}", charge, `{"deep":{"note":null}}`},
		{".payload | map_values(values)", charge, `{"amount":10.10,"order":12345678901234567890}`},
		{"{charge: (.response.id // .payload.order)}", unanswered, `{"charge":12345678901234567890}`},
		{"{charge: (.response.id // .key)}", answeredNull, `{"charge":"` + charge.Tuple.IdempotencyKey() + `"}`},
		{"{}", unanswered, "{}"},
	} {
		got, err := compile(t, test.source).Payload(t.Context(), test.effect)
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %s, %v, want %s", test.source, got, err, test.want)
		}
	}
}

func TestAnUndoOfNothingIsNone(t *testing.T) {
	t.Parallel()
	unanswered := charge
	unanswered.Response, unanswered.ProviderRef = nil, ""
	unreadable := charge
	unreadable.Response = json.RawMessage(`{"id": `)
	for _, test := range []struct {
		source string
		effect compensations.Effect
		want   compensations.MappingError
	}{
		{"null", charge, compensations.ErrNoObject},
		{".response", unanswered, compensations.ErrNoObject},
		{".response.gone", charge, compensations.ErrNoObject},
		{".response.id", charge, compensations.ErrNoObject},
		{"[.response.id]", charge, compensations.ErrNoObject},
		{"{charge: .response.id}", unanswered, compensations.ErrIncomplete},
		{"{charge: .provider_ref}", unanswered, compensations.ErrIncomplete},
		{"{charge: .response.charge}", charge, compensations.ErrIncomplete},
		{".payload", charge, compensations.ErrIncomplete},
		{"empty", charge, compensations.ErrMapping},
		{"{id: .response.lines[].id}", charge, compensations.ErrMapping},
		{"{charge: (.response.charge // error)}", charge, compensations.ErrMapping},
		{".response.id | {charge: .id}", charge, compensations.ErrMapping},
		{"{charge: .response.id}", unreadable, compensations.ErrMapping},
	} {
		got, err := compile(t, test.source).Payload(t.Context(), test.effect)
		if err != test.want || got != nil { //nolint:errorlint // it is not wrapped
			t.Errorf("%s: got %s, %v, want %v", test.source, got, err, test.want)
		}
	}
}

func TestAnUndoThatCannotBeStoredIsNone(t *testing.T) {
	t.Parallel()
	for _, source := range []string{
		`{a: "\u0000"}`,
		`{"\u0000": 1}`,
		`{a: nan}`,
		`{a: [infinite]}`,
		`{a: ("1e400000" | fromjson)}`,
		`{a: ("1E-400000" | fromjson)}`,
		`{a: ("x" * 1048570)}`,
		`{a: reduce range(600) as $i (1; [.])}`,
		`{a: reduce range(200) as $i (1; [., .])}`,
		`{a: ("1" * 1001 | fromjson)}`,
		`{a: reduce range(120) as $i (1; . * 1000000000)}`,
		`{a: [range(1100) | "1" * 1000 | fromjson]}`,
	} {
		got, err := compile(t, source).Payload(t.Context(), charge)
		if !errors.Is(err, compensations.ErrUnstorable) || got != nil {
			t.Errorf("%s: got %d octets, %v", source, len(got), err)
		}
	}
}

func TestASlowExpressionIsGivenUp(t *testing.T) {
	t.Parallel()
	if _, err := compile(t, "def f: f; f").Payload(t.Context(), charge); !errors.Is(err, compensations.ErrSlow) {
		t.Errorf("got %v", err)
	}
}

// An evaluation that is cut short must be repeated, not given up.
func TestAnEndedContextIsNoFaultOfTheExpression(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := compile(t, "def f: f; f").Payload(ctx, charge)
	var refused compensations.MappingError
	if !errors.Is(err, context.Canceled) || errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
}

func TestAMappingErrorRepeatsNothing(t *testing.T) {
	t.Parallel()
	secret := charge
	secret.Payload = json.RawMessage(`{"card": "4242424242424242"}`)
	for _, source := range []string{".payload | error", ".payload.card | keys", ".payload.card", ".payload.card | halt_error"} {
		_, err := compile(t, source).Payload(t.Context(), secret)
		if err == nil || strings.Contains(err.Error(), "4242") {
			t.Errorf("%s: got %v", source, err)
		}
	}
}

func TestAMappingIsSharedByManySagas(t *testing.T) {
	t.Parallel()
	mapping := compile(t, "{order: .payload.order, lines: [.response.lines[].id]}")
	var sagas sync.WaitGroup
	for range 8 {
		sagas.Go(func() {
			for range 50 {
				got, err := mapping.Payload(t.Context(), charge)
				if err != nil || string(got) != `{"lines":[1,2],"order":12345678901234567890}` {
					t.Errorf("got %s, %v", got, err)
					return
				}
			}
		})
	}
	sagas.Wait()
}

func TestAMappingMustCompile(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"{charge: .response.id", "{at: now}", "{home: input}"} {
		if _, err := compensations.CompileMapping(source); err == nil || !strings.HasPrefix(err.Error(), "payload of an undo: ") {
			t.Errorf("%s: got %v", source, err)
		}
	}
}

func compile(t *testing.T, source string) *compensations.Mapping {
	t.Helper()
	mapping, err := compensations.CompileMapping(source)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	return mapping
}

func TestAnExpressionSeesJustWhatConfigurationsMayRead(t *testing.T) {
	t.Parallel()
	mapping, err := compensations.CompileMapping("{names: keys}")
	if err != nil {
		t.Fatal(err)
	}
	payload, err := mapping.Payload(t.Context(), charge)
	var seen struct{ Names []string }
	if err := errors.Join(err, json.Unmarshal(payload, &seen)); err != nil {
		t.Fatal(err)
	}
	if want := slices.Sorted(slices.Values(dispatch.ReversalInput)); !slices.Equal(seen.Names, want) {
		t.Errorf("it sees %q, want %q", seen.Names, want)
	}
}

func TestAPassThatFailsChangesNothingAndIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fails         string
		breaks, mends string
	}{
		{"take sagas", `ALTER TABLE outbox.saga RENAME cause TO away`, `ALTER TABLE outbox.saga RENAME away TO cause`},
		{"stop what waits", `ALTER TABLE outbox.queue RENAME TO away`, `ALTER TABLE outbox.away RENAME TO queue`},
		{"read the next steps", `ALTER VIEW outbox.standing RENAME TO away`, `ALTER VIEW outbox.away RENAME TO standing`},
		{"hold the steps", `ALTER FUNCTION outbox.hold RENAME TO away`, `ALTER FUNCTION outbox.away RENAME TO hold`},
		{"move sagas", `ALTER TABLE outbox.intent RENAME headers TO away`, `ALTER TABLE outbox.intent RENAME away TO headers`},
	} {
		t.Run(test.fails, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.completed("shop/order", 1)
			w.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour' WHERE intent_id = $1`, w.enqueue("waiting", "shop/find"))
			w.rejected()
			w.exec(test.breaks)
			if err := w.saga.Advance(t.Context(), "run-1"); err == nil || !strings.Contains(err.Error(), test.fails+": ") {
				t.Errorf("it says %v, want that it could not %s", err, test.fails)
			}
			w.exec(test.mends)
			w.assertSaga("begun")
			w.goBack()
			w.assertSaga("compensated")
		})
	}
}

// The sweeps of all processes may hang, so River's jobs make passes, too. A job that could take no saga must fail.
func TestRiverPassesOverSagasWhereNoSweepDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	step := w.completed("shop/order", 1)[0]
	w.rejected()
	w.exec(`ALTER TABLE outbox.saga RENAME cause TO away`)
	pool, err := jobs.OpenPool(t.Context(), pgpool.At(w.url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	runner, err := jobs.New(pool, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), w.saga)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(ctx) }()
	w.await("a look has failed", `SELECT count(*) FROM outbox.river_job WHERE kind = 'saga_look' AND state = 'discarded'`)
	if count := stored[int](w, `SELECT count(*) FROM outbox.river_job WHERE kind = 'saga_look' AND state = 'completed'`); count > 0 {
		t.Errorf("%d looks ended well, and no pass did", count)
	}
	w.exec(`ALTER TABLE outbox.saga RENAME away TO cause`)
	w.await("the step is being undone", `SELECT count(*) FROM outbox.intent WHERE compensates = $1`, step)
	w.await("a look ended well", `SELECT count(*) FROM outbox.river_job WHERE kind = 'saga_look' AND state = 'completed'`)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	w.goBack()
	w.assertSaga("compensated")
}

// A process that stops in the middle of a slow mapping does not know whether the mapping is wrong.
func TestAPayloadThatIsCutOffFailsNoSaga(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.completed("shop/order", 1)
	w.rejected()
	endless := compensations.Policies{"shop": {"order": keyed(dispatch.Reversal{Tool: "shop/cancel", Payload: "last(repeat(1))"})}}
	use, err := w.saga.Prepare(endless)
	if err != nil {
		t.Fatal(err)
	}
	use()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	for range 100 { // one of them runs at a time, so the pass waits beyond its deadline
		others := compile(t, "last(repeat(1))")
		go func() { _, _ = others.Payload(ctx, charge) }()
	}
	if err := w.saga.Advance(ctx, "run-1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it says %v, want that the time was up", err)
	}
	w.assertSaga("begun")
	w.assertIncidents()
}

func TestASagaOfAnUnknownToolWaitsAndSaysSoOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	step := w.completed("shop/order", 1)[0]
	w.rejected()
	var said strings.Builder
	saga, err := compensations.New(w.db, nil, slog.New(slog.NewTextHandler(&said, nil)), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := saga.Advance(t.Context(), "run-1"); err != nil {
			t.Fatal(err)
		}
	}
	w.assertSaga("begun")
	if lines := strings.Count(said.String(), "\n"); lines != 1 || !strings.Contains(said.String(), "a saga waits for a process that knows a tool") {
		t.Errorf("in 3 passes over step %d it says\n%s", step, said.String())
	}
	w.goBack() // this process knows the tool
	w.assertSaga("compensated")
}

func TestAReversalThatDoesNotCompileIsRefusedByItsTool(t *testing.T) {
	t.Parallel()
	broken := compensations.Policies{"shop": {"order": keyed(dispatch.Reversal{Tool: "shop/cancel", Payload: "{"})}}
	_, err := compensations.New(nil, broken, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err == nil || !strings.HasPrefix(err.Error(), "shop/order: payload of an undo: ") {
		t.Errorf("it says %v", err)
	}
}

func TestARunWithoutASagaIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.completed("shop/order", 1)
	w.enqueue("waiting", "shop/order")
	w.advance()
	w.assertStatuses("completed", "pending")
}
