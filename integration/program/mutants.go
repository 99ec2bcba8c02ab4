package program

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// MutantVariable is the variable with the name of the mutant that replaces the program of [WithFailpoints]. Tests
// must then fail.
const MutantVariable = "DRAINER_MUTANT"

// Mutant is the program without one of its guards. The safety tests must fail with each of them.
type Mutant struct {
	Name   string
	Belief string // the plausible reason for the change
	Edits  []Edit
}

func findMutant(name string) (Mutant, error) {
	var names []string
	for _, mutant := range Mutants {
		if mutant.Name == name {
			return mutant, nil
		}
		names = append(names, mutant.Name)
	}
	return Mutant{}, fmt.Errorf("there is no mutant %s; there are %s", name, strings.Join(names, ", "))
}

// overlayOf writes a mutant's files into folder, and returns the path of the overlay for go build.
func overlayOf(folder, mutant string) (path string, err error) {
	found, err := findMutant(mutant)
	if err != nil {
		return "", err
	}
	if path, err = writeOverlay(folder, found.Edits); err != nil {
		return "", fmt.Errorf("mutant %s: %w", mutant, err)
	}
	return path, nil
}

// Mutants removes the necessary guards, one by one. Each has the reason of an author who believed the guard to be
// superfluous.
var Mutants = []Mutant{
	{
		Name:   "fence_removed",
		Belief: "the newest attempt has the next number, whichever process made it",
		Edits: []Edit{
			{
				File: "drainer/postgres/sql/settle.sql",
				Guard: `  SELECT claim_id, provider, era FROM outbox.claim
  WHERE claim_id = ANY ($2::bigint[]) AND worker_id = $1::uuid
  ORDER BY claim_id FOR KEY SHARE
`,
				Break: `  SELECT DISTINCT e.claim_id, i.provider, 0 AS era
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
		Belief: "no worker need wait for the commit of a claim",
		Edits: []Edit{{
			File: "drainer/postgres/store.go",
			Guard: `	if err := s.send(ctx, &queue); err != nil {
`,
			Break: `	tx, err := s.batches.Begin(ctx)
	if err != nil {
		return drainer.BatchReply{}, fmt.Errorf("batch: %w", err)
	}
	err = tx.SendBatch(ctx, &queue).Close()
	go func() { _ = tx.Commit(context.WithoutCancel(ctx)) }()
	if err != nil {
`,
		}},
	},
	{
		Name:   "failover_loses_nothing",
		Belief: "a database that has committed remembers",
		Edits: []Edit{
			{
				File:  "drainer/postgres/sql/claim.sql",
				Guard: "  WHERE id = $15::int AND tableoid = table_oid AND (lsn >= $16::pg_lsn) IS NOT FALSE\n    AND CASE",
				Break: "  WHERE $15::int IS NOT NULL AND $16::pg_lsn IS NOT NULL OR CASE",
			},
			{
				File:  "drainer/postgres/sql/claim.sql",
				Guard: "  JOIN history ON accepted OR NOT once",
				Break: "  JOIN history ON true OR once",
			},
			{
				File:  "drainer/postgres/sql/claim.sql",
				Guard: "era < (SELECT doubted_before FROM history) AS doubted",
				Break: "false AS doubted",
			},
		},
	},
	{
		Name:   "undo_taken_for_new",
		Belief: "what the database does not have was never sent",
		Edits: []Edit{{
			File:  "drainer/postgres/sql/history/look.sql",
			Guard: "coalesce((SELECT max(i.id) FROM outbox.intent i), 0)",
			Break: "0",
		}},
	},
	{
		Name:   "ambiguity_not_sticky",
		Belief: "the provider's last answer counts",
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
				File:  "drainer/postgres/recover.go",
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
			File:  "drainer/worker.go",
			Guard: `dispatch.Result{Outcome: dispatch.Lost, ErrorClass: "worker_lost"}`,
			Break: `dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "worker_lost"}`,
		}},
	},
	{
		Name:   "panic_taken_for_unsent",
		Belief: "an adapter that panics has sent nothing",
		Edits: []Edit{{
			File:  "drainer/worker.go",
			Guard: `dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "panic"}`,
			Break: `dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "panic"}`,
		}},
	},
	{
		Name:   "lease_not_asked",
		Belief: "the heartbeats stop a worker in time",
		Edits: []Edit{{
			File:  "drainer/worker.go",
			Guard: " || !p.lease.holds()",
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
		Belief: "a run that is rolled back takes no step, so none can be claimed",
		Edits: []Edit{
			{
				File: "drainer/postgres/sql/claim.sql",
				Guard: "s.agent_run_id IS NOT NULL AND NOT t.lookup\n" +
					"           -- no EXISTS: that could be planned as one look at every undo there is\n" +
					"           AND (SELECT compensates IS NULL FROM outbox.intent WHERE id = t.intent_id) AS closed,",
				Break: "false AS closed,",
			},
			{
				File: "drainer/worker.go",
				Guard: `	case p.closed.contains(row):
		return p.release(row, 0, "run_closed"), true // the next claim of the row cancels it
`,
			},
		},
	},
	{
		Name:   "http1_not_guarded",
		Belief: "only HTTP/2 sends a request again by itself",
		Edits: []Edit{{
			File:  "dispatch/internal/onesend/transport.go",
			Guard: "	if e.mayHaveSent() {\n",
			Break: "	if multiplexed && e.mayHaveSent() {\n",
		}},
	},
	{
		Name:   "window_from_the_last_try",
		Belief: "an effect is as old as the attempt that reported it",
		Edits: []Edit{{
			File:  "compensations/next.sql",
			Guard: "SELECT min(a.started_at) FROM outbox.attempt a",
			Break: "SELECT max(a.started_at) FROM outbox.attempt a",
		}},
	},
	{
		Name:   "done_by_the_last_word",
		Belief: "who says last that a step is completed has completed it",
		Edits: []Edit{{
			File:  "compensations/next.sql",
			Guard: "newest.outcome IN ('completed', 'resolved') AS is_effect",
			Break: "true AS is_effect",
		}},
	},
	{
		Name:   "via_kept_without_doubt",
		Belief: "who was asked last is asked again",
		Edits: []Edit{{
			File:  "drainer/postgres/sql/settle.sql",
			Guard: "CASE WHEN maybe_applied THEN via END,",
			Break: "via,",
		}},
	},
	{
		Name:   "closed_by_the_clock",
		Belief: "a run that was closed before a claim began was seen by it",
		Edits: []Edit{{
			File:  "drainer/postgres/sql/closed.sql",
			Guard: "WHERE (SELECT s.agent_run_id FROM outbox.saga s WHERE s.agent_run_id = claimed.run) IS NOT NULL;",
			Break: "WHERE (SELECT s.agent_run_id FROM outbox.saga s WHERE s.agent_run_id = claimed.run AND s.begun_at > (SELECT min(claimed_at) FROM outbox.claim WHERE worker_id = $1::uuid)) IS NOT NULL;",
		}},
	},
	{
		Name:   "due_tenants_not_searched",
		Belief: "a lane that has enough to do need not look for more",
		Edits: []Edit{{
			File:  "drainer/scan.go",
			Guard: "	s.searched = !s.hungry || (!s.searched && now.After(s.searchAt))\n",
			Break: "	s.searched = !s.hungry && (!s.searched || now.After(s.searchAt))\n",
		}},
	},
	{
		Name:   "limit_of_a_search_alone",
		Belief: "a tenant that had room when it was found has some",
		Edits: []Edit{{
			File:  "drainer/postgres/sql/claim.sql",
			Guard: "least(p.room, outbox.room_in_flight(l.provider, o.tenant_id))",
			Break: "p.room",
		}},
	},
	{
		Name:   "runs_in_due_order",
		Belief: "what is due first is claimed first, whose run it is",
		Edits: []Edit{{
			File:  "drainer/ahead.go",
			Guard: "	if a.wasLast = a.isOn && ",
			Break: "	if a.wasLast = a.isOn && len(t.fronts) > crowdsAtOnce && ",
		}},
	},
}

// Edit changes one place of one file.
type Edit struct {
	File  string // path relative to the module's folder
	Guard string // text that the file contains exactly once
	Break string // replaces Guard
}

// writeOverlay writes the edited files into folder, and also the JSON that `go build -overlay` reads. The files of
// the module stay unchanged.
func writeOverlay(folder string, edits []Edit) (string, error) {
	texts := map[string]string{}
	for _, edit := range edits {
		if err := edit.apply(texts); err != nil {
			return "", err
		}
	}
	replace := map[string]string{}
	for path, text := range texts {
		replace[path] = filepath.Join(folder, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}

// apply applies the edit to the file's text in texts. If the text is missing there, apply reads the file.
func (e Edit) apply(texts map[string]string) error {
	path := filepath.Join(root(), e.File)
	text, edited := texts[path]
	if !edited {
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text = string(source)
	}
	if found := strings.Count(text, e.Guard); found != 1 {
		return fmt.Errorf("%q is %d times in %s, want once: the code has moved on, and so must this edit", e.Guard, found, e.File)
	}
	texts[path] = strings.Replace(text, e.Guard, e.Break, 1)
	return nil
}
