package compensations_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/integration/fault"
)

func (w *world) assertSaga(want string) {
	w.t.Helper()
	if got := stored[string](w, `SELECT state FROM outbox.saga WHERE agent_run_id = 'run-1'`); got != want {
		w.t.Errorf("the saga is %s, want %s", got, want)
	}
	ended := stored[bool](w, `SELECT ended_at IS NOT NULL FROM outbox.saga`)
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

// assertUndone compares what the shop was asked to undo with these steps, in order.
func (w *world) assertUndone(tool string, steps ...int64) {
	w.t.Helper()
	var want []string
	for _, step := range steps {
		want = append(want, undoKey(step, tool))
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

// Several processes, each with several jobs of the same run.
func TestARunIsUndoneInReverseOnceHoweverManyTakeItBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	steps := w.completed("shop/order", 4)
	w.rejected()
	other := newSaga(t, connect(t, w.url))
	for len(w.shop.called("shop/cancel")) < len(steps) {
		before := len(w.shop.called("shop/cancel"))
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
		w.drain()
		if now := len(w.shop.called("shop/cancel")); now != before+1 {
			t.Fatalf("%d undos were sent after %d, want one at a time", now, before)
		}
		if undone := stored[int](w, `SELECT count(*) FROM outbox.status WHERE status = 'compensated'`); undone != before+1 {
			t.Errorf("%d steps are compensated with the commit of undo %d", undone, before+1)
		}
	}
	w.advance()
	w.assertSaga("compensated")
	w.assertUndone("shop/cancel", steps[3], steps[2], steps[1], steps[0])
	w.assertStatuses("compensated", "compensated", "compensated", "compensated", "failed")
	w.assertIncidents()
	w.advance() // and once it has ended, nothing more happens
	w.assertUndone("shop/cancel", steps[3], steps[2], steps[1], steps[0])
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

// A lookup may find the effect; else a human says whether there was one.
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
			store := w.open()
			worker, rows := w.claim(store)
			w.turn(store, worker, settling(rows, dispatch.Ambiguous, dispatch.Rejected))
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
	store := w.open()
	worker, rows := w.claim(store)
	w.rejected()
	w.advance()
	w.assertNoUndos()
	settle := settling(rows, dispatch.Completed)
	settle.Settle[0].Result.Response = []byte(`{"id": "eff_flying"}`)
	w.turn(store, worker, settle)
	w.goBack()
	w.assertSaga("compensated")
	w.assertUndone("shop/cancel", flying, older)
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

// What may have been applied and waits for its next attempt is looked up, or
// left to a human, and never sent again.
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
			store := w.open()
			worker, rows := w.claim(store)
			w.turn(store, worker, settling(rows, dispatch.Ambiguous, dispatch.Rejected))
			w.advance()
			w.assertStatuses("pending", "failed") // only its lane can ask
			w.drain()
			w.assertStatuses(test.status, "failed")
			if sent := len(w.shop.called(tool)); sent != 0 {
				t.Errorf("it was sent %d times more", sent)
			}
			if got := all[string](w, `SELECT kind FROM outbox.incident`); !slices.Equal(got, test.incidents) {
				t.Errorf("the incidents are %v, want %v", got, test.incidents)
			}
		})
	}
}

// A claimed row of such a run is on record as a question: if its worker dies,
// nobody takes it for one that may be sent again.
func TestWhatMayHaveBeenAppliedIsNotSentAgainThoughItsWorkerDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue("doubtful", "shop/order")
	w.enqueue("rejected", "shop/order")
	store := w.open()
	worker, rows := w.claim(store)
	w.turn(store, worker, settling(rows, dispatch.Ambiguous, dispatch.Rejected))
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
	if again := w.enqueue("step-1", "shop/order"); again != known { // an agent's retry learns where its step stands
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

// A worker that lost its row comes back with an effect that is on record as
// none: a human was wrong, or the provider when it was asked.
func TestAnEffectThatComesLateIsAnIncident(t *testing.T) {
	t.Parallel()
	for status, tool := range map[string]string{"failed": "shop/wire", "cancelled": "shop/reserve"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			late := w.enqueue("late", tool)
			store := w.open()
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
			for range 2 { // a lane repeats itself until the database has heard it
				if reply := w.turn(store, worker, settling(rows, dispatch.Completed)); len(reply.Refused) != 1 {
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

// An operator can be quicker than the undo's own settlement; then nobody has
// written down that the step is undone.
func TestAnUndoThatNobodyWroteDownIsWrittenDownByThePass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	older := w.completed("shop/order", 1)[0]
	newest := w.enqueue("step-2", "shop/transfer")
	w.drain()
	w.rejected()
	w.advance()
	store := w.open()
	worker, rows := w.claim(store)
	w.turn(store, worker, settling(rows, dispatch.Ambiguous)) // the undo is to be looked up
	w.advance()
	w.resolve(dispatch.StatusCompleted, w.undoOf(newest))
	w.assertStatuses("completed", "completed", "failed")
	w.goBack()
	w.assertSaga("compensated")
	w.assertStatuses("compensated", "compensated", "failed")
	w.assertUndone("shop/cancel", older)
}

// A lane that did not hear the reply settles again; it moves nothing twice, and
// a row that another settlement ended moves nothing at all.
func TestARefusedSettlementMovesNoSaga(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	step := w.enqueue("step-1", "shop/order")
	store := w.open()
	worker, rows := w.claim(store)
	w.turn(store, worker, drainer.Turn{Settle: settling(rows, dispatch.Completed).Settle})
	w.turn(store, worker, settling(rows, dispatch.Rejected))
	if sagas := stored[int](w, `SELECT count(*) FROM outbox.saga`); sagas != 0 {
		t.Error("a refused settlement began a saga")
	}
	w.exec(`UPDATE outbox.attempt SET response = '{"id": "eff_1"}' WHERE intent_id = $1`, step)
	w.rejected()
	w.advance()
	worker, rows = w.claim(store)
	w.turn(store, worker, drainer.Turn{Settle: settling(rows, dispatch.Completed).Settle})
	w.turn(store, worker, settling(rows, dispatch.Rejected))
	w.assertSaga("begun")
	w.assertStatuses("compensated", "failed")
	w.assertIncidents()
}
