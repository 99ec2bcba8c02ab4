package faults_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/harness"
)

func TestAFloodOfOneTenantNeitherKeepsOthersWaitingNorExceedsItsLimit(t *testing.T) {
	t.Parallel()
	flooded.holds(t)
}

// flooded has two tenants enqueue more than two replicas can send, one of which has a limit in flight, and then a third
// tenant a few.
var flooded = scenario{
	number: 90,
	play: func(t *testing.T, rig *harness.Rig) int {
		const intents, lone = 400, 3
		goOn := hangAfter(rig, intents/8)
		rig.Reconfigure(func(config string) string {
			return strings.Replace(steady(config), "concurrency: 16", "concurrency: 4", 1)
		})
		rig.Enqueue(harness.Keyed, intents)
		rig.Exec(`INSERT INTO outbox.tenant (name, role, max_in_flight) VALUES ('flood', 'flood', NULL), ('limited', 'limited', 2)`)
		rig.Exec(`DO $$ BEGIN
			PERFORM set_config('session_replication_role', 'replica', true);  -- whose they are is no change of history
			WITH theirs AS (UPDATE outbox.intent i SET tenant = t.tenant_id FROM outbox.tenant t
				WHERE t.name = CASE WHEN i.id % 4 = 0 THEN 'limited' ELSE 'flood' END RETURNING i.id, t.tenant_id)
			UPDATE outbox.queue q SET tenant = tenant_id FROM theirs WHERE id = intent_id;
		END $$`)
		rig.Start()
		rig.Start()
		rig.AwaitRequests(intents/8 + 1)
		for number := range lone {
			rig.Step("lone", number, harness.Keyed)
		}
		goOn()
		rig.AwaitRest()
		return lone
	},
	wrong: func(rig *harness.Rig) bool {
		const of = ` FROM outbox.attempt a JOIN outbox.intent i ON i.id = a.intent_id LEFT JOIN outbox.tenant t ON t.tenant_id = i.tenant `
		late := rig.Count(`SELECT count(*)` + of + `WHERE t.name IS NULL AND started_at > (
			SELECT percentile_disc(0.9) WITHIN GROUP (ORDER BY started_at)` + of + `WHERE t.name = 'flood')`)
		over := rig.Count(`WITH sent AS (SELECT started_at, finished_at` + of + `WHERE t.name = 'limited' AND started_at IS NOT NULL)
			SELECT count(*) FROM sent s WHERE (SELECT count(*) FROM sent o WHERE s.started_at >= o.started_at AND s.started_at < o.finished_at) > 2`)
		return late > 0 || over > 0
	},
}

// hangAfter has the provider be slow, and hang from the request after the first ones until it is let go:
// most of the work is still to be done then, on a quick machine as on a slow one.
func hangAfter(rig *harness.Rig, first int) (goOn func()) {
	var requests atomic.Int64
	var released atomic.Bool
	rig.Provider.SlowFor = 20 * time.Millisecond
	rig.Provider.Plan = func(string, int) dispatchtest.Fault {
		if requests.Add(1) > int64(first) && !released.Load() {
			return dispatchtest.HangBefore
		}
		return dispatchtest.Slow
	}
	return func() {
		released.Store(true)
		rig.Provider.Release()
	}
}

func TestARunWithManyIntentsKeepsNoOtherOfItsTenantWaiting(t *testing.T) {
	t.Parallel()
	crowded.holds(t)
}

// crowded has one run with more steps than two replicas can send, and then another one with a few.
var crowded = scenario{
	number: 91,
	play: func(t *testing.T, rig *harness.Rig) int {
		const steps, lone = 400, 3
		goOn := hangAfter(rig, steps/8)
		rig.Reconfigure(func(config string) string {
			return strings.Replace(steady(config), "concurrency: 16", "concurrency: 4", 1)
		})
		for number := range steps {
			rig.Step("crowd", number, harness.Keyed)
		}
		rig.Start()
		rig.Start()
		rig.AwaitRequests(steps/8 + 1)
		for number := range lone {
			rig.Step("lone", number, harness.Keyed)
		}
		goOn()
		rig.AwaitRest()
		return lone
	},
	wrong: func(rig *harness.Rig) bool {
		const of = ` FROM outbox.attempt a JOIN outbox.intent i ON i.id = a.intent_id `
		return rig.Count(`SELECT count(*)`+of+`WHERE i.agent_run_id = 'lone' AND started_at > (
			SELECT percentile_disc(0.9) WITHIN GROUP (ORDER BY started_at)`+of+`WHERE i.agent_run_id = 'crowd')`) > 0
	},
}
