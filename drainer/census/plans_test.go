package census

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// plan is a node of what EXPLAIN says.
type plan struct {
	Node      string  `json:"Node Type"`
	Relation  string  `json:"Relation Name"`
	Rows      float64 `json:"Actual Rows"`
	Filtered  float64 `json:"Rows Removed by Filter"`
	Rechecked float64 `json:"Rows Removed by Index Recheck"`
	Loops     float64 `json:"Actual Loops"`
	Plans     []plan
}

// visit adds the rows that each table was asked for.
func (p plan) visit(add func(node, table string, rows float64)) {
	if p.Relation != "" {
		add(p.Node, p.Relation, (p.Rows+p.Filtered+p.Rechecked)*p.Loops)
	}
	for _, below := range p.Plans {
		below.visit(add)
	}
}

// whole may be read so: what the configuration bounds, and sequences of one row.
var whole = map[string]bool{"claim": true, "collisions": true, "last_collision": true}

func TestNoStatementReadsATableWhole(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	const rows = 3 * countLimit
	o.exec(`ALTER TABLE outbox.intent DISABLE TRIGGER USER`)
	o.enqueue("run", "sim/act", 0, rows)
	o.exec(`INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, first_attempt_at, maybe_applied)
		SELECT 'sim', now() + CASE WHEN id % 2 = 0 THEN -1 ELSE 1 END * interval '1 hour', id, agent_run_id, now() - interval '1 day', id % 2 = 0 FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at)
		SELECT id, 1, 'w', 'ambiguous', 'pending', now() FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.duplicate (intent_id, seen_at) SELECT id, now() - interval '1 day' FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) SELECT 'outcome_unknown', id, 'run' FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.saga (agent_run_id) SELECT id::text FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, told) SELECT id, 1, 'pager', 'open' FROM outbox.incident`)
	for _, statistics := range []string{"", "VACUUM ANALYZE"} { // a plan must not depend on them
		if statistics != "" {
			o.exec(statistics)
		}
		for table, read := range o.reads() {
			if limit := 2.5 * countLimit; read > limit && !whole[table] {
				t.Errorf("%q: a sample reads %.0f rows of %s, want at most %.0f of %d", statistics, read, table, limit, rows)
			}
		}
	}
}

// reads explains every statement of a sample, and sums the rows that it looks
// at by their table.
func (o *outbox) reads() map[string]float64 {
	o.t.Helper()
	read := map[string]float64{}
	err := pgx.BeginFunc(o.t.Context(), o.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.t.Context(), planningSQL); err != nil {
			return err
		}
		batch, sample := &pgx.Batch{}, &Sample{}
		sample.queue(batch, configurationOf([]Provider{sim}))
		sample.queueOnce(batch, window{since: time.Now().Add(-10 * time.Second), until: time.Now()})
		for _, query := range batch.QueuedQueries {
			var explained []byte
			explain := append([]any{pgx.QueryExecModeExec}, query.Arguments...)
			if err := tx.QueryRow(o.t.Context(), `EXPLAIN (ANALYZE, FORMAT JSON) `+query.SQL, explain...).Scan(&explained); err != nil {
				return fmt.Errorf("%w in %s", err, query.SQL)
			}
			var plans []struct{ Plan plan }
			if err := json.Unmarshal(explained, &plans); err != nil {
				return err
			}
			plans[0].Plan.visit(func(node, table string, rows float64) {
				read[table] += rows
				if node == "Seq Scan" && !whole[table] {
					o.t.Errorf("%s is scanned whole by\n%s", table, query.SQL)
				}
			})
		}
		return nil
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return read
}
