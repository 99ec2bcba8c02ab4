package compensations_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/integration/fault"
)

// undoWaits makes a run of three steps, and claims the undo of the last one. A pass has decided the next undos ahead.
// undoWaits returns the worker and the rows of the claim.
func (w *world) undoWaits(store *postgres.Store) (worker string, rows []*drainer.Row) {
	w.t.Helper()
	w.completed("shop/order", 3)
	w.rejected()
	w.advance()
	worker, rows = w.claim(store)
	if len(rows) != 1 {
		w.t.Fatalf("%d undos wait, want one", len(rows))
	}
	return worker, rows
}

func (w *world) undos() []int64 {
	w.t.Helper()
	return all[int64](w, `SELECT compensates FROM outbox.intent WHERE compensates IS NOT NULL ORDER BY id`)
}

func TestTheCommitOfAnUndoEnqueuesTheNextAndTheLastOneEndsTheSaga(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := w.store
	worker, rows := w.undoWaits(store)
	for _, want := range []drainer.SagaNews{{Undos: 1}, {Undos: 1}, {Compensated: 1}} {
		reply := w.batch(store, worker, settling(rows, dispatch.Completed))
		if reply.Sagas != want {
			t.Errorf("the batch reported %+v, want %+v", reply.Sagas, want)
		}
		worker, rows = w.claim(store)
	}
	w.assertSaga("compensated")
	w.assertStatuses("compensated", "compensated", "compensated", "failed")
	if got := stored[string](w, `SELECT payload::text FROM outbox.intent WHERE compensates = (SELECT min(id) FROM outbox.intent)`); got != `{"order": "eff_1"}` {
		t.Errorf("the last undo has the payload %s, want that of the first step", got)
	}
	if key := stored[string](w, `SELECT idempotency_key FROM outbox.status WHERE intent_id = (SELECT max(id) FROM outbox.intent)`); key != w.undoKey(1, "shop/cancel") {
		t.Errorf("the last undo has the key %s, want that of the first step's undo", key)
	}
	w.assertIncidents()
}

// A decision ahead counts only while nothing else happened to the run. Otherwise the commit marks the saga, and a pass
// decides again.
func TestAfterNewsAPassDecidesWhatFollowsAnUndo(t *testing.T) {
	t.Parallel()
	for name, news := range map[string]func(w *world, rows []*drainer.Row){
		"what was decided is a minute old": func(w *world, _ []*drainer.Row) {
			w.exec(`UPDATE outbox.saga SET ready = (SELECT jsonb_object_agg(place, step || '{"until": 1}') FROM jsonb_each(ready) AS r (place, step))`)
		},
		"a pass is under way": func(w *world, _ []*drainer.Row) {
			w.exec(`UPDATE outbox.saga SET passes = 1`)
		},
		"the plan was taken away": func(w *world, _ []*drainer.Row) {
			w.exec(`UPDATE outbox.saga SET plan = NULL`)
		},
		"another undo than the plan's has ended": func(w *world, _ []*drainer.Row) {
			w.exec(`UPDATE outbox.saga SET place = place + 1`)
		},
		"the next undo is there already": func(w *world, _ []*drainer.Row) {
			w.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
				SELECT agent_run_id, 'compensate:by hand', 'shop/cancel', 'x', '{}', 2 FROM outbox.saga`)
			w.exec(`DELETE FROM outbox.queue`)
		},
		"the next undo breaks a constraint": func(w *world, _ []*drainer.Row) {
			w.exec(`UPDATE outbox.saga SET ready = jsonb_set(ready, '{2,tool}', to_jsonb(repeat('x', 300)))`)
		},
		"the batch settled the row before, and its reply was lost": func(w *world, rows []*drainer.Row) {
			w.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) SELECT $1, 2, 'w', 'completed', 'completed'`, rows[0].IntentID)
			rows[0].Attempt = 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			store := w.store
			worker, rows := w.undoWaits(store)
			before := len(w.undos())
			news(w, rows)
			if added := len(w.undos()) - before; added > 0 {
				before += added
			}
			reply, err := store.Commit(t.Context(), worker, settling(rows, dispatch.Completed))
			if err != nil {
				t.Fatal(err)
			}
			if want := (drainer.SagaNews{Marked: true}); reply.Sagas != want {
				t.Errorf("the batch reported %+v, want %+v", reply.Sagas, want)
			}
			if undos := w.undos(); len(undos) != before {
				t.Errorf("the undos are of the steps %v after the commit, want %d", undos, before)
			}
			w.assertSaga("begun")
			fault.Injected(t, 89, 1)
		})
	}
}

func TestASagaThatAHumanHasEndedGoesOnWithNoUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := w.store
	worker, rows := w.undoWaits(store)
	w.operateRun("resolve_saga")
	w.batch(store, worker, settling(rows, dispatch.Completed))
	if undos := w.undos(); len(undos) != 1 {
		t.Errorf("the undos are of the steps %v, want none after the first", undos)
	}
	w.assertSaga("resolved")
}

func TestAnUndoThatFailsIsFollowedByNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := w.store
	worker, rows := w.undoWaits(store)
	w.batch(store, worker, settling(rows, dispatch.Rejected))
	if undos := w.undos(); len(undos) != 1 {
		t.Errorf("the undos are of the steps %v, want none after the first", undos)
	}
	w.assertSaga("compensation_failed")
	w.assertStatuses("completed", "completed", "compensation_failed", "failed")
}

// Two undos of a run are in progress if a late effect had to be undone first.
func TestOfTwoUndosThatEndInOneBatchAFailedOneStopsTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := w.store
	worker, rows := w.undoWaits(store)
	w.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates, tenant)
		SELECT agent_run_id, 'compensate:by hand', 'shop/cancel', 'x', '{}', min(id), min(tenant) FROM outbox.intent GROUP BY 1`)
	other := w.batch(store, worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "shop", Server: "shop", Limit: 100}}}).Claimed[0].Rows
	both := settling(rows, dispatch.Completed)
	failed := settling(other, dispatch.Rejected)
	reply := w.batch(store, worker, drainer.Batch{Settle: append(both.Settle, failed.Settle...), Finish: append(both.Finish, failed.Finish...)})
	if reply.Sagas.Undos != 0 || len(w.undos()) != 2 {
		t.Errorf("%+v, and undos of the steps %v", reply.Sagas, w.undos())
	}
	w.assertSaga("compensation_failed")
}

// An undo's key has the namespace that is set when a pass or a commit enqueues the undo.
func TestANamespaceEntersTheKeysOfUndos(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := w.store
	w.completed("shop/order", 3)
	w.rejected()
	w.exec(`INSERT INTO outbox.setting VALUES ('namespace', 'shop-eu')`)
	w.advance()
	worker, rows := w.claim(store)
	w.exec(`INSERT INTO outbox.provider (name, namespace) VALUES ('shop', 'tills') ON CONFLICT (name) DO UPDATE SET namespace = 'tills'`)
	w.batch(store, worker, settling(rows, dispatch.Completed))
	want := []string{"shop-eu", "tills"}
	if got := all[string](w, `SELECT coalesce(namespace, 'none') FROM outbox.intent WHERE compensates IS NOT NULL ORDER BY id`); !slices.Equal(got, want) {
		t.Errorf("the undos have the namespaces %v, want %v", got, want)
	}
}

// ready lists the places that a pass decided ahead.
func (w *world) ready() []string {
	w.t.Helper()
	return all[string](w, `SELECT at || ' ' || coalesce(step->>'tool', 'end') FROM outbox.saga, jsonb_each(ready) AS r (at, step) ORDER BY at::int`)
}

func TestAPassDecidesAheadWhatNeedsNoOtherLook(t *testing.T) {
	t.Parallel()
	large := `'{"note": "` + strings.Repeat("x", 5000) + `"}'::jsonb`
	for name, test := range map[string]struct {
		prepare func(w *world) // the run's steps
		want    []string
	}{
		"a short run to its end": {
			prepare: func(w *world) { w.finished(1, 3, `'{}'`) },
			want:    []string{"2 shop/release", "3 shop/release", "4 end"},
		},
		"six steps of a long one": {
			prepare: func(w *world) { w.finished(1, 20, `'{}'`) },
			want: []string{
				"2 shop/release", "3 shop/release", "4 shop/release", "5 shop/release", "6 shop/release", "7 shop/release",
			},
		},
		"steps of large payloads, which their undos copy in the database": {
			prepare: func(w *world) { w.finished(1, 3, large) },
			want:    []string{"2 shop/release", "3 shop/release", "4 end"},
		},
		"not a step whose undo is made of a large response": {
			prepare: func(w *world) {
				w.finished(1, 3, `'{}'`)
				w.exec(`UPDATE outbox.intent SET tool_name = 'shop/order'`)
				w.exec(`UPDATE outbox.attempt SET response = ` + large + ` || '{"id": 7}' WHERE intent_id < 3`)
				w.exec(`UPDATE outbox.attempt SET response = '{"id": 7}' WHERE intent_id = 3`)
			},
		},
		"not the end of a run that lost a step to pruning": {
			prepare: func(w *world) {
				w.finished(1, 2, `'{}'`)
				w.exec(`INSERT INTO outbox.forgotten (agent_run_id) VALUES ('run-1')`)
			},
			want: []string{"2 shop/release"},
		},
		"not beyond a step that a human must undo": {
			prepare: func(w *world) {
				w.finished(1, 3, `'{}'`)
				w.exec(`UPDATE outbox.intent SET tool_name = 'shop/ship' WHERE step_id = 'step-1'`)
			},
			want: []string{"2 shop/release"},
		},
		"not beyond a step whose window is over": {
			prepare: func(w *world) {
				w.finished(1, 3, `'{}'`)
				w.exec(`UPDATE outbox.intent SET tool_name = 'shop/hold' WHERE step_id = 'step-2'`)
				w.exec(`UPDATE outbox.attempt SET started_at = now() - interval '2 hours' WHERE intent_id = 2`)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			test.prepare(w)
			w.advance()
			if got := w.ready(); !slices.Equal(got, test.want) {
				t.Errorf("decided ahead: %q, want %q", got, test.want)
			}
		})
	}
}

// A step's window counts when its undo is enqueued, not when it was decided.
func TestWhatIsDecidedAheadCountsUntilTheWindowEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.finished(1, 2, `'{}'`)
	w.exec(`UPDATE outbox.intent SET tool_name = 'shop/hold'`)
	w.exec(`UPDATE outbox.attempt SET started_at = now() - interval '3590 seconds' WHERE intent_id = 1`)
	w.advance()
	left := stored[float64](w, `SELECT (ready->'2'->>'until')::float8 - extract(epoch FROM begun_at)::float8 FROM outbox.saga`)
	if left > (20 * time.Second).Seconds() {
		t.Errorf("the undo of a step whose window ends in ten seconds counts for %.1f s", left)
	}
}

func (w *world) operateRun(action string) {
	w.t.Helper()
	w.exec(`SELECT outbox.operate_run('run-1', $1, 'operator:ann', 'asked the shop')`, action)
}
