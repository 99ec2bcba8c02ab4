package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/contract/replay"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

const sandboxConfig = `version: 1
providers:
  billing:
    adapter: http
    http: {base_url: %s}
    tools:
      charge:
        http: {path: /v1/charges, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
      mail:
        http: {path: /v1/mails}
        idempotency: {class: non_idempotent}
`

// sandbox serves a provider, and gives the arguments that verify it.
func sandbox(t *testing.T, provider *dispatchtest.SimulatedProvider) (args []string, host string) {
	t.Helper()
	baseURL := dispatchtest.Serve(t, provider)
	file := write(t, "sandbox.yaml", fmt.Sprintf(sandboxConfig, baseURL))
	return []string{"verify", "replay", "--config", file, "--tool", "billing/charge", "--payload", `{"amount": 1}`}, strings.TrimPrefix(baseURL, "http://")
}

func TestVerifyReplayPassesAnHonestProvider(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger()}
	args, host := sandbox(t, provider)
	got := run(t, append(args, "--yes", "--other-payload", `{"amount": 2}`)...)
	if got.code != exitOK || got.stderr != "calling billing/charge at "+host+", up to 11 times\n" {
		t.Errorf("got %+v", got)
	}
	for _, want := range []string{
		"CHECK VERDICT SEEN EXPECTED ADVICE",
		"same call again ok completed, HTTP 200, replayed",
		"same body ok equal, octet for octet",
		"another payload ok rejected, HTTP 409",
		"provider references ok 1 under the first key, 1 under the second",
	} {
		if !strings.Contains(squeeze(got.stdout), want) {
			t.Errorf("no %q in\n%s", want, got.stdout)
		}
	}
	if effects := provider.Ledger.Audit().TotalEffects(); effects != 2 {
		t.Errorf("%d effects, want one a key", effects)
	}
}

func TestVerifyReplayFailsAProviderThatIgnoresKeys(t *testing.T) {
	t.Parallel()
	args, _ := sandbox(t, &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), IgnoreKeys: true})
	got := run(t, append(args, "--yes", "--concurrent", "4", "-o", "json")...)
	var report replay.Report
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil {
		t.Fatal(err)
	}
	if got.code != exitFailed || report.Passed || report.Tool != "billing/charge" || len(report.Calls) != 6 || !strings.Contains(got.stderr, "the provider does not do what the tool declares") {
		t.Errorf("got %+v", got)
	}
}

func TestVerifyReplayHasNoVerdictInAnOutage(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), Plan: dispatchtest.Script(dispatchtest.Overloaded)}
	args, _ := sandbox(t, provider)
	got := run(t, append(args, "--yes")...)
	if got.code != exitFailed || !strings.HasSuffix(got.stderr, "\ndrainer: no verdict: the provider was not available; try again\n") || !strings.Contains(squeeze(got.stdout), "first call no verdict throttled") {
		t.Errorf("got %+v", got)
	}
}

func TestVerifyReplayCallsNobodyUnasked(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger()}
	args, host := sandbox(t, provider)
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"without --yes":     {args, exitUsage, "this calls billing/charge at " + host + " up to 10 times, with real effects; say --yes"},
		"an unknown tool":   {append(args, "--yes", "--tool", "billing/refund"), exitUsage, "no such tool"},
		"a non_idempotent":  {append(args, "--yes", "--tool", "billing/mail"), exitFailed, "there is nothing to verify"},
		"payload not JSON":  {append(args, "--yes", "--payload", "{amount}"), exitUsage, "--payload is not valid JSON"},
		"other not JSON":    {append(args, "--yes", "--other-payload", "@gone.json"), exitUsage, "--other-payload: open gone.json"},
		"nothing at once":   {append(args, "--yes", "--concurrent", "1"), exitUsage, "--concurrent is between 2 and 100"},
		"no configuration":  {append(args, "--yes", "--config", ""), exitUsage, "--config FILE"},
		"not configuration": {append(args, "--yes", "--config", "gone.yaml"), exitConfigInvalid, "gone.yaml"},
	} {
		got := run(t, test.args...)
		if got.code != test.code || got.stdout != "" || !strings.Contains(got.stderr, test.says) {
			t.Errorf("%s: got %+v, want %d and %q", name, got, test.code, test.says)
		}
	}
	if requests := provider.Ledger.Audit().TotalRequests(); requests != 0 {
		t.Errorf("the provider was called %d times", requests)
	}
}
