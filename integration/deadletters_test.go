package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/program"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// deadLetters is an outbox whose provider meets each key with faults. By default there is one fault: the effect
// happens, and the answer is an error. An intent gets only one attempt.
type deadLetters struct {
	*program.Program
	t        *testing.T
	provider *dispatchtest.SimulatedProvider
	address  string // host and port of the provider
	config   string
	db       *pgxpool.Pool
}

func newDeadLetters(t *testing.T, faults ...dispatchtest.Fault) *deadLetters {
	t.Helper()
	if len(faults) == 0 {
		faults = []dispatchtest.Fault{dispatchtest.ErrorAfter}
	}
	url := drainertest.Database(t)
	provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(faults...))
	return &deadLetters{
		t:       t,
		Program: program.New(t, url, "BILLING_TOKEN=t", "USER=on-call"), provider: provider, db: drainertest.Connect(t, url),
		address: strings.TrimPrefix(baseURL, "http://"),
		config:  program.WriteConfig(t, fmt.Sprintf(billingConfig, baseURL)+"        retry: {max_attempts: 1}\n"),
	}
}

func (d *deadLetters) enqueue(steps ...string) {
	d.t.Helper()
	for _, step := range steps {
		d.Run(0, "enqueue", "--run", "run-001", "--step", step, "--tool", "billing/charge", "--scope", "invoice_442", "--payload", "{}")
	}
}

func (d *deadLetters) drain() {
	d.t.Helper()
	d.Run(0, "run", "--once", "--config", d.config)
}

type shownIntent struct {
	IntentID int64 `json:"intent_id"`
	Status   string
	History  []struct {
		Worker, Outcome string
		Reason          *string
	}
}

func (d *deadLetters) assertStatus(intent, want string) {
	d.t.Helper()
	var shown shownIntent
	d.RunJSON(&shown, "intents", "show", intent)
	if shown.Status != want {
		d.t.Errorf("intent %s is %s, want %s", intent, shown.Status, want)
	}
	drainertest.AssertInvariant(d.t, d.db)
}

func (d *deadLetters) assertSays(exit int, want string, args ...string) {
	d.t.Helper()
	stdout, stderr := d.Run(exit, args...)
	if !strings.Contains(stdout+stderr, want) {
		d.t.Errorf("drainer %s says\n%s%s\nwant %q in it", strings.Join(args, " "), stdout, stderr, want)
	}
}

func TestADeadLetterIsFoundAndRetriedUnderItsKey(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	d.enqueue("step-1")
	d.drain()

	var dead []shownIntent
	d.RunJSON(&dead, "intents", "list", "--dead")
	if len(dead) != 1 || dead[0].Status != "unknown" {
		t.Fatalf("dead are %+v, want the unknown one", dead)
	}
	d.assertSays(1, "no configuration was given with --config", "intents", "retry", "1", "--reason", "provider is back")
	d.Run(0, "intents", "retry", "1", "--reason", "provider is back", "--config", d.config)
	d.assertStatus("1", "pending")
	d.drain()
	d.assertStatus("1", "completed")
	if audit := d.provider.Ledger.Audit(); audit.TotalRequests() != 2 || audit.TotalEffects() != 1 {
		t.Errorf("%d requests had %d effects, want 2 with one", audit.TotalRequests(), audit.TotalEffects())
	}
	d.assertSays(0, "operator:on-call", "intents", "show", "1")
	d.assertSays(0, "provider is back", "intents", "show", "1")
}

// The engine itself would not send it: the provider may have forgotten the key.
func TestAnAcceptedDuplicateIsReallySent(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	d.enqueue("step-1")
	d.drain()
	drainertest.Exec(t, d.db, `UPDATE outbox.attempt SET started_at = started_at - interval '12 hours'`)
	d.assertSays(1, "half of the key's ttl is 12h0m0s", "intents", "retry", "1", "--reason", "try", "--config", d.config)
	d.assertStatus("1", "unknown")
	d.Run(0, "intents", "retry", "1", "--reason", "customer agrees", "--config", d.config, "--may-duplicate")
	d.drain()
	d.assertStatus("1", "completed")
	if requests := d.provider.Ledger.Audit().TotalRequests(); requests != 2 {
		t.Errorf("the provider saw %d requests, want the second one too", requests)
	}
	d.assertSays(0, "retried_may_duplicate", "intents", "show", "1")
}

// A non-idempotent request is sent again only once for each time that an operator accepts a duplicate.
func TestAnAcceptedDuplicateOfANonIdempotentToolIsSentOnce(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t, dispatchtest.ErrorAfter, dispatchtest.ErrorAfter)
	d.config = program.WriteConfig(t, strings.Replace(fmt.Sprintf(billingConfig, "http://"+d.address), "{class: key_idempotent, ttl: 24h, scope: account}", "{class: non_idempotent}", 1))
	d.enqueue("step-1")
	d.drain()
	d.assertStatus("1", "unknown")
	d.assertSays(1, "its tool is non_idempotent", "intents", "retry", "1", "--reason", "try", "--config", d.config)

	for requests := 2; requests <= 3; requests++ {
		d.Run(0, "intents", "retry", "1", "--reason", "customer agrees", "--config", d.config, "--may-duplicate")
		d.drain()
		if got := d.provider.Ledger.Audit().TotalRequests(); got != requests {
			t.Errorf("the provider saw %d requests, want %d", got, requests)
		}
		d.assertStatus("1", map[int]string{2: "unknown", 3: "completed"}[requests])
	}
}

func TestABulkChangeShowsFirstAndThenDoesIt(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	d.enqueue("step-1", "step-2")
	d.drain()
	d.enqueue("step-3")

	resolve := []string{"intents", "resolve", "--as", "completed", "--status", "unknown,pending", "--run", "run-001"}
	d.assertSays(0, "2 would change, 1 would be refused. Nothing has changed yet", resolve...)
	d.assertStatus("1", "unknown")
	d.assertSays(2, "--reason is empty; add --reason TEXT (see", append(resolve, "--yes")...)

	var done struct {
		DryRun  bool `json:"dry_run"`
		Intents []struct {
			IntentID int64  `json:"intent_id"`
			Before   string `json:"status_before"`
			After    string `json:"status_after"`
			Refused  string
		}
	}
	d.RunJSON(&done, resolve...)
	if !done.DryRun || len(done.Intents) != 3 || done.Intents[0].After != "completed" || done.Intents[2].Refused == "" {
		t.Errorf("the dry run says %+v", done)
	}
	d.assertSays(1, "\n2 done, 1 refused.\n", append(resolve, "--yes", "--reason", "found in the provider's log")...)
	for intent, want := range map[string]string{"1": "completed", "2": "completed", "3": "pending"} {
		d.assertStatus(intent, want)
	}
	d.Run(0, "intents", "cancel", "--run", "run-001", "--yes", "--reason", "no longer wanted")
	d.assertStatus("3", "cancelled")
	d.assertSays(0, "No selected intent can change.", "intents", "cancel", "--run", "run-001")
	d.assertSays(0, `"intents": []`, "intents", "cancel", "--run", "run-001", "--yes", "--reason", "again", "-o", "json")
}

func TestAChangeIsNamedAndSignedOrRefused(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	d.enqueue("step-1")
	for name, test := range map[string]struct {
		args []string
		exit int
		says string
	}{
		"no intent":          {[]string{"cancel", "--reason", "r"}, 2, "name an intent"},
		"not a number":       {[]string{"cancel", "one", "--reason", "r"}, 2, "an intent's id is a number"},
		"an id and a key":    {[]string{"cancel", "1", "--run", "run-001", "--reason", "r"}, 2, "not by both"},
		"a part of a key":    {[]string{"cancel", "--run", "run-001", "--step", "step-1", "--reason", "r"}, 2, "add --tool, --scope"},
		"no part of a key":   {[]string{"show"}, 2, "by its id, or by --run, --step, --tool and --scope (see"},
		"a run to show":      {[]string{"show", "--run", "run-001"}, 2, "add --step, --tool, --scope"},
		"a key but a scope":  {[]string{"show", "--run", "run-001", "--step", "s", "--tool", "a/b"}, 2, "; add --scope"},
		"not a tool":         {[]string{"show", "--run", "run-001", "--step", "s", "--tool", strings.Repeat("a", 256), "--scope", "x"}, 2, "256 bytes"},
		"a name, unsigned":   {[]string{"cancel", "one"}, 2, "an intent's id is a number"},
		"one and many":       {[]string{"cancel", "1", "--status", "pending", "--reason", "r"}, 2, "not both"},
		"a wrong status":     {[]string{"retry", "--status", "completed"}, 2, "failed, unknown, cancelled, pending only"},
		"no limit":           {[]string{"cancel", "--run", "run-001", "--limit", "0"}, 2, "--limit must be from 1"},
		"too many":           {[]string{"cancel", "--run", "run-001", "--limit", "10001"}, 2, "to 10000"},
		"no reason":          {[]string{"cancel", "1"}, 2, "--reason is empty; add --reason TEXT"},
		"an odd operator":    {[]string{"cancel", "1", "--reason", "r", "--operator", "a\nb"}, 2, "the operator's name is not one line"},
		"unsigned, no file":  {[]string{"retry", "1", "--config", "gone.yaml"}, 2, "--reason is empty"},
		"no resolution":      {[]string{"resolve", "1", "--reason", "r"}, 2, `"as" not set`},
		"a wrong resolution": {[]string{"resolve", "1", "--as", "done", "--reason", "r"}, 2, "as completed or as failed"},
		"a failed effect":    {[]string{"resolve", "1", "--as", "failed", "--provider-ref", "x", "--reason", "r"}, 2, "only a completed one"},
		"no such intent":     {[]string{"cancel", "4711", "--reason", "r"}, 1, "no such intent: 4711; `drainer intents list` shows"},
		"none to show":       {[]string{"show", "4711"}, 1, "no such intent: 4711; `drainer intents list` shows"},
		"no such key":        {[]string{"cancel", "--run", "r", "--step", "s", "--tool", "t", "--scope", "b", "--reason", "r"}, 1, "no such intent with this key; `drainer intents list` shows"},
		"refused":            {[]string{"resolve", "1", "--as", "failed", "--reason", "r"}, 1, "intent 1 stays pending: it waits"},
	} {
		t.Run(name, func(t *testing.T) {
			d.t = t
			d.assertSays(test.exit, test.says, append([]string{"intents"}, test.args...)...)
		})
	}
	d.t = t
	d.assertStatus("1", "pending")
}

// Under kubectl exec no shell has set $USER.
func TestAnOperatorIsAskedForAReasonAndMayGiveAName(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	d.enqueue("step-1")
	d.Env = append(d.Env, "USER=")
	const want = "drainer: --reason is empty; add --reason TEXT (see drainer intents cancel --help)\n"
	if _, stderr := d.Run(2, "intents", "cancel", "1", "--operator", "ann"); stderr != want {
		t.Errorf("it says %q, want %q", stderr, want)
	}
	d.Run(0, "intents", "cancel", "1", "--reason", "r", "--operator", "ann")
	d.assertSays(0, "operator:ann", "intents", "show", "1")
}

// The provider asks for a wait of a year, for a step and for an undo. The drainer waits for a day at most, or for
// max_wait, and an operator can end the wait.
func TestABogusRetryAfterParksNeitherAnIntentNorAnUndo(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.ThrottleFor))
	provider.RetryAfter = 365 * 24 * time.Hour
	provider.Declines = func(path string) bool { return path == "/declined" }
	d.config = program.WriteConfig(t, fmt.Sprintf(`version: 1
server: {listen: "127.0.0.1:0"}
providers:
  billing:
    adapter: http
    http: {base_url: %s}
    tools:
      charge:
        http: {method: POST, path: /charges}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensate_with: {tool: billing/refund}
      refund:
        http: {method: POST, path: /refunds}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_wait: 1h}
        compensation: none
      declined:
        http: {method: POST, path: /declined}
        idempotency: {class: read_only}
`, baseURL))
	assertParked := func(most time.Duration) {
		t.Helper()
		until := drainertest.Value[time.Time](t, d.db, `SELECT next_attempt_at FROM outbox.queue`)
		if wait := time.Until(until); wait < most-time.Minute || wait > most+11*time.Minute {
			t.Errorf("it waits for %s, want about %s", wait, most)
		}
	}
	d.enqueue("step-1")
	d.drain()
	assertParked(24 * time.Hour)
	fault.Injected(t, 80, provider.Ledger.Audit().TotalRequests())
	d.Run(0, "intents", "retry", "1", "--now", "--reason", "the provider erred")
	d.drain()
	d.assertStatus("1", "completed")

	d.Run(0, "enqueue", "--run", "run-001", "--step", "step-2", "--tool", "billing/declined", "--scope", "invoice_442", "--payload", "{}")
	d.drain()
	d.Run(0, "intents", "retry", "2", "--now", "--reason", "the provider erred")
	daemon := d.Start(d.config)
	drainertest.Eventually(t, "the undo waits", func() bool {
		return drainertest.Value[int](t, d.db, `SELECT count(*) FROM outbox.queue JOIN outbox.intent ON id = intent_id WHERE compensates IS NOT NULL AND attempt = 1`) == 1
	})
	assertParked(time.Hour)
	d.assertSays(1, "drainer intents retry --now", "sagas", "retry", "run-001", "--reason", "the provider erred")
	d.assertSays(0, "1 would change", "intents", "retry", "--now", "--run", "run-001")
	d.Run(0, "intents", "retry", "--now", "--run", "run-001", "--reason", "the provider erred", "--yes")
	drainertest.Eventually(t, "the run is compensated", func() bool {
		return drainertest.Value[int](t, d.db, `SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`) == 1
	})
	if log := daemon.Terminate(); !strings.Contains(log, "asked_to_wait_us") {
		t.Errorf("the log does not say what the provider asked for:\n%s", log)
	}
}

// The provider saves the refusal with the key, even if the cause of the refusal has gone.
func TestANewKeyGetsPastARefusalThatTheProviderSaved(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	d.enqueue("step-1")
	old := drainertest.Value[string](t, d.db, `SELECT idempotency_key FROM outbox.status`)
	var seen []string
	provider, baseURL := dispatchtest.NewProvider(t, func(key string, _ int) dispatchtest.Fault {
		if key == old {
			return dispatchtest.Taken
		}
		return dispatchtest.None
	})
	d.config = program.WriteConfig(t, fmt.Sprintf(billingConfig, baseURL)+"        on_failure: dead_letter\n")
	d.drain()
	d.assertStatus("1", "failed")
	d.Run(0, "intents", "retry", "1", "--reason", "the customer has a new card", "--config", d.config)
	d.drain()
	d.assertStatus("1", "failed")
	fault.Injected(t, 83, provider.Ledger.Audit().TotalRequests())

	d.Run(0, "intents", "retry", "1", "--new-key", "--reason", "the provider saved its refusal")
	d.drain()
	d.assertStatus("1", "completed")
	audit := provider.Ledger.Audit()
	if audit.TotalRequests() != 3 || audit.TotalEffects() != 1 {
		t.Errorf("%d requests had %d effects, want 3 with one", audit.TotalRequests(), audit.TotalEffects())
	}
	var shown struct {
		IdempotencyKey string `json:"idempotency_key"`
		History        []struct {
			IdempotencyKey string `json:"idempotency_key"`
		}
	}
	d.RunJSON(&shown, "intents", "show", "1")
	for _, attempt := range shown.History {
		seen = append(seen, attempt.IdempotencyKey)
	}
	if now := shown.IdempotencyKey; now == old || !slices.Equal(seen, []string{old, old, old, now, now}) {
		t.Errorf("the key is %s, and the history has %v, want the old one %s three times", now, seen, old)
	}
	d.assertSays(0, old, "intents", "show", "1")
}

// The agents of two outboxes chose the same words, and both outboxes use one account. Without a namespace, the second
// outbox gets a replay of the first one's effect.
func TestTwoOutboxesOnOneAccountSwallowNoEffectOfEachOther(t *testing.T) {
	t.Parallel()
	for namespace, want := range map[string]int{"": 1, "shop": 2} {
		var incidents []string
		provider, baseURL := dispatchtest.NewProvider(t, nil)
		for _, second := range []bool{false, true} {
			d := newDeadLetters(t)
			d.config = program.WriteConfig(t, fmt.Sprintf(billingConfig, baseURL))
			if second && namespace != "" {
				d.config = program.WriteConfig(t, strings.Replace(fmt.Sprintf(billingConfig, baseURL), "    tools:\n", "    idempotency: {namespace: "+namespace+"}\n    tools:\n", 1))
			}
			d.drain() // this publishes its namespace
			d.enqueue("step-1")
			d.drain()
			d.assertStatus("1", "completed")
			incidents = append(incidents, drainertest.Column[string](t, d.db, `SELECT kind FROM outbox.incident WHERE resolved_at IS NULL`)...)
			if len(incidents) > 0 {
				d.Run(0, "incidents", "ack", "1", "--reason", "informed the others")
				incidents = append(incidents, drainertest.Column[string](t, d.db, `SELECT kind FROM outbox.incident WHERE resolved_at IS NULL`)...)
			}
		}
		fault.Injected(t, 79, 1)
		if kinds := strings.Join(incidents, " "); kinds != map[string]string{"": "first_replay"}[namespace] {
			t.Errorf("namespace %q: the incidents are %q", namespace, kinds)
		}
		if audit := provider.Ledger.Audit(); audit.TotalRequests() != 2 || audit.TotalEffects() != want {
			t.Errorf("namespace %q: %d requests had %d effects, want 2 with %d", namespace, audit.TotalRequests(), audit.TotalEffects(), want)
		}
	}
}

// The outboxes of this test share an account, and no namespace distinguishes their keys.
func TestAReplayForAFirstAttemptIsCountedAndAnIncidentUnlessItsToolAcceptsIt(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, nil)
	for number, accepts := range []bool{false, false, true} {
		d := newDeadLetters(t)
		config := fmt.Sprintf(billingConfig, baseURL)
		if accepts {
			config += "        on_first_replay: accept\n"
		}
		daemon := d.Start(program.WriteConfig(t, config))
		d.enqueue("step-1")
		drainertest.Eventually(t, "it is completed", func() bool {
			return drainertest.Value[int](t, d.db, `SELECT count(*)::int FROM outbox.status WHERE status = 'completed'`) == 1
		})
		replays, incidents := 0, 0
		if number > 0 {
			replays = 1
			if !accepts {
				incidents = 1
			}
		}
		wantMetrics(t, daemon, fmt.Sprintf(`drainer_first_replays_total{provider="billing"} %d`, replays))
		if got := drainertest.Value[int](t, d.db, `SELECT count(*)::int FROM outbox.incident WHERE kind = 'first_replay'`); got != incidents {
			t.Errorf("outbox %d: %d incidents, want %d", number, got, incidents)
		}
	}
	if audit := provider.Ledger.Audit(); audit.TotalRequests() != 3 || audit.TotalEffects() != 1 {
		t.Errorf("%d requests had %d effects, want 3 with one", audit.TotalRequests(), audit.TotalEffects())
	}
}

// A start with another namespace, or without one, changes the keys of new intents only. A
// waiting intent keeps its key, which the provider may know already.
func TestAnotherNamespaceChangesNoKeyOfWhatWaits(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.ErrorAfter))
	named := func(namespace string) {
		block := "    idempotency: {namespace: " + namespace + "}\n    tools:\n"
		if namespace == "" {
			block = "    tools:\n"
		}
		config := strings.Replace(fmt.Sprintf(billingConfig, baseURL), "    tools:\n", block, 1)
		d.config = program.WriteConfig(t, config+"        retry: {base: 1h, cap: 1h}\n")
	}
	named("one")
	d.drain()
	d.enqueue("step-1")
	before := drainertest.Value[string](t, d.db, `SELECT idempotency_key FROM outbox.status`)
	d.drain() // it has its effect, gets an error as its answer, and waits
	for _, namespace := range []string{"two", ""} {
		named(namespace)
		d.drain()
		if key := drainertest.Value[string](t, d.db, `SELECT idempotency_key FROM outbox.status`); key != before {
			t.Fatalf("with the namespace %q the key became %s, was %s", namespace, key, before)
		}
	}
	d.Run(0, "intents", "retry", "1", "--now", "--reason", "try")
	d.drain()
	d.assertStatus("1", "completed")
	if audit := provider.Ledger.Audit(); audit.TotalRequests() != 2 || audit.TotalEffects() != 1 {
		t.Errorf("%d requests had %d effects, want 2 with one", audit.TotalRequests(), audit.TotalEffects())
	}
}
