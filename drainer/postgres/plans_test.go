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
	if read := o.read("outbox.queue", claims*each); read > queued {
		t.Errorf("to claim %d of %d rows, %d were read", claims*each, queued, read)
	}
}

// claim.sql has a limit of its own, for the planner's sake.
func TestTheLargestLaneClaimsAllItHasRoomForAtOnce(t *testing.T) {
	t.Parallel()
	const concurrency, prefetched = 10_000, 1_750 // the most that a file may ask for, and that wait for a dispatcher
	o := newOutbox(t)
	o.enqueue("run", 0, concurrency+prefetched)
	if claimed := o.claimAgainAndAgain(o.join(), 1, concurrency+prefetched); claimed != concurrency+prefetched {
		t.Errorf("claimed %d rows, want %d", claimed, concurrency+prefetched)
	}
}

// Most outboxes have never seen an undo when a provider fails, and thousands of
// runs go back.
func TestOfManyUndosOnlyThoseThatAreClaimedAreRead(t *testing.T) {
	t.Parallel()
	const undos, claims, each = 5_000, 10, 10
	o := newOutbox(t)
	o.exec(`ALTER TABLE outbox.intent SET (autovacuum_enabled = off)`)
	o.exec(`ALTER TABLE outbox.queue SET (autovacuum_enabled = off)`)
	o.enqueue("run", 0, 1000)
	o.exec(`ANALYZE outbox.intent`)
	worker := o.join()
	o.claimAgainAndAgain(worker, claims, each)
	o.exec(`DELETE FROM outbox.queue`)
	o.exec(`INSERT INTO outbox.saga (agent_run_id) VALUES ('back')`)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
		SELECT 'back', 'compensate:' || n, 'sim/act', 'scope', '{}', -n FROM generate_series(1, $1::int) n`, undos)
	if claimed := o.claimAgainAndAgain(worker, claims, each); claimed != claims*each {
		t.Fatalf("claimed %d undos, want %d", claimed, claims*each)
	}
	if read := o.read("outbox.intent", claims*each); read > undos {
		t.Errorf("to claim %d of %d undos, %d intents were read", claims*each, undos, read)
	}
}

// read is how many rows of the table were read, once that is at least so many:
// the sessions tell it when they end.
func (o *outbox) read(table string, atLeast int) (read int) {
	o.t.Helper()
	o.Close()
	deadline := time.Now().Add(patience)
	for read < atLeast {
		if time.Now().After(deadline) {
			o.t.Fatalf("%d rows of %s were read, want at least %d", read, table, atLeast)
		}
		if err := o.db.QueryRow(o.t.Context(), `
			SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables
			WHERE relid = $1::text::regclass`, table).Scan(&read); err != nil {
			o.t.Fatal(err)
		}
	}
	return read
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
