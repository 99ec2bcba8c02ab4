package postgres_test

import (
	"slices"
	"testing"
)

// What was claimed after a run was closed needs no telling: the claim heeded it.
func TestAWorkerIsToldOfRunsThatWereClosedAfterItClaimed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	holder, idler := o.join(), o.join()
	o.exec(`INSERT INTO outbox.saga (agent_run_id, state, begun_at) VALUES ('long ago', 'cancelled', now() - interval '1 hour')`)
	o.enqueue("run", 0, 1)
	o.claim(holder, 1)
	o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('run', 'cancelled'), ('failed', 'begun')`)

	for worker, want := range map[string][]string{holder: {"failed", "run"}, idler: nil} {
		closed, err := o.Closed(t.Context(), worker)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(closed)
		if !slices.Equal(closed, want) {
			t.Errorf("it was told of %q, want %q", closed, want)
		}
	}
}
