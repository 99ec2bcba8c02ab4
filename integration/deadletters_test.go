package integration_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/integration/program"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// deadLetters is an outbox whose provider meets each key with faults, by default
// once: it has the effect and loses the answer. One attempt is all an intent
// gets.
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
	d.assertSays(1, "without --config nobody knows", "intents", "retry", "1", "--reason", "provider is back")
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
	if _, err := d.db.Exec(t.Context(), `UPDATE outbox.attempt SET started_at = started_at - interval '12 hours'`); err != nil {
		t.Fatal(err)
	}
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

// What must not be repeated is repeated once for each time that a human says so.
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
	d.assertSays(0, "no such intents", "intents", "cancel", "--run", "run-001")
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
		"a part of a key":    {[]string{"cancel", "--run", "run-001", "--step", "step-1", "--reason", "r"}, 2, "--tool and --scope are missing"},
		"no part of a key":   {[]string{"show"}, 2, "by its id, or by --run, --step, --tool and --scope (see"},
		"a run to show":      {[]string{"show", "--run", "run-001"}, 2, "--step, --tool and --scope are missing"},
		"a key but a scope":  {[]string{"show", "--run", "run-001", "--step", "s", "--tool", "a/b"}, 2, "; --scope is missing"},
		"not a tool":         {[]string{"show", "--run", "run-001", "--step", "s", "--tool", strings.Repeat("a", 256), "--scope", "x"}, 2, "256 octets"},
		"a name, unsigned":   {[]string{"cancel", "one"}, 2, "an intent's id is a number"},
		"one and many":       {[]string{"cancel", "1", "--status", "pending", "--reason", "r"}, 2, "not both"},
		"a wrong status":     {[]string{"retry", "--status", "completed"}, 2, "failed, unknown, cancelled only"},
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

// As under kubectl exec, where nobody has set $USER.
func TestAnOperatorWithoutANameIsAskedForIt(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	d.enqueue("step-1")
	d.Env = append(d.Env, "USER=")
	for want, args := range map[string][]string{
		"drainer: --operator is empty and $USER is not set; add --operator NAME (see drainer intents cancel --help)\n":                                       {"--reason", "r"},
		"drainer: --operator is empty and $USER is not set; add --operator NAME; --reason is empty; add --reason TEXT (see drainer intents cancel --help)\n": nil,
	} {
		if _, stderr := d.Run(2, append([]string{"intents", "cancel", "1"}, args...)...); stderr != want {
			t.Errorf("%v: it says %q, want %q", args, stderr, want)
		}
	}
	d.Run(0, "intents", "cancel", "1", "--reason", "r", "--operator", "ann")
	d.assertSays(0, "operator:ann", "intents", "show", "1")
}
