package integration_test

import (
	"fmt"
	neturl "net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/program"
)

func TestADeadWorkersRowsAreRecoveredByRunningOnce(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	rig.EnqueueSteps("sim/act", 0, 1)
	victim := start(t, setupOf(rig, dispatch.NonIdempotent, shortLease), "DRAINER_FAILPOINTS=before_send=kill")
	<-victim.Ended
	rig.Exec(`UPDATE outbox.worker SET beat_at = now() - interval '1 hour'`)
	drainOnce(t, rig.URL, simOf(rig, dispatch.NonIdempotent).build(t)) // it first watches the heartbeats for one lease
	rig.AssertOutcomes("lost")
	rig.AssertNoClaims()
}

func TestADispatchThatOutlastsTheShutdownIsTriedAgain(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, dispatchtest.Script(dispatchtest.HangAfter))
	rig.EnqueueSteps("sim/act", 0, 1)
	with := setupOf(rig, dispatch.KeyIdempotent, patientLease)
	with.Worker.ShutdownTimeout = 300 * time.Millisecond
	leaving := start(t, with)
	rig.AwaitEffects(1)
	leaving.Terminate()
	rig.AssertOutcomes("ambiguous")
	rig.AssertNoClaims()
	if !harness.Stored[bool](rig, `SELECT maybe_applied FROM outbox.queue`) {
		t.Error("the queue does not know that the effect may have happened")
	}
	rig.Provider.Release()
	start(t, with)
	rig.AwaitStatus("completed", 1)
	rig.AssertOneEffectEach()
}

// All requests are sent after the moment to which the database is restored.
func TestADatabaseThatWentBackAsksBeforeItActsAgain(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	r.drain(r.url, 0) // this records the database's position in its history
	r.enqueue()
	past := r.copyOf(r.url)

	r.drain(r.url, 0)
	r.assertEffects("before the way back", 1, 2)
	untold := r.copyOf(past)
	r.exec(untold, `TRUNCATE outbox.history`)
	r.drain(untold, 0)
	r.assertEffects("of a copy that knows nothing", 1, 4) // two more effects, which the guard must prevent

	r.drain(past, 1) // rows are left, so the exit code is 1
	r.assertEffects("of one that waits for an operator", 1, 4)
	for tool, want := range map[string]string{"keyed/charge": "completed", "unkeyed/wire": "pending", "unkeyed/mail": "pending"} {
		if got := r.status(past, tool); got != want {
			t.Errorf("%s is %s, want %s", tool, got, want)
		}
	}
	program.New(t, past).Run(0, "history", "accept", "--reason", "compared", "--operator", "ann")
	r.drain(past, 0)
	if got := r.status(past, "unkeyed/wire"); got != "unknown" {
		t.Errorf("unkeyed/wire is %s before its last request can no longer arrive, want unknown", got)
	}
	r.exec(past, `UPDATE outbox.queue SET next_attempt_at = now() WHERE lookup`) // the wait ends
	r.drain(past, 0)
	r.assertEffects("having asked", 1, 4)
	for tool, want := range map[string]string{
		"keyed/charge": "completed", "unkeyed/wire": "completed", "unkeyed/mail": "unknown", "keyed/later": "pending",
	} {
		if got := r.status(past, tool); got != want {
			t.Errorf("%s is %s, want %s", tool, got, want)
		}
	}
}

// The fallback sent the requests after the moment to which the database is restored. Each provider recognises only
// its own keys.
func TestADatabaseThatWentBackDoesNotSendElsewhereWhatAFallbackDid(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	r.unkeyed.IgnoreKeys = false
	r.config = program.WriteConfig(t, fmt.Sprintf(`version: 1
server: {listen: "127.0.0.1:0"}
providers:
  own: {adapter: http, fallback: spare, http: {base_url: %s}, tools: &tools {
    charge: {http: {path: /charges, response: {ref: .id}}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}, lookup: {tool: find}},
    send: {http: {path: /sends, response: {ref: .id}}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}},
    find: {http: {method: GET, path: "/effects/{.key}", response: {ref: .id, rules: [{when: .status == 404, outcome: absent}]}}, idempotency: {class: read_only}},
    read: {http: {method: GET, path: "/effects/{.key}", response: {rules: [{when: .status == 404, outcome: completed}]}}, idempotency: {class: read_only}}}}
  spare: {adapter: http, http: {base_url: %s}, tools: *tools}
`, dispatchtest.Serve(t, r.keyed), dispatchtest.Serve(t, r.unkeyed)))
	r.drain(r.url, 0)
	r.exec(r.url, `SELECT outbox.enqueue('run', 'charge', 'own/charge', 'scope', '{}'), outbox.enqueue('run', 'read', 'own/read', 'scope', '{}'),
		outbox.enqueue('run', 'send', 'own/send', 'scope', '{}')`)
	program.New(t, r.url).Run(0, "intents", "cancel", "3", "--reason", "not now", "--operator", "ann")
	past := r.copyOf(r.url)
	r.exec(r.url, `UPDATE outbox.provider SET state = 'open', open_until = now() + interval '1 hour' WHERE name = 'own'`)
	r.drain(r.url, 0)
	r.assertEffects("before the way back", 0, 1)

	r.drain(past, 1) // rows are left
	program.New(t, past).Run(0, "history", "accept", "--reason", "compared", "--operator", "ann")
	r.drain(past, 0)
	r.exec(past, `UPDATE outbox.queue SET next_attempt_at = now()`) // no backoff delays a row
	r.drain(past, 0)
	r.assertEffects("with both well again", 0, 1)
	for tool, want := range map[string]string{"own/charge": "unknown", "own/read": "completed"} {
		if got := r.status(past, tool); got != want {
			t.Errorf("%s is %s, want %s", tool, got, want)
		}
	}
	program.New(t, past).Run(1, "intents", "retry", "1", "--config", r.config, "--reason", "same key", "--operator", "ann")
	program.New(t, past).Run(0, "intents", "retry", "1", "--may-duplicate", "--config", r.config, "--reason", "not in either's records", "--operator", "ann")
	r.drain(past, 0)
	r.assertEffects("with a second effect accepted", 1, 1)

	// The lost commits may include a retry of the cancelled intent, too.
	program.New(t, past).Run(1, "intents", "retry", "3", "--config", r.config, "--reason", "same key", "--operator", "ann")
	program.New(t, past).Run(0, "intents", "retry", "3", "--may-duplicate", "--config", r.config, "--reason", "not in either's records", "--operator", "ann")
	r.drain(past, 0)
	r.assertEffects("with a second effect of what was cancelled accepted", 2, 1)
}

const restoredConfig = `version: 1
server: {listen: "127.0.0.1:0"}
providers:
  keyed:
    adapter: http
    http: {base_url: %s}
    tools:
      charge: {http: {path: /charges, response: {ref: .id}}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}}
      later: {http: {path: /later, response: {ref: .id}}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}}
  unkeyed:
    adapter: http
    http: {base_url: %s}
    tools:
      mail: {http: {path: /mails, response: {ref: .id}}, idempotency: {class: non_idempotent}}
      wire: {http: {path: /wires, response: {ref: .id}}, idempotency: {class: non_idempotent}, lookup: {tool: find}}
      find: {http: {method: GET, path: "/effects/{.key}", response: {ref: .id, rules: [{when: .status == 404, outcome: absent}]}}, idempotency: {class: read_only}}
`

// restored is an outbox with earlier copies of its database, and its providers.
type restored struct {
	t              *testing.T
	url            string
	config         string
	keyed, unkeyed *dispatchtest.SimulatedProvider
}

func newRestored(t *testing.T) restored {
	t.Helper()
	r := restored{t: t, url: drainertest.Database(t)}
	var keyedURL string
	r.keyed, keyedURL = dispatchtest.NewProvider(t, dispatchtest.Healthy())
	r.unkeyed = &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), Plan: dispatchtest.Healthy(), IgnoreKeys: true}
	r.config = program.WriteConfig(t, fmt.Sprintf(restoredConfig, keyedURL, dispatchtest.Serve(t, r.unkeyed)))
	return r
}

// enqueue commits four intents that are twenty minutes old. One of them is not due yet.
func (r restored) enqueue() {
	r.exec(r.url, `
		SELECT outbox.enqueue('run', 'step', tool, 'scope', '{}') FROM unnest('{keyed/charge,unkeyed/mail,unkeyed/wire}'::text[]) tool;
		SELECT outbox.enqueue('run', 'step', 'keyed/later', 'scope', '{}', now() + interval '1 day');
		UPDATE outbox.intent SET created_at = created_at - interval '20 minutes'`)
}

// copyOf copies the database to a new one, and returns the URL of the copy.
func (r restored) copyOf(url string) string {
	r.t.Helper()
	empty := drainertest.EmptyDatabase(r.t)
	r.exec(adminOf(r.t, empty), fmt.Sprintf("DROP DATABASE %s", nameOf(r.t, empty)),
		fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", nameOf(r.t, empty), nameOf(r.t, url)))
	return empty
}

func (r restored) drain(url string, exit int) {
	r.t.Helper()
	program.New(r.t, url).Run(exit, "run", "--once", "--config", r.config)
}

func (r restored) exec(url string, statements ...string) {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), url)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close(r.t.Context())
	for _, statement := range statements {
		if _, err := conn.PgConn().Exec(r.t.Context(), statement).ReadAll(); err != nil {
			r.t.Fatalf("%v\n%s", err, statement)
		}
	}
}

func (r restored) status(url, tool string) string {
	r.t.Helper()
	return drainertest.Value[string](r.t, drainertest.Connect(r.t, url), `SELECT status FROM outbox.status WHERE tool_name = $1`, tool)
}

func (r restored) assertEffects(when string, keyed, unkeyed int) {
	r.t.Helper()
	if got := r.keyed.Ledger.Audit().TotalEffects(); got != keyed {
		r.t.Errorf("%s: %d effects where keys are honoured, want %d", when, got, keyed)
	}
	if got := r.unkeyed.Ledger.Audit().TotalEffects(); got != unkeyed {
		r.t.Errorf("%s: %d effects where they are not, want %d", when, got, unkeyed)
	}
}

func nameOf(t *testing.T, url string) string {
	t.Helper()
	parsed, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(parsed.Path, "/")
}

// adminOf returns the URL of another database of the same server.
func adminOf(t *testing.T, url string) string {
	t.Helper()
	parsed, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	parsed.Path = "/postgres"
	return parsed.String()
}
