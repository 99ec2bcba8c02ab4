package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/conformance"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// installed serves a provider, and gives the arguments that verify its adapter.
func installed(t *testing.T, provider *dispatchtest.SimulatedProvider) (args []string, host string) {
	t.Helper()
	replay, host := sandbox(t, provider)
	return []string{"verify", "adapter", "--config", replay[3], "--provider", "billing"}, host
}

func sending(args []string, more ...string) []string {
	return append(append(args, "--tool", "charge", "--payload", `{"amount": 1}`), more...)
}

func TestVerifyAdapterSendsNothingUnasked(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger()}
	args, host := installed(t, provider)
	got := run(t, args...)
	if got.code != exitOK || got.stderr != "" {
		t.Errorf("got %+v", got)
	}
	for _, want := range []string{
		"CHECK VERDICT SEEN EXPECTED ADVICE",
		"unknown operation ok not_sent, unconfigured_tool",
		"cancelled before ok not_sent, cancelled",
		"no secret of the configuration ok none",
		"goroutines ok none",
	} {
		if !strings.Contains(squeeze(got.stdout), want) {
			t.Errorf("no %q in\n%s", want, got.stdout)
		}
	}
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"without --yes":       {sending(args), exitUsage, "this calls billing/charge at " + host + ", up to 11 times, with real effects; say --yes"},
		"--yes alone":         {append(args, "--yes"), exitUsage, "say which, with --tool and --payload"},
		"no payload":          {append(args, "--yes", "--tool", "charge"), exitUsage, "[payload]"},
		"payload not JSON":    {sending(args, "--yes", "--payload", "{amount}"), exitUsage, "--payload is not valid JSON"},
		"nothing at once":     {sending(args, "--yes", "--concurrent", "1"), exitUsage, "--concurrent is between 2 and 100"},
		"an unknown tool":     {sending(args, "--yes", "--tool", "refund"), exitUsage, "the provider has no such tool"},
		"an unknown provider": {append(args, "--provider", "bank"), exitUsage, "no such provider"},
		"no provider":         {args[:4], exitUsage, `"provider" not set`},
		"not configuration":   {append(args, "--config", "gone.yaml"), exitConfigInvalid, "gone.yaml"},
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

func TestVerifyAdapterPassesOneThatWorks(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger()}
	args, host := installed(t, provider)
	got := run(t, sending(args, "--yes")...)
	if got.code != exitOK || got.stderr != "calling billing/charge at "+host+", up to 11 times\n" {
		t.Errorf("got %+v", got)
	}
	for _, want := range []string{
		"first call ok completed",
		"same call again ok completed, replayed",
		"intents at once ok 8 of 8",
		"tiny deadline ok",
		"goroutines ok none",
	} {
		if !strings.Contains(squeeze(got.stdout), want) {
			t.Errorf("no %q in\n%s", want, got.stdout)
		}
	}
	// The tiny deadline may have been long enough.
	if effects := provider.Ledger.Audit().TotalEffects(); effects != 9 && effects != 10 {
		t.Errorf("%d effects, want one a key", effects)
	}
}

func TestVerifyAdapterDoesNotRepeatWhatHasItsEffectAgain(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger()}
	args, host := installed(t, provider)
	got := run(t, sending(args, "--yes", "--tool", "mail", "--concurrent", "2")...)
	if got.code != exitOK || got.stderr != "calling billing/mail at "+host+", up to 4 times\n" || !strings.Contains(squeeze(got.stdout), "same call again not checked") {
		t.Errorf("got %+v", got)
	}
}

func TestVerifyAdapterFailsWhatActsTwiceUnderOneKey(t *testing.T) {
	t.Parallel()
	args, _ := installed(t, &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), IgnoreKeys: true})
	got := run(t, sending(args, "--yes", "-o", "json")...)
	var report conformance.Report
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil {
		t.Fatal(err)
	}
	if got.code != exitFailed || report.Passed || report.Tool != "billing/charge" || !strings.Contains(got.stderr, "the adapter does not do what drainer takes for granted") {
		t.Errorf("got %+v", got)
	}
}

func TestVerifyAdapterHasNoVerdictInAnOutage(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), Plan: dispatchtest.Always(dispatchtest.Overloaded)}
	args, _ := installed(t, provider)
	got := run(t, sending(args, "--yes")...)
	if got.code != exitFailed || !strings.HasSuffix(got.stderr, "\ndrainer: no verdict: the provider was not available; try again\n") || !strings.Contains(squeeze(got.stdout), "first call no verdict throttled") {
		t.Errorf("got %+v", got)
	}
	if requests := provider.Ledger.Audit().TotalRequests(); requests != 1 {
		t.Errorf("the provider was called %d times", requests)
	}
}

// gossip is an adapter that says whatever it knows.
type gossip struct{ Token string }

func (g gossip) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "refused_" + g.Token}
}

func TestVerifyAdapterFindsASecretOfTheConfiguration(t *testing.T) {
	t.Setenv("GOSSIP_TOKEN", "secret_51ab")
	registry, err := dispatch.NewRegistry(dispatch.Kind{
		Name: "gossip", Settings: gossip{}, Tool: struct{}{},
		New: func(spec dispatch.Spec) (dispatch.Adapter, error) {
			var settings struct {
				Token string `yaml:"token"`
			}
			err := spec.Settings.Decode(&settings)
			return gossip{settings.Token}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := write(t, "gossip.yaml", `version: 1
providers:
  village:
    adapter: gossip
    gossip: {token: "${env:GOSSIP_TOKEN}"}
    tools: {talk: {idempotency: {class: read_only}}}
`)
	got := runRoot(t, newRoot(registry), "verify", "adapter", "--config", file, "--provider", "village")
	if got.code != exitFailed || !strings.Contains(squeeze(got.stdout), "no secret of the configuration failed") {
		t.Errorf("got %+v", got)
	}
}
