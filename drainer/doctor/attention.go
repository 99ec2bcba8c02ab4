package doctor

import (
	"context"
	"time"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func lookAtGates(ctx context.Context, x *examination) (found []Finding, err error) {
	pooled, err := x.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer pooled.Release()
	gates, err := operator.Open(pooled.Conn()).Providers(ctx)
	if err != nil {
		return nil, err
	}
	for _, gate := range gates {
		if gate.Paused {
			found = append(found, warning("drainer providers list says who paused it and why; drainer providers resume "+gate.Provider,
				"%q is paused: nothing is sent to it", gate.Provider))
		}
		if gate.Breaker != "closed" {
			found = append(found, warning("see whether it can be reached, below; the breaker closes by itself when it answers again",
				"the circuit breaker of %q is %s: it failed several times in a row", gate.Provider, gate.Breaker))
		}
	}
	if len(found) == 0 {
		found = append(found, ok("no provider is paused, every circuit breaker is closed"))
	}
	return found, nil
}

type openIncidents struct {
	Kind   string
	Number int64
	Oldest time.Time
}

const incidentsSQL = `
	SELECT kind, count(*), min(opened_at)
	FROM (SELECT kind, opened_at FROM outbox.incident WHERE acknowledged_at IS NULL AND resolved_at IS NULL LIMIT $1::int) i
	GROUP BY 1 ORDER BY 1`

func lookAtIncidents(ctx context.Context, x *examination) (found []Finding, err error) {
	all, err := read[openIncidents](ctx, x, incidentsSQL, countLimit)
	if err != nil {
		return nil, err
	}
	for _, open := range all {
		found = append(found, warning("drainer incidents list, then drainer incidents ack",
			"%s of kind %s that nobody has acknowledged, the oldest since %s", atLeast(open.Number), open.Kind, open.Oldest.UTC().Format(time.RFC3339)))
	}
	if len(found) == 0 {
		found = append(found, ok("none that nobody has acknowledged"))
	}
	return found, nil
}

type sagas struct {
	Stuck         int64
	OldestSeconds float64
	Failed        int64
}

const sagasSQL = `
	SELECT count(*), coalesce(max(seconds), 0)::float8,
		(SELECT count(*) FROM (SELECT FROM outbox.saga WHERE state = 'compensation_failed' LIMIT $1::int) f)
	FROM (
		SELECT extract(epoch FROM now() - begun_at) AS seconds FROM outbox.saga
		WHERE state = 'begun' AND begun_at < now() - make_interval(secs => $2) ORDER BY begun_at LIMIT $1::int) s`

func lookAtSagas(ctx context.Context, x *examination) (found []Finding, err error) {
	seen, err := readOne[sagas](ctx, x, sagasSQL, countLimit, x.Limits.SagaAge.Seconds())
	if err != nil {
		return nil, err
	}
	if seen.Stuck > 0 {
		found = append(found, warning("drainer sagas list --state begun; drainer sagas show RUN tells what it waits for",
			"%s runs have been going back for more than %s, the oldest for %s", atLeast(seen.Stuck), short(x.Limits.SagaAge),
			short(time.Duration(seen.OldestSeconds*float64(time.Second)))))
	}
	if seen.Failed > 0 {
		found = append(found, warning("drainer sagas list --state compensation_failed; then drainer sagas retry or resolve",
			"%s runs could not be taken back", atLeast(seen.Failed)))
	}
	if len(found) == 0 {
		found = append(found, ok("none is stuck or failed"))
	}
	return found, nil
}
