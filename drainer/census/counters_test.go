package census

import "testing"

// repeat enqueues what is there, long enough ago for its commit to be seen by all.
func (o *outbox) repeat(times int) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.duplicate (intent_id, seen_at) SELECT 1, now() - interval '6 seconds' FROM generate_series(1, $1)`, times)
}

func (o *outbox) collide() {
	o.t.Helper()
	if _, err := o.db.Exec(o.t.Context(), `SELECT outbox.enqueue('run', '0', 'sim/act', 'scope', '{"another": 1}')`); err == nil {
		o.t.Fatal("a collision was not refused")
	}
}

func newCounted(t *testing.T) *outbox {
	t.Helper()
	o := newOutbox(t)
	o.exec(`UPDATE outbox.census SET counted_until = now() - interval '1 minute'`)
	o.enqueue("run", "sim/act", 0, 1)
	return o
}

func TestCountersAreThereAtZeroOnEveryProcess(t *testing.T) {
	t.Parallel()
	newOutbox(t).process(sim).assertShows(map[string]float64{
		"duplicates_total sim": 0, "duplicates_total unconfigured": 0,
		"idempotency_key_collisions_total sim": 0, "idempotency_key_collisions_total unconfigured": 0,
	})
}

func TestNothingIsCountedBeforeSomebodyHasReadTheZero(t *testing.T) {
	t.Parallel()
	o := newCounted(t)
	o.repeat(3)
	o.collide()
	p := o.process(sim)
	p.count()
	p.assertShows(map[string]float64{"duplicates_total sim": 0, "idempotency_key_collisions_total sim": 0})
	p.count()
	p.assertShows(map[string]float64{"duplicates_total sim": 3, "idempotency_key_collisions_total sim": 1})
}

func TestASuccessorCountsOnFromWhereTheLeaderWas(t *testing.T) {
	t.Parallel()
	o := newCounted(t)
	first, second := o.process(sim), o.process(sim)
	first.shown()
	second.shown()
	o.repeat(3)
	o.collide()
	first.count()
	o.expire()
	second.count()
	o.exec(`UPDATE outbox.census SET counted_until = counted_until - interval '1 second'`) // as if it were a second later
	o.exec(`DELETE FROM outbox.duplicate`)
	o.exec(`INSERT INTO outbox.duplicate (intent_id, seen_at) SELECT 1, counted_until + interval '1 millisecond' FROM outbox.census`)
	o.collide()
	second.count()
	first.assertShows(map[string]float64{"duplicates_total sim": 3, "idempotency_key_collisions_total sim": 1})
	second.assertShows(map[string]float64{"duplicates_total sim": 1, "idempotency_key_collisions_total sim": 1})
}

func TestALeaderThatWasReplacedMeanwhileCountsNothing(t *testing.T) {
	t.Parallel()
	o := newCounted(t)
	slow, heir := o.process(sim), o.process(sim)
	slow.shown()
	heir.shown()
	o.repeat(2)
	window, leads, err := slow.store.lead(t.Context())
	if err != nil || !leads {
		t.Fatal(leads, err)
	}
	o.expire()
	heir.count()
	if err := slow.sample(t.Context(), window); err == nil {
		t.Error("it counts what another one has counted")
	}
	slow.assertShows(map[string]float64{"duplicates_total sim": 0})
	heir.assertShows(map[string]float64{"duplicates_total sim": 2})
}
