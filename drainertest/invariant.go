package drainertest

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// misplaced finds what is not in exactly one of queue, claim and settled. A
// claimed row with an attempt of the claim's number has been settled already.
const misplaced = `
WITH place AS (
  SELECT intent_id FROM outbox.queue
  UNION ALL
  SELECT h.intent_id
  FROM outbox.claim c, unnest(c.intent_ids, c.attempts) AS h (intent_id, attempt)
  WHERE NOT EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = h.intent_id AND a.attempt = h.attempt)
  UNION ALL
  SELECT intent_id FROM (
    SELECT DISTINCT ON (intent_id) intent_id, next_attempt_at FROM outbox.attempt ORDER BY intent_id, attempt DESC
  ) newest
  WHERE next_attempt_at IS NULL
)
SELECT coalesce(i.id, p.intent_id), count(p.intent_id), i.id IS NOT NULL
FROM outbox.intent i FULL JOIN place p ON p.intent_id = i.id
GROUP BY i.id, p.intent_id
HAVING count(p.intent_id) <> 1 OR i.id IS NULL
ORDER BY 1 LIMIT 10`

// AssertInvariant fails the test unless every intent is in exactly one of
// queue, claim or settled. It reads one snapshot, so it may run at any time.
func AssertInvariant(t testing.TB, db querier) {
	t.Helper()
	var (
		intent int64
		places int
		exists bool
	)
	rows, _ := db.Query(t.Context(), misplaced) // ForEachRow returns the error too
	_, err := pgx.ForEachRow(rows, []any{&intent, &places, &exists}, func() error {
		t.Errorf("intent %d (exists: %t) is in %d of queue, claim and settled, instead of in exactly one", intent, exists, places)
		return nil
	})
	if err != nil {
		t.Errorf("checking the invariant: %v", err)
	}
}
