package postgres_test

import (
	"testing"
	"time"
)

// A turn's plans are made once, here of an empty queue, and nothing tells the
// planner that it grew.
func TestAQueueThatGrewUnseenIsNotReadWhole(t *testing.T) {
	t.Parallel()
	const queued, claims, each = 20_000, 10, 10
	o := newOutbox(t)
	o.exec(`ALTER TABLE outbox.queue SET (autovacuum_enabled = off)`)
	worker := o.join()
	o.claimAgainAndAgain(worker, claims, each)
	o.enqueue("run", 0, queued)
	if claimed := o.claimAgainAndAgain(worker, claims, each); claimed != claims*each {
		t.Fatalf("claimed %d rows, want %d", claimed, claims*each)
	}
	o.Close() // the sessions tell what they read when they end
	deadline := time.Now().Add(patience)
	read := 0
	for read == 0 && time.Now().Before(deadline) {
		if err := o.db.QueryRow(t.Context(), `
			SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables
			WHERE relid = 'outbox.queue'::regclass`).Scan(&read); err != nil {
			t.Fatal(err)
		}
	}
	if read < claims*each || read > queued {
		t.Errorf("to claim %d of %d rows, %d were read", claims*each, queued, read)
	}
}

// claimAgainAndAgain looks at nothing but what it claims: the statistics count
// whoever looks.
func (o *outbox) claimAgainAndAgain(worker string, claims, each int) (claimed int) {
	o.t.Helper()
	for range claims {
		reply, err := o.Turn(o.t.Context(), worker, claimOf(each))
		if err != nil {
			o.t.Fatal(err)
		}
		claimed += len(reply.Claimed[0].Rows)
	}
	return claimed
}
