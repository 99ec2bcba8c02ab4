package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/contract/manifest"
	"github.com/agentoutbox/drainer/contract/replay"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// installed serves a provider, and returns the arguments that verify its adapter.
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
		"handshake not run",
		"first call not run",
		"no secret of the configuration not run",
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

// Most of these providers cannot answer anything, and were reported as ok once.
func TestVerifyAdapterStartsTheOtherSide(t *testing.T) {
	t.Parallel()
	broken := write(t, "broken.sh", "echo no hello\n")
	file := write(t, "adapters.yaml", `version: 1
providers:
  missing:
    adapter: exec
    exec: {command: [/nope/nothing]}
    tools: {go: {idempotency: {class: read_only}}}
  broken:
    adapter: exec
    exec: {command: [sh, `+broken+`]}
    tools: {go: {idempotency: {class: read_only}}}
  socket:
    adapter: sidecar
    sidecar: {url: "unix:///nope/nothing.sock"}
    tools: {go: {idempotency: {class: read_only}}}
  server:
    adapter: mcp
    mcp: {command: [/nope/nothing]}
    tools: {go: {idempotency: {class: read_only}}}
  queue:
    adapter: nats
    nats: {urls: ["nats://127.0.0.1:1"]}
    egress: {private: allow}
    tools: {go: {nats: {subject: go}, idempotency: {class: non_idempotent}}}
  topic:
    adapter: kafka
    kafka: {brokers: ["127.0.0.1:1"]}
    egress: {private: allow}
    tools: {go: {kafka: {topic: go}, idempotency: {class: non_idempotent}}}
  mail:
    adapter: smtp
    smtp: {server: "127.0.0.1:1", from: a@example.com}
    egress: {private: allow}
    tools: {go: {smtp: {to: [b@example.com], subject: go, text: go}, idempotency: {class: non_idempotent}}}
  works:
    adapter: exec
    exec: {command: [sh, -c, 'read hello; echo "{\"protocol\":[1],\"name\":\"works\"}"; cat >/dev/null']}
    tools: {go: {idempotency: {class: read_only}}}
  lacks:
    adapter: exec
    exec: {command: [sh, -c, 'read hello; echo "{\"protocol\":[1],\"name\":\"lacks\",\"operations\":{\"come\":\"read_only\"}}"; cat >/dev/null']}
    tools: {go: {idempotency: {class: read_only}}}
`)
	for provider, want := range map[string]string{
		"missing": "handshake failed not_sent, child_start",
		"broken":  "handshake failed not_sent, invalid_hello",
		"socket":  "handshake failed not_sent, dial",
		"server":  "handshake failed not_sent, child_start",
		"queue":   "handshake failed not_sent,",
		"lacks":   "handshake failed not_sent, unknown_operation: go",
		"topic":   "handshake not run", // these two connect only to send
		"mail":    "handshake not run",
		"works":   "handshake ok completed",
	} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			got := run(t, "verify", "adapter", "--config", file, "--provider", provider)
			failed := strings.Contains(want, "failed")
			if !strings.Contains(squeeze(got.stdout), want) || (got.code != exitOK) != failed {
				t.Errorf("got %+v, want %q", got, want)
			}
			if failed && !strings.Contains(got.stderr, "the adapter cannot reach its other side: not_sent") {
				t.Errorf("got %q", got.stderr)
			}
		})
	}
}

func TestAManifestWithoutAnOperationIsNotVerified(t *testing.T) {
	t.Parallel()
	got := run(t, "verify", "manifest", write(t, "openapi.yaml", "openapi: 3.1.0\ninfo: {title: Billing, version: \"1\"}\npaths: {}\n"))
	if got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, "no operation, so nothing was checked") {
		t.Errorf("got %+v", got)
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
	// The call with the tiny deadline may have had its effect in time.
	if effects := provider.Ledger.Audit().TotalEffects(); effects != 9 && effects != 10 {
		t.Errorf("%d effects, want one a key", effects)
	}
}

func TestVerifyAdapterDoesNotRepeatWhatHasItsEffectAgain(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger()}
	args, host := installed(t, provider)
	got := run(t, sending(args, "--yes", "--tool", "mail", "--concurrent", "2")...)
	if got.code != exitOK || got.stderr != "calling billing/mail at "+host+", up to 4 times\n" || !strings.Contains(squeeze(got.stdout), "same call again not run") {
		t.Errorf("got %+v", got)
	}
}

func TestVerifyAdapterFailsWhatActsTwiceUnderOneKey(t *testing.T) {
	t.Parallel()
	args, _ := installed(t, &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), IgnoreKeys: true})
	got := run(t, sending(args, "--yes", "-o", "json")...)
	var report dispatchtest.Report
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil {
		t.Fatal(err)
	}
	if got.code != exitFailed || report.Passed || report.Tool != "billing/charge" || !strings.Contains(got.stderr, "the adapter does not do what drainer requires") {
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

// gossip is an adapter that repeats its token in each result.
type gossip struct{ Token string }

func (g gossip) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "refused_" + g.Token, ProviderRef: g.Token}
}

func TestVerifyFindsASecretOfTheConfigurationAndPrintsNone(t *testing.T) {
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
	if got.code != exitFailed || !strings.Contains(squeeze(got.stdout), "no secret of the configuration failed") || strings.Contains(got.stdout+got.stderr, "secret_51ab") {
		t.Errorf("got %+v", got)
	}
	for _, output := range []string{"table", "json"} {
		got = runRoot(t, newRoot(registry), "verify", "replay", "--config", file, "--tool", "village/talk", "--payload", "{}", "--yes", "-o", output)
		if !strings.Contains(got.stdout, "refused_[secret]") || strings.Contains(got.stdout+got.stderr, "secret_51ab") {
			t.Errorf("replay: %+v", got)
		}
	}
}

const badManifest = `openapi: 3.1.0
info: {title: Billing, version: "1"}
paths:
  /v1/charges:
    post: {operationId: create_charge, responses: {"200": {description: Done.}}}
    delete:
      operationId: delete_charges
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent, ttl: 24h}
`

func TestVerifyManifestListsEveryViolationAndExitsWith1(t *testing.T) {
	t.Parallel()
	got := run(t, "verify", "manifest", write(t, "openapi.yaml", badManifest))
	want := result{
		exitFailed,
		`LINE  OPERATION           PLACE                    PROBLEM                                       CURE
6     DELETE /v1/charges  x-agent-idempotency.ttl  it has no meaning for naturally_idempotent    leave it out, or correct the class
5     POST /v1/charges    x-agent-idempotency      nothing says what repeating this call does    add it, with the class that is true: read_only, naturally_idempotent, key_idempotent, non_idempotent
`,
		"drainer: 2 violations in 2 operations\n",
	}
	if squeeze(got.stdout) != squeeze(want.stdout) || got.code != want.code || got.stderr != want.stderr {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// squeeze replaces each run of spaces by one space, so that the widths of columns do not count.
func squeeze(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

func TestVerifyManifestPrintsJSON(t *testing.T) {
	t.Parallel()
	got := run(t, "verify", "manifest", write(t, "openapi.yaml", badManifest), "-o", "json")
	var verdict manifestVerdict
	if err := json.Unmarshal([]byte(got.stdout), &verdict); err != nil {
		t.Fatal(err)
	}
	if got.code != exitFailed || verdict.Valid || verdict.Writes != 2 || len(verdict.Violations) != 2 || verdict.Violations[1].Rule != manifest.RuleUndeclared {
		t.Errorf("got %+v", got)
	}
}

func TestAGoodManifestExitsWith0(t *testing.T) {
	t.Parallel()
	want := result{exitOK, "8 operations, 6 writes, no violation\n", ""}
	if got := run(t, "verify", "manifest", goodManifest); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got := run(t, "verify", "manifest", goodManifest, "-o", "json")
	if got.code != exitOK || !strings.Contains(got.stdout, `"violations": []`) {
		t.Errorf("got %+v", got)
	}
}

const goodManifest = "../../../contract/manifest/testdata/good.yaml"

func TestAnUnreadableManifestFails(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"swagger: '2.0'", "no: [openapi"} {
		got := run(t, "verify", "manifest", write(t, "openapi.yaml", content))
		if got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, manifest.ErrUnreadable.Error()) {
			t.Errorf("%s: got %+v", content, got)
		}
	}
	if got := run(t, "verify", "manifest"); got.code != exitUsage {
		t.Errorf("without a document: %+v", got)
	}
}

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

// sandbox serves a provider, and returns the arguments that verify it.
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
		"same body ok equal, byte for byte",
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
		"without --yes":     {args, exitUsage, "this calls billing/charge at " + host + ", up to 10 times, with real effects; say --yes"},
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
