package integration_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/program"
)

// In this shop a charge is refunded when its run fails. The second argument is a setting of each tool that an attack
// uses.
const refusingConfig = `version: 1
server: {listen: "127.0.0.1:0"}
worker: {heartbeat: 200ms, lease: 1s}
unconfigured: {fail_after: 1h}
providers:
  shop:
    adapter: http
    http: {base_url: %[1]s}
    tools:
      charge:
        http: {method: POST, path: /v1/charges, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        payload_schema: {type: object, required: [amount], properties: {amount: {type: integer, minimum: 1}}}
        compensate_with: {tool: shop/refund, payload: "{charge: .provider_ref}"}
        %[2]s
      note:
        http: {method: POST, path: "/v1/notes/{.payload.book}"}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensation: none
        %[2]s
      spin:
        http: {method: POST, path: "/v1/spins/{0 | until(. < 0; . + 1)}"}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 2, base: 1ms, cap: 1ms}
        compensation: none
        %[2]s
      refund:
        http: {method: POST, path: /v1/refunds}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensation: none
`

type refusing struct {
	*program.Program
	t        *testing.T
	provider *dispatchtest.SimulatedProvider
	config   string
	db       *pgxpool.Pool
}

func newRefusing(t *testing.T, setting string, faults dispatchtest.Plan) *refusing {
	t.Helper()
	url := drainertest.Database(t)
	provider, baseURL := dispatchtest.NewProvider(t, faults)
	return &refusing{
		t: t, Program: program.New(t, url, "USER=on-call"), provider: provider, db: drainertest.Connect(t, url),
		config: program.WriteConfig(t, fmt.Sprintf(refusingConfig, baseURL, setting)),
	}
}

func (r *refusing) enqueue(step, tool, payload string) {
	r.t.Helper()
	r.Run(0, "enqueue", "--run", "victim", "--step", step, "--tool", tool, "--scope", "x", "--payload", payload)
}

func (r *refusing) count(sql string) int {
	r.t.Helper()
	return drainertest.Value[int](r.t, r.db, sql)
}

// await waits until a step of the run victim has that status.
func (r *refusing) await(step, status string) {
	r.t.Helper()
	drainertest.Eventually(r.t, step+" is "+status, func() bool {
		return r.count(`SELECT count(*) FROM outbox.status WHERE step_id = '`+step+`' AND status = '`+status+`'`) == 1
	})
}

// Any login that may enqueue can name any run. An intent that was never sent must not undo the completed steps of
// that run.
func TestAPayloadThatIsRefusedHereTakesNoRunBack(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]struct{ tool, payload, class, why string }{
		"what the schema refuses": {"shop/charge", `{"amount": -1}`, "payload_schema", "#/properties/amount/minimum"},
		"what makes no request":   {"shop/note", `{"book": null}`, "unrenderable_request", ".payload.book: gives null where text belongs; .payload.book is null"},
		"what never ends":         {"shop/spin", `{}`, "unrenderable_request", "expression takes more than 1048576 steps"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRefusing(t, "", nil)
			r.enqueue("charge", "shop/charge", `{"amount": 42}`)
			daemon := r.Start(r.config)
			r.await("charge", "completed")
			r.enqueue("attack", attack.tool, attack.payload)
			r.await("attack", "failed")
			if class := drainertest.Value[string](t, r.db, `SELECT last_error FROM outbox.status WHERE step_id = 'attack'`); class != attack.class {
				t.Errorf("it failed by %s, want %s", class, attack.class)
			}
			if shown, _ := r.Run(0, "intents", "show", "2", "--config", r.config); !strings.Contains(strings.Join(strings.Fields(shown), " "), attack.why) {
				t.Errorf("it is not said that %s:\n%s", attack.why, shown)
			}
			r.enqueue("later", "shop/charge", `{"amount": 7}`) // the run takes further steps
			r.await("later", "completed")
			if sagas := r.count(`SELECT count(*) FROM outbox.saga`); sagas != 0 {
				t.Errorf("the run is compensated: %d sagas", sagas)
			}
			open := drainertest.Column[string](t, r.db, `SELECT kind || ' ' || detail || ' ' || step_id FROM outbox.incident i JOIN outbox.intent t ON t.id = i.intent_id WHERE resolved_at IS NULL`)
			if want := "refused_intent " + attack.class + " attack"; len(open) != 1 || open[0] != want {
				t.Errorf("open incidents are %v, want %s", open, want)
			}
			if effects := r.provider.Ledger.Audit().TotalEffects(); effects != 2 {
				t.Errorf("%d effects, want the two charges", effects)
			}
			fault.Injected(t, 68, 1)
			daemon.Terminate()
			drainertest.AssertInvariant(t, r.db)
		})
	}
}

func TestARefusalTakesTheRunBackWhereTheToolSaysSo(t *testing.T) {
	t.Parallel()
	r := newRefusing(t, "on_refused: compensate", nil)
	r.enqueue("charge", "shop/charge", `{"amount": 42}`)
	daemon := r.Start(r.config)
	r.await("charge", "completed")
	r.enqueue("bad", "shop/charge", `{"amount": -1}`)
	r.await("charge", "compensated")
	if incidents := r.count(`SELECT count(*) FROM outbox.incident`); incidents != 0 {
		t.Errorf("%d incidents, want none: the run was compensated", incidents)
	}
	daemon.Terminate()
}

// The payload no longer fits the schema while a first request is in doubt. The refusal of a second request does not
// show whether the first one had its effect.
func TestARefusalAfterASendInDoubtStaysUnknown(t *testing.T) {
	t.Parallel()
	r := newRefusing(t, "", dispatchtest.Always(dispatchtest.ErrorAfter))
	r.enqueue("charge", "shop/charge", `{"amount": 42}`)
	r.Run(0, "run", "--once", "--config", r.config)
	drainertest.Exec(t, r.db, `UPDATE outbox.intent SET payload = '{"amount": -1}'`)
	drainertest.Exec(t, r.db, `UPDATE outbox.queue SET next_attempt_at = now()`)
	r.Run(0, "run", "--once", "--config", r.config)
	got := drainertest.Value[string](t, r.db, `SELECT status || ' ' || last_error || ' ' || (SELECT string_agg(kind, ' ') FROM outbox.incident) FROM outbox.status`)
	if got != "unknown payload_schema outcome_unknown" {
		t.Errorf("it is %s", got)
	}
}

func TestARefusedIntentIsRetriedOnceItsToolTakesIt(t *testing.T) {
	t.Parallel()
	r := newRefusing(t, "", nil)
	r.enqueue("strict", "shop/note", `{"book": null}`)
	r.Run(0, "run", "--once", "--config", r.config)
	const open = `SELECT count(*) FROM outbox.incident WHERE kind = 'refused_intent' AND resolved_at IS NULL`
	if r.count(open) != 1 {
		t.Error("no incident of the refusal is open")
	}
	drainertest.Exec(t, r.db, `UPDATE outbox.intent SET payload = '{"book": "a"}'`) // as if the path was corrected
	r.Run(0, "intents", "retry", "1", "--config", r.config, "--reason", "path corrected")
	if r.count(open) != 0 {
		t.Error("the incident is open although its intent was retried")
	}
	r.Run(0, "run", "--once", "--config", r.config)
	r.await("strict", "completed")

	r.enqueue("wrong", "shop/charge", `{}`)
	r.Run(0, "run", "--once", "--config", r.config)
	r.Run(0, "incidents", "ack", fmt.Sprint(r.count(`SELECT id::int FROM outbox.incident WHERE kind = 'refused_intent' AND resolved_at IS NULL`)), "--reason", "the agent is wrong")
	if r.count(open) != 0 {
		t.Error("an acknowledged refusal waits for more")
	}
}

// An agent misspells an operation a few thousand times, in the run of another agent. The outbox accepts unknown tools
// here, so that it does not refuse the intents.
func TestAnOperationThatItsProviderDoesNotHaveIsSeenAndEnds(t *testing.T) {
	t.Parallel()
	const wrong = 3000
	r := newRefusing(t, "", nil)
	drainertest.Exec(t, r.db, `INSERT INTO outbox.setting VALUES ('unknown_tools', 'accept')`)
	began, daemon := time.Now(), r.Start(r.config)
	r.enqueue("charge", "shop/charge", `{"amount": 42}`)
	r.await("charge", "completed")
	if _, told := r.Run(1, "enqueue", "--run", "r", "--step", "s", "--tool", "shop/creat_charge", "--scope", "x", "--payload", "{}"); !strings.Contains(told, "shop/charge") {
		t.Errorf("an operator who enqueues it is told %s", told)
	}
	drainertest.Exec(t, r.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'victim', 'wrong-' || n, 'shop/creat_charge', 'x', '{"amount": 1}' FROM generate_series(1, $1::int) n`, wrong)
	const parked = `SELECT count(*)::int FROM outbox.queue WHERE provider = 'shop/creat_charge'`
	drainertest.Eventually(t, "all of them are out of the way", func() bool { return r.count(parked) == wrong })
	before := drainertest.Value[string](t, r.db, `SELECT max(next_attempt_at)::text FROM outbox.queue`)

	r.enqueue("later", "shop/charge", `{"amount": 7}`)
	r.await("later", "completed")
	if after := drainertest.Value[string](t, r.db, `SELECT max(next_attempt_at)::text FROM outbox.queue`); after != before {
		t.Error("what is parked was claimed again")
	}
	const attempts = `SELECT count(*)::int FROM outbox.attempt WHERE error IS NOT NULL`
	if grown := r.count(attempts); grown != 0 {
		t.Errorf("%d attempts are on record of what was never sent", grown)
	}
	drainertest.Eventually(t, "they count as unconfigured", func() bool {
		return strings.Contains(daemon.Get("/metrics"), `drainer_outbox_due_rows{provider="unconfigured"} 3000`)
	})
	r.Run(0, "intents", "cancel", "--run", "victim", "--step", "wrong-1", "--tool", "shop/creat_charge", "--scope", "x", "--reason", "misspelt")
	r.await("wrong-1", "cancelled")
	drainertest.Exec(t, r.db, `UPDATE outbox.queue SET next_attempt_at = now() - interval '16 minutes'`)
	const open = `SELECT count(*)::int FROM outbox.incident WHERE kind = 'unknown_operation' AND resolved_at IS NULL`
	drainertest.Eventually(t, "one incident is open", func() bool { return r.count(open) == 1 })
	drainertest.Exec(t, r.db, `UPDATE outbox.queue SET next_attempt_at = now() - interval '61 minutes'`)
	drainertest.Eventually(t, "all have failed", func() bool {
		return r.count(`SELECT count(*)::int FROM outbox.status WHERE status = 'failed' AND last_error = 'unknown_operation'`) == wrong-1
	})
	drainertest.Eventually(t, "the incident is over", func() bool { return r.count(open) == 0 })
	if sagas := r.count(`SELECT count(*)::int FROM outbox.saga`); sagas != 0 {
		t.Error("the run is compensated, though nothing was sent")
	}
	fault.Injected(t, 81, wrong)
	log := daemon.Terminate()
	if lines := strings.Count(log, "no tool is configured"); lines < 1 || lines > 2+int(time.Since(began).Minutes()) { // one a minute
		t.Errorf("%d log lines of %d rows, want one", lines, wrong)
	}
	drainertest.AssertInvariant(t, r.db)
}

// Only the newer configuration has the operation. While a worker with this configuration lives, rows of the operation
// do not fail and open no incident, however long they have waited.
func TestAWorkerThatKnowsTheOperationGetsWhatAnotherReplicaParked(t *testing.T) {
	t.Parallel()
	r := newRefusing(t, "", nil)
	text, err := os.ReadFile(r.config)
	if err != nil {
		t.Fatal(err)
	}
	older := program.WriteConfig(t, strings.Replace(string(text), "      note:\n", "      other:\n", 1))
	r.enqueue("note", "shop/note", `{"book": "a"}`) // before a daemon has published its tools, no tool is refused
	without := r.Start(older)
	drainertest.Eventually(t, "it is parked", func() bool {
		return r.count(`SELECT count(*)::int FROM outbox.queue WHERE provider = 'shop/note'`) == 1
	})
	drainertest.Exec(t, r.db, `UPDATE outbox.queue SET next_attempt_at = now() - interval '30 minutes'`)
	with := r.Start(r.config)
	r.await("note", "completed")
	fault.Injected(t, 81, 1)
	with.Terminate()
	without.Terminate()
	drainertest.AssertInvariant(t, r.db)
}
