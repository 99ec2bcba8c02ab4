package nemesis_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/world"
)

// backlog is what is left to do, by what it is.
const backlog = `
	SELECT (SELECT count(*) FROM outbox.queue) queued, (SELECT count(*) FROM outbox.claim) claims,
	       (SELECT count(*) FROM outbox.saga WHERE state = 'begun') sagas`

type left struct{ Queued, Claims, Sagas int }

func (a *arena) left(ctx context.Context) (left, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rows, err := a.DB.Query(ctx, backlog)
	if err != nil {
		return left{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[left])
}

// patience bounds the way back to rest.
const patience = 2 * time.Minute

// awaitRest returns once nothing is left to do, within patience.
func (a *arena) awaitRest() {
	a.t.Helper()
	begun := time.Now()
	for {
		remains, err := a.left(context.Background())
		if err == nil && remains == (left{}) {
			a.t.Logf("at rest after %s", time.Since(begun).Round(100*time.Millisecond))
			return
		}
		if time.Since(begun) > patience {
			a.describeLeft()
			a.t.Fatalf("no rest after %s: %+v is left (%v)", patience, remains, err)
		}
		_ = decide(context.Background(), a.World)
		time.Sleep(200 * time.Millisecond)
	}
}

// describeLeft logs some of what does not end.
func (a *arena) describeLeft() {
	rows, err := a.DB.Query(context.Background(), `
		SELECT concat_ws(' ', 'intent', s.intent_id, s.agent_run_id, s.step_id, s.tool_name, s.status, s.last_outcome, s.last_error, g.state,
		                 'next', s.next_attempt_at - now(), 'finished', s.finished_at - now())
		FROM outbox.status s LEFT JOIN outbox.saga g USING (agent_run_id)
		WHERE s.status IN ('pending', 'in_progress') OR g.state = 'begun' OR s.next_attempt_at IS NOT NULL ORDER BY s.intent_id LIMIT 20`)
	if err != nil {
		a.t.Log(err)
		return
	}
	described, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, line := range described {
		a.t.Log(line)
	}
	if err != nil {
		a.t.Log(err)
	}
}

var completed = regexp.MustCompile(`(?m)^drainer_settled_total\{.*status="completed".*\} (\d+)$`)

// completions is how many intents each replica's daemon completed. It reports
// false if one does not tell.
func (a *arena) completions() (counts map[string]int, all bool) {
	counts = map[string]int{}
	for _, replica := range a.fleet {
		metrics, err := replica.metrics()
		if err != nil {
			return nil, false
		}
		for _, found := range completed.FindAllStringSubmatch(metrics, -1) {
			count, _ := strconv.Atoi(found[1])
			counts[replica.name] += count
		}
	}
	return counts, true
}

const fresh = 5 // intents that each replica is to complete after all that

// everyReplicaWorks gives the fleet new intents until each has done its part.
func (a *arena) everyReplicaWorks() {
	a.t.Helper()
	var before map[string]int
	drainertest.Eventually(a.t, "each replica tells what it has completed", func() (all bool) {
		before, all = a.completions()
		return all
	})
	drainertest.Eventually(a.t, "each replica completes something new", func() bool {
		for _, tool := range []string{world.Keyed, world.Set, world.Order} {
			a.Enqueue(tool, 10)
		}
		now, all := a.completions()
		if !all {
			return false
		}
		for _, replica := range a.fleet {
			if now[replica.name]-before[replica.name] < fresh {
				return false
			}
		}
		return true
	})
}

func (l left) String() string {
	return fmt.Sprintf("%d queued, %d claims, %d sagas", l.Queued, l.Claims, l.Sagas)
}
