package migrations_test

import "testing"

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
			pool := newDatabase(t)
			execute(t, pool, "INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at) VALUES ('key_collision', 1, 'r', 'yesterday')")
			execute(t, pool, "UPDATE outbox.incident SET "+test.before)
			execute(t, pool, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('key_collision', 1, 'r')
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
