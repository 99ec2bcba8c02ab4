package integration_test

import (
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/agentoutbox/drainer/integration/program"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// These tests run the program as a person does.

const billingConfig = `version: 1
server: {listen: "127.0.0.1:0"}
providers:
  billing:
    adapter: http
    http:
      base_url: %s
      headers: {Authorization: "Bearer ${env:BILLING_TOKEN}"}
    tools:
      charge:
        http: {method: POST, path: /v1/charges, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
`

var chargeKey = []string{"--run", "run-001", "--step", "step-1", "--tool", "billing/charge", "--scope", "invoice_442"}

func enqueueCharge(payload string) []string {
	return append(append([]string{"enqueue"}, chargeKey...), "--payload", payload)
}

func TestAnIntentEnqueuedTwiceIsOneEffectWithItsResponseStored(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Healthy())
	shell := program.New(t, drainertest.EmptyDatabase(t), "BILLING_TOKEN=t")
	config := program.WriteConfig(t, fmt.Sprintf(billingConfig, baseURL))

	shell.Run(0, "migrate", "up")
	var receipt struct {
		Created        bool
		IdempotencyKey string `json:"idempotency_key"`
	}
	for _, wantCreated := range []bool{true, false} {
		shell.RunJSON(&receipt, enqueueCharge(`{"amount": 1200}`)...)
		if receipt.Created != wantCreated {
			t.Fatalf("created is %v, want %v", receipt.Created, wantCreated)
		}
	}
	shell.Run(0, "run", "--once", "--config", config)

	var intent struct {
		Status      string
		ProviderRef string `json:"provider_ref"`
		Response    struct{ ID string }
	}
	shell.RunJSON(&intent, append([]string{"intents", "show"}, chargeKey...)...)
	if intent.Status != "completed" || intent.Response.ID == "" || intent.ProviderRef != intent.Response.ID {
		t.Errorf("the intent is %+v, want completed with the provider's response and its id as the reference", intent)
	}
	audit := provider.Ledger.Audit()
	if audit.TotalEffects() != 1 || audit.Effects[receipt.IdempotencyKey] != 1 {
		t.Errorf("the provider had the effects %v, want one under %s", audit.Effects, receipt.IdempotencyKey)
	}
	if !regexp.MustCompile(`^idem_v1_[0-9a-f]{32}$`).MatchString(receipt.IdempotencyKey) {
		t.Errorf("the key is %q, want idem_v1_ and 32 hex digits", receipt.IdempotencyKey)
	}
}

func TestBadInputGetsAClearErrorAndChangesNothing(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	current := program.New(t, url, "BILLING_TOKEN=t")
	config := program.WriteConfig(t, fmt.Sprintf(billingConfig, "http://127.0.0.1:1"))
	typo := program.WriteConfig(t, strings.Replace(fmt.Sprintf(billingConfig, "http://127.0.0.1:1"), "base_url", "bas_url", 1))
	current.Run(0, enqueueCharge(`{"amount": 1200}`)...)

	for name, test := range map[string]struct {
		shell *program.Program
		args  []string
		exit  int
		says  string
	}{
		"unknown field":        {current, []string{"run", "--config", typo}, 3, `drainer.yaml:7:7`},
		"missing secret":       {program.New(t, url), []string{"run", "--config", config}, 3, "BILLING_TOKEN"},
		"unreachable database": {program.New(t, "postgres://127.0.0.1:1/x", "BILLING_TOKEN=t"), []string{"run", "--config", config}, 4, "cannot be reached"},
		"schema behind":        {program.New(t, drainertest.EmptyDatabase(t), "BILLING_TOKEN=t"), []string{"run", "--config", config}, 5, "drainer migrate up"},
		"empty key part":       {current, []string{"enqueue", "--run", "", "--step", "s", "--tool", "t", "--scope", "x", "--payload", "{}"}, 2, "agent_run_id is empty"},
		"long key part":        {current, []string{"enqueue", "--run", strings.Repeat("r", 256), "--step", "s", "--tool", "t", "--scope", "x", "--payload", "{}"}, 2, "256 octets"},
		"payload not JSON":     {current, enqueueCharge(`{amount}`), 2, "not valid JSON"},
		"another payload":      {current, enqueueCharge(`{"amount": 9}`), 1, "another payload"},
		"no such status":       {current, []string{"intents", "list", "--status", "stuck"}, 2, "no such status"},
		"no such intent":       {current, []string{"intents", "show", "4711"}, 1, "no such intent"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, stderr := test.shell.For(t).Run(test.exit, test.args...); !strings.Contains(stderr, test.says) {
				t.Errorf("it says %q, want %q in it", stderr, test.says)
			}
		})
	}

	db := drainertest.Connect(t, url)
	intents, queued := drainertest.Value[int](t, db, `SELECT count(*) FROM outbox.intent`), drainertest.Value[int](t, db, `SELECT count(*) FROM outbox.queue`)
	if intents != 1 || queued != 1 {
		t.Errorf("there are %d intents and %d queued, want the one that was there before", intents, queued)
	}
	drainertest.AssertInvariant(t, db)
}

// Canaries in every place that could leak; an attempt must still show its key's
// hash and the provider's id.
func TestNoPayloadKeyPartOrSecretReachesLogsOrMetrics(t *testing.T) {
	t.Parallel()
	_, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.ErrorAfter, dispatchtest.None))
	shell := program.New(t, drainertest.Database(t), "BILLING_TOKEN=canary-token")
	config := program.WriteConfig(t, fmt.Sprintf(billingConfig, baseURL))
	daemon := shell.Start(config)

	shell.Run(0, "enqueue", "--run", "canary-run", "--step", "canary-step", "--tool", "billing/charge", "--scope", "canary-scope",
		"--payload", `{"card": "canary-payload"}`)
	daemon.WaitFor(`"status":"completed"`)
	metrics := daemon.Get("/metrics")
	for _, probe := range []string{"/livez", "/readyz"} {
		if got := daemon.Get(probe); got != "ok\n" {
			t.Errorf("%s answers %q, want ok", probe, got)
		}
	}
	log := daemon.Terminate()

	for place, text := range map[string]string{"log": log, "metrics": metrics} {
		if strings.Contains(text, "canary") {
			t.Errorf("the %s shows a canary:\n%s", place, text)
		}
	}
	for _, want := range []string{`"outcome":"ambiguous"`, `"idempotency_key":"idem_v1_`, `"provider_ref":"eff_`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	if want := `drainer_dispatch_attempts_total{operation="charge",outcome="completed",provider="billing"} 1`; !strings.Contains(metrics, want) {
		t.Errorf("the metrics lack %s", want)
	}
}

func TestASecondSignalEndsTheProgramAtOnce(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.HangBefore))
	defer provider.Release()
	shell := program.New(t, drainertest.Database(t), "BILLING_TOKEN=t")
	daemon := shell.Start(program.WriteConfig(t, fmt.Sprintf(billingConfig, baseURL)))
	shell.Run(0, enqueueCharge(`{}`)...)
	if err := provider.Ledger.Wait(t.Context(), func(a dispatchtest.Audit) bool { return a.TotalRequests() == 1 }); err != nil {
		t.Fatal(err)
	}

	daemon.Signal(syscall.SIGTERM)
	daemon.WaitFor(`"msg":"shutting down"`) // and waiting for the dispatch, which hangs
	daemon.Signal(syscall.SIGTERM)
	<-daemon.Ended
	if daemon.ExitCode() == 0 {
		t.Error("an aborted program exits with 0, want anything else")
	}
}
