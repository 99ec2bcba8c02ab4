package operator_test

import (
	"testing"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func TestATenantIsShownWithItsLimitsAndWhatItUses(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.tenant (name, role, namespace, weight, max_due, max_bytes, max_rate, max_in_flight) VALUES
		('acme', 'acme', 'prod/acme', 3, 100, 4096, 50, 7), ('globex', 'globex', NULL, 1, NULL, NULL, NULL, NULL), ('idle', 'idle', NULL, 1, NULL, NULL, NULL, NULL)`)
	of := func(tenant string, ids []int64) {
		o.exec(`UPDATE outbox.intent SET tenant = (SELECT tenant_id FROM outbox.tenant WHERE name = $1) WHERE id = ANY ($2)`, tenant, ids)
		o.exec(`UPDATE outbox.queue SET bytes = 10, tenant = (SELECT tenant_id FROM outbox.tenant WHERE name = $1) WHERE intent_id = ANY ($2)`, tenant, ids)
	}
	acme, globex := o.enqueue("of acme", 5), o.enqueue("of globex", operator.TenantLook+5)
	of("acme", acme)
	of("globex", globex)
	// Two are claimed, of which one has ended; one waits for its time; one is in another lane.
	o.exec(`DELETE FROM outbox.queue WHERE intent_id = ANY ($1)`, acme[:2])
	o.exec(`INSERT INTO outbox.claim (worker_id, provider, server, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
		VALUES (gen_random_uuid(), 'sim', 'sim', $1, '{1,1}', '{1,1}', '{NULL,NULL}', '{f,f}', '{f,f}', '{NULL,NULL}')`, acme[:2])
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 1, 'w', 'completed', 'completed')`, acme[0])
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour' WHERE intent_id = $1`, acme[2])
	o.exec(`UPDATE outbox.queue SET provider = 'other' WHERE intent_id = $1`, acme[3])

	console := o.console()
	tenants, err := console.Tenants(t.Context(), "", 3) // other tenants come after these
	if err != nil || len(tenants) != 3 {
		t.Fatalf("%+v, %v", tenants, err)
	}
	a, g, idle := tenants[0], tenants[1], tenants[2]
	if a.Name != "acme" || a.Role != "acme" || a.Namespace != "prod/acme" || a.Weight != 3 || *a.MaxDue != 100 || *a.MaxBytes != 4096 || *a.MaxRate != 50 || *a.MaxInFlight != 7 {
		t.Errorf("acme is %+v", a)
	}
	if a.Due != 2 || a.Queued != 3 || a.Bytes != 30 || a.InFlight != 1 || a.InFlightBounded {
		t.Errorf("acme uses %+v", a)
	}
	if g.Due != operator.TenantLook || g.Queued != operator.TenantLook || g.Bytes != 10*operator.TenantLook || g.MaxDue != nil {
		t.Errorf("globex is %+v", g)
	}
	if idle.Due+idle.Queued+idle.Bytes+idle.InFlight != 0 {
		t.Errorf("the idle one uses %+v", idle)
	}
	if rest, err := console.Tenants(t.Context(), "acme", 1); err != nil || len(rest) != 1 || rest[0].Name != "globex" {
		t.Errorf("after acme comes %+v, %v", rest, err)
	}
}
