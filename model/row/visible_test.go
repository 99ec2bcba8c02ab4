package row_test

import (
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/row"
)

// visible is as much of a state as the tables show.
type visible struct {
	Queue             row.Queued
	Claims            [2]visibleClaim
	Newest            dispatch.Status
	Settled, Incident bool
}

type visibleClaim struct {
	Owner         row.Owner
	Settled, Rest bool
	row.Past
}

func visibleOf(s row.State) visible {
	v := visible{Queue: s.Queue, Newest: s.Newest.Is(), Settled: s.Settled, Incident: s.Incident}
	for slot, c := range s.Claims {
		v.Claims[slot] = visibleClaim{c.Owner, c.Settled, c.Rest, c.Past}
	}
	return v
}

// readSQL shows one intent. Ages are those of the model: 0 never, 1 less than
// half of the key's life ago, 2 more.
const readSQL = `
	SELECT q.intent_id IS NOT NULL, coalesce(q.next_attempt_at > now() + interval '30 seconds', false), coalesce(q.tries, 0),
	       public.age(q.first_attempt_at), coalesce(q.maybe_applied, false), coalesce(q.lookup, false),
	       coalesce(newest.status, ''), coalesce(newest.next_attempt_at IS NULL, false) AND newest.attempt IS NOT NULL,
	       EXISTS (SELECT FROM outbox.incident WHERE intent_id = i.id AND kind = 'outcome_unknown' AND resolved_at IS NULL)
	FROM outbox.intent i
	LEFT JOIN outbox.queue q ON q.intent_id = i.id
	LEFT JOIN LATERAL (SELECT * FROM outbox.attempt a WHERE a.intent_id = i.id ORDER BY attempt DESC LIMIT 1) newest ON true
	WHERE i.id = $1`

// readClaimsSQL shows the claims with an intent.
const readClaimsSQL = `
	SELECT c.claim_id, c.worker_id::text, ended.settled, ended.rest,
	       r.tries, public.age(r.first_attempt_at), r.maybe_applied, r.lookup
	FROM outbox.claim c
	CROSS JOIN unnest(c.intent_ids, c.attempts, c.tries, c.first_attempt_ats, c.maybe_applied, c.lookups)
	  AS r (intent_id, attempt, tries, first_attempt_at, maybe_applied, lookup)
	CROSS JOIN LATERAL (
	  SELECT bool_or(a.attempt IS NOT NULL) FILTER (WHERE o.intent_id = $1) AS settled,
	         coalesce(bool_or(a.attempt IS NULL) FILTER (WHERE o.intent_id <> $1), false) AS rest
	  FROM unnest(c.intent_ids, c.attempts) AS o (intent_id, attempt) LEFT JOIN outbox.attempt a USING (intent_id, attempt)) ended
	WHERE r.intent_id = $1`

const ageSQL = `
	CREATE FUNCTION public.age(at timestamptz) RETURNS int LANGUAGE sql AS $$
	  SELECT CASE WHEN at IS NULL THEN 0 WHEN at > now() - interval '6 hours' THEN 1 ELSE 2 END
	$$`

// comparable leaves out what the model does not tell apart: the past of a row
// that has left its claim.
func (c visibleClaim) comparable() visibleClaim {
	if c.Settled {
		c.Past = row.Past{}
	}
	c.Past = counted(c.Past, row.LookupTries+1)
	return c
}

// counted is how far the model counts the tries of a lookup.
func counted(p row.Past, limit int8) row.Past {
	if p.Lookup {
		p.Tries = min(p.Tries, limit)
	}
	return p
}
