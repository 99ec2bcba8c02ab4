package doctor

import (
	"context"
	"time"
)

// fleet is who drains, and whether there is anything to drain.
type fleet struct {
	Alive, Silent int64
	HasDue        bool
}

// What is due is looked for provider by provider, since that is how the queue
// is ordered; one index look each, however many rows there are.
const fleetSQL = queuedCTE + `
	SELECT count(*) FILTER (WHERE beat_at >= now() - make_interval(secs => $1)),
		count(*) FILTER (WHERE beat_at < now() - make_interval(secs => $1)),
		EXISTS (SELECT FROM queued WHERE provider IS NOT NULL AND EXISTS (
			SELECT FROM outbox.queue q WHERE q.provider = queued.provider AND q.next_attempt_at <= now()))
	FROM outbox.worker`

// queuedCTE names the providers that have rows in the queue.
const queuedCTE = `
	WITH RECURSIVE queued AS (
		(SELECT provider FROM outbox.queue ORDER BY provider LIMIT 1)
		UNION ALL
		SELECT (SELECT q.provider FROM outbox.queue q WHERE q.provider > queued.provider ORDER BY q.provider LIMIT 1)
		FROM queued WHERE provider IS NOT NULL)`

func lookAtWorkers(ctx context.Context, x *examination) (found []Finding, err error) {
	seen, err := readOne[fleet](ctx, x, fleetSQL, x.Lease.Seconds())
	if err != nil {
		return nil, err
	}
	const start = "start drainer run --config …; if it runs, its log says why it has no heartbeat here"
	switch {
	case seen.Alive == 0 && seen.HasDue:
		found = append(found, problem(start, "nobody drains, and intents are due"))
	case seen.Alive == 0:
		found = append(found, warning(start, "nobody drains; nothing is due"))
	default:
		found = append(found, ok("%d alive", seen.Alive))
	}
	if seen.Silent > 0 {
		found = append(found, warning("nothing, while another worker lives: it recovers their rows; else start one",
			"%d without a heartbeat for %s", seen.Silent, x.Lease))
	}
	return found, nil
}

// claims of one provider, by whether their worker still has its row.
type claims struct {
	Provider      string
	Orphaned      bool
	Intents       int64
	OldestSeconds float64
}

const claimsSQL = `
	SELECT c.provider, w.worker_id IS NULL, sum(cardinality(c.intent_ids))::bigint,
		extract(epoch FROM now() - min(c.claimed_at))::float8
	FROM outbox.claim c LEFT JOIN outbox.worker w USING (worker_id)
	GROUP BY 1, 2 ORDER BY 1, 2`

func lookAtClaims(ctx context.Context, x *examination) (found []Finding, err error) {
	all, err := read[claims](ctx, x, claimsSQL)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		switch age := time.Duration(c.OldestSeconds * float64(time.Second)); {
		case c.Orphaned && age > 2*x.Lease:
			found = append(found, problem("start a drainer whose configuration has the provider: it recovers them",
				"%q has %d intents claimed by workers that are gone, the oldest %s ago", c.Provider, c.Intents, short(age)))
		case !c.Orphaned && age > x.patience(c.Provider):
			found = append(found, warning("see its log for the provider, and how long its timeout is; restart the worker if it hangs",
				"%q has intents in progress for %s at a worker that lives", c.Provider, short(age)))
		}
	}
	if len(found) == 0 {
		found = append(found, ok("none is older than it may be"))
	}
	return found, nil
}

// patience is more than a claimed row may wait and then take.
func (x *examination) patience(provider string) time.Duration {
	longest := 30 * time.Second
	for _, p := range x.Providers {
		if p.Name == provider {
			longest = p.Timeout
		}
	}
	return 5*longest + time.Minute
}
