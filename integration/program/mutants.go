package program

// Mutants are the guards that must be there, each taken out by somebody who
// had a reason.
var Mutants = []Mutant{
	{
		Name:   "fence_removed",
		Belief: "the newest attempt has the next number, whoever made it",
		Edits: []Edit{
			{
				File: "drainer/postgres/sql/settle.sql",
				Guard: `  SELECT claim_id, provider FROM outbox.claim
  WHERE claim_id = ANY ($2::bigint[]) AND worker_id = $1::uuid
  ORDER BY claim_id FOR KEY SHARE
`,
				Break: `  SELECT DISTINCT e.claim_id, i.provider
  FROM unnest($2::bigint[], $3::bigint[]) AS e (claim_id, intent_id) JOIN outbox.intent i ON i.id = e.intent_id
`,
			},
			{
				File:  "drainer/postgres/sql/settle.sql",
				Guard: "SELECT intent_id, attempt, $1::uuid::text, started_at,",
				Break: "SELECT intent_id, (SELECT coalesce(max(attempt), 0) + 1 FROM outbox.attempt a WHERE a.intent_id = ended.intent_id), $1::uuid::text, started_at,",
			},
			{
				File: "drainer/postgres/sql/settle.sql",
				Guard: `    AND (NOT $27::boolean
      OR (SELECT a.attempt FROM outbox.attempt a WHERE (a.intent_id, a.attempt) = (e.intent_id, e.attempt)) IS NULL)
`,
			},
		},
	},
	{
		Name:   "committed_after_the_send",
		Belief: "nobody need wait for the commit of a claim",
		Edits: []Edit{{
			File: "drainer/postgres/turn.go",
			Guard: `	if err := s.turns.SendBatch(ctx, &batch).Close(); err != nil {
`,
			Break: `	tx, err := s.turns.Begin(ctx)
	if err != nil {
		return drainer.TurnReply{}, fmt.Errorf("turn: %w", err)
	}
	err = tx.SendBatch(ctx, &batch).Close()
	go func() { _ = tx.Commit(context.WithoutCancel(ctx)) }()
	if err != nil {
`,
		}},
	},
	{
		Name:   "ambiguity_not_sticky",
		Belief: "what the provider says last is what counts",
		Edits: []Edit{{
			File:  "dispatch/decide.go",
			Guard: "h.MaybeApplied = h.MaybeApplied || result.Outcome.LeavesDoubt()",
			Break: "h.MaybeApplied = result.Outcome.LeavesDoubt()",
		}},
	},
	{
		Name:   "reaped_in_one_statement",
		Belief: "a claim that is locked has the rows that this statement sees",
		Edits: []Edit{
			{
				File:  "drainer/postgres/reclaim.go",
				Guard: "		claims, settled, err := s.takeBack(ctx, judge, orphanedSQL, providers, last)\n",
				Break: `		rows, err := s.control.Query(ctx, orphanedSQL, providers, last)
		if err != nil {
			return all, err
		}
		claims, err := pgx.CollectRows(rows, pgx.RowToStructByPos[heldClaim])
		settled := []drainer.Settlement(nil)
`,
			},
			{
				File: "drainer/postgres/sql/orphaned.sql",
				Guard: `SELECT claim_id, worker_id::text FROM outbox.claim c
WHERE provider = ANY ($1::text[]) AND NOT EXISTS (SELECT FROM outbox.worker w WHERE w.worker_id = c.worker_id)
  AND claim_id > $2::bigint
ORDER BY claim_id LIMIT 20 FOR UPDATE SKIP LOCKED;
`,
				Break: `WITH orphan AS MATERIALIZED (
  SELECT * FROM outbox.claim c
  WHERE provider = ANY ($1::text[]) AND NOT EXISTS (SELECT FROM outbox.worker w WHERE w.worker_id = c.worker_id)
    AND claim_id > $2::bigint
  ORDER BY claim_id LIMIT 20 FOR UPDATE
), back AS (
  INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via)
  SELECT o.provider, clock_timestamp(), r.intent_id, (SELECT agent_run_id FROM outbox.intent WHERE id = r.intent_id), r.attempt, r.tries, coalesce(r.first_attempt_at, o.claimed_at), true, r.lookup, r.via
  FROM orphan o CROSS JOIN unnest(o.intent_ids, o.attempts, o.tries, o.first_attempt_ats, o.lookups, o.vias)
    AS r (intent_id, attempt, tries, first_attempt_at, lookup, via)
  WHERE NOT EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = r.intent_id AND a.attempt = r.attempt)
), gone AS (
  DELETE FROM outbox.claim WHERE claim_id = ANY (ARRAY(SELECT claim_id FROM orphan))
)
SELECT claim_id, worker_id::text FROM orphan ORDER BY claim_id;
`,
			},
		},
	},
	{
		Name:   "doubt_repeated",
		Belief: "a retry is worth its risk",
		Edits: []Edit{{
			File:  "dispatch/decide.go",
			Guard: "p.Class != NonIdempotent && p.withinKeyTTL(h.SinceFirstSend)",
			Break: "p.withinKeyTTL(h.SinceFirstSend)",
		}},
	},
	{
		Name:   "loss_taken_for_unsent",
		Belief: "a worker that dies has sent nothing",
		Edits: []Edit{{
			File:  "drainer/settlement.go",
			Guard: `dispatch.Result{Outcome: dispatch.Lost, ErrorClass: "worker_lost"}`,
			Break: `dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "worker_lost"}`,
		}},
	},
	{
		Name:   "panic_taken_for_unsent",
		Belief: "an adapter that panics has sent nothing",
		Edits: []Edit{{
			File:  "drainer/attempt.go",
			Guard: `dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "panic"}`,
			Break: `dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "panic"}`,
		}},
	},
	{
		Name:   "lease_not_asked",
		Belief: "the heartbeats stop a worker in time",
		Edits: []Edit{{
			File:  "drainer/attempt.go",
			Guard: " || !l.lease.holds()",
		}},
	},
	{
		Name:   "named_after_its_host",
		Belief: "a worker that comes back is the same",
		Edits: []Edit{
			{File: "drainer/session.go", Guard: `	"log/slog"` + "\n", Break: `	"log/slog"` + "\n" + `	"os"` + "\n"},
			{
				File:  "drainer/session.go",
				Guard: "	worker := uuid.NewString()\n",
				Break: `	host, _ := os.Hostname()
	worker := uuid.NewSHA1(uuid.Nil, []byte(host)).String()
`,
			},
		},
	},
	{
		Name:   "saga_not_asked",
		Belief: "a run that goes back takes no step, so none can be claimed",
		Edits: []Edit{
			{
				File: "drainer/postgres/sql/claim.sql",
				Guard: "s.agent_run_id IS NOT NULL AND NOT t.lookup\n" +
					"           -- no EXISTS: that could be planned as one look at every undo there is\n" +
					"           AND (SELECT compensates IS NULL FROM outbox.intent WHERE id = t.intent_id) AS closed,",
				Break: "false AS closed,",
			},
			{
				File: "drainer/attempt.go",
				Guard: `	case l.closings.bars(row):
		return l.withdraw(row, 0, "run_closed"), true // the claim that finds it again stops it
`,
			},
		},
	},
}
