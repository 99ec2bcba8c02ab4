package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// countLimit is where counting stops: asking stays cheap over any queue.
const countLimit = 1000

// queued is a provider that has rows in the queue.
type queued struct {
	Provider   string
	Rows       int64 // at most countLimit
	DueSeconds float64
	Served     bool // by a worker that lives
}

const queuedSQL = queuedCTE + `
	SELECT n.provider,
		(SELECT count(*) FROM (SELECT FROM outbox.queue q WHERE q.provider = n.provider LIMIT $1::int) r),
		coalesce((SELECT extract(epoch FROM now() - q.next_attempt_at) FROM outbox.queue q
			WHERE q.provider = n.provider ORDER BY q.next_attempt_at LIMIT 1), 0)::float8,
		EXISTS (SELECT FROM outbox.worker w WHERE n.provider = ANY (w.providers) AND w.beat_at >= now() - make_interval(secs => $2))
	FROM queued n WHERE n.provider IS NOT NULL ORDER BY 1`

const queuedToolsSQL = `
	SELECT i.tool_name, count(*)
	FROM (SELECT intent_id FROM outbox.queue WHERE provider = $1 ORDER BY next_attempt_at LIMIT $2::int) q
	JOIN outbox.intent i ON i.id = q.intent_id
	GROUP BY 1 ORDER BY 1`

// lookForUnconfigured finds rows that this configuration would never send.
func lookForUnconfigured(ctx context.Context, x *examination) (found []Finding, err error) {
	all, err := read[queued](ctx, x, queuedSQL, countLimit, x.Lease.Seconds())
	if err != nil {
		return nil, err
	}
	for _, q := range all {
		i := slices.IndexFunc(x.Providers, func(p Provider) bool { return p.Name == q.Provider })
		switch {
		case i >= 0:
			unknown, err := x.unknownTools(ctx, x.Providers[i])
			if err != nil {
				return nil, err
			}
			found = append(found, unknown...)
		case !q.Served:
			found = append(found, q.unserved())
		}
	}
	if len(found) == 0 {
		found = append(found, ok("every row in the queue has somebody who knows its provider"))
	}
	return found, nil
}

func (q queued) unserved() Finding {
	since := ""
	if q.DueSeconds > 0 {
		since = fmt.Sprintf(", due for %s", short(time.Duration(q.DueSeconds*float64(time.Second))))
	}
	return problem(fmt.Sprintf("add %q under providers and start a drainer with it; or drainer intents cancel --provider %[1]q", q.Provider),
		"%s for the provider %q, which neither this configuration nor a living worker knows%s", rowsThat("wait", q.Rows), q.Provider, since)
}

// unknownTools looks at the rows that are due first.
func (x *examination) unknownTools(ctx context.Context, provider Provider) (found []Finding, err error) {
	type tool struct {
		Name string
		Rows int64
	}
	tools, err := read[tool](ctx, x, queuedToolsSQL, provider.Name, countLimit)
	if err != nil {
		return nil, err
	}
	for _, t := range tools {
		operation := dispatch.Tuple{ToolName: t.Name}.Operation()
		if !slices.Contains(provider.Operations, operation) {
			found = append(found, problem(fmt.Sprintf("add %q under providers.%s.tools, and reload or restart", operation, provider.Name),
				"%s the tool %q, which this configuration does not have", rowsThat("want", t.Rows), t.Name))
		}
	}
	return found, nil
}

// rowsThat counts rows of which the verb is said.
func rowsThat(verb string, n int64) string {
	if n == 1 {
		return "1 row " + verb + "s"
	}
	return atLeast(n) + " rows " + verb
}

func atLeast(n int64) string {
	if n >= countLimit {
		return fmt.Sprintf("%d or more", n)
	}
	return fmt.Sprint(n)
}
