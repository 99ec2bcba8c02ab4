package faults_test

import (
	"strings"
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
	plan:   dispatchtest.Always(dispatchtest.Slow),
	play: func(t *testing.T, rig *harness.Rig) int {
		const intents, lone = 400, 3
		rig.Provider.SlowFor = 20 * time.Millisecond
		rig.Reconfigure(func(config string) string { return strings.Replace(config, "concurrency: 16", "concurrency: 4", 1) })
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
		rig.AwaitCount("some of the flood is done", intents/8, `SELECT count(*) FROM outbox.attempt`)
		for number := range lone {
			rig.Step("lone", number, harness.Keyed)
		}
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

func TestARunWithManyIntentsKeepsNoOtherOfItsTenantWaiting(t *testing.T) {
	t.Parallel()
	crowded.holds(t)
}

// crowded has one run with more steps than two replicas can send, and then another one with a few.
var crowded = scenario{
	number: 91,
	plan:   dispatchtest.Always(dispatchtest.Slow),
	play: func(t *testing.T, rig *harness.Rig) int {
		const steps, lone = 400, 3
		rig.Provider.SlowFor = 20 * time.Millisecond
		rig.Reconfigure(func(config string) string { return strings.Replace(config, "concurrency: 16", "concurrency: 4", 1) })
		for number := range steps {
			rig.Step("crowd", number, harness.Keyed)
		}
		rig.Start()
		rig.Start()
		rig.AwaitCount("some of the run is done", steps/8, `SELECT count(*) FROM outbox.attempt`)
		for number := range lone {
			rig.Step("lone", number, harness.Keyed)
		}
		rig.AwaitRest()
		return lone
	},
	wrong: func(rig *harness.Rig) bool {
		const of = ` FROM outbox.attempt a JOIN outbox.intent i ON i.id = a.intent_id `
		return rig.Count(`SELECT count(*)`+of+`WHERE i.agent_run_id = 'lone' AND started_at > (
			SELECT percentile_disc(0.9) WITHIN GROUP (ORDER BY started_at)`+of+`WHERE i.agent_run_id = 'crowd')`) > 0
	},
}
