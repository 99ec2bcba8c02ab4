package conformance_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/conformance"
)

// install configures a toy for a desk.
func install(t *testing.T, desk *desk, flaw flaw, class dispatch.Class) conformance.Installed {
	t.Helper()
	blocks := desk.counterpart()
	adapter, err := newToy(dispatch.Spec{
		Provider: "desk",
		Timeout:  5 * time.Second,
		Settings: conformance.Block(blocks.Settings),
		Tools:    map[string]dispatch.ToolSpec{"act": {Class: class, Settings: conformance.Block(blocks.Tool)}},
	}, flaw)
	if err != nil {
		t.Fatal(err)
	}
	return conformance.Installed{
		Provider: "desk", Adapter: adapter, Timeout: 5 * time.Second,
		Tools: map[string]dispatch.Class{"act": class}, Secrets: []string{secret, "short"},
	}
}

func plan(desk *desk) conformance.Plan {
	return conformance.Plan{Operation: "act", Payload: desk.counterpart().Payload, Concurrent: 4}
}

// verdicts are the checks that did not pass.
func verdicts(report conformance.Report) string {
	var all []string
	for _, check := range report.Checks {
		if check.Verdict != conformance.OK {
			all = append(all, check.Name+": "+string(check.Verdict))
		}
	}
	return strings.Join(all, ", ")
}

func TestAnInstalledAdapterIsAskedWithoutSending(t *testing.T) {
	t.Parallel()
	for flaw, want := range map[flaw]string{
		none:                   "",
		sendsUnknownOperations: "unknown operation: failed",
		sendsWhenCancelled:     "cancelled before: failed",
		failsToClose:           "closes: failed",
		leaksGoroutines:        "goroutines: failed",
	} {
		t.Run(string(flaw), func(t *testing.T) {
			t.Parallel()
			desk := newDesk(t)
			report := install(t, desk, flaw, dispatch.KeyIdempotent).Quiet(t.Context())
			if got := verdicts(report); got != want || report.Passed != (want == "") {
				t.Errorf("got %q, want %q", got, want)
			}
			if arrived := len(desk.counterpart().Received()); flaw == none && arrived != 0 {
				t.Errorf("%d messages arrived", arrived)
			}
		})
	}
}

func TestAnInstalledAdapterIsAskedBySending(t *testing.T) {
	t.Parallel()
	// The toy's protocol does not tell a replay.
	const unproven = "same call again: warning"
	for name, test := range map[string]struct {
		flaw      flaw
		class     dispatch.Class
		situation conformance.Situation
		want      string
	}{
		"without a flaw":        {none, dispatch.NaturallyIdempotent, conformance.Answering, ""},
		"nothing shows the key": {none, dispatch.KeyIdempotent, conformance.Answering, unproven},
		"not to be repeated":    {none, dispatch.NonIdempotent, conformance.Answering, "same call again: not checked"},
		"throttled":             {none, dispatch.KeyIdempotent, conformance.Throttling, "first call: no verdict"},
		"unreachable":           {none, dispatch.KeyIdempotent, conformance.Unreachable, "first call: no verdict"},
		"refused":               {none, dispatch.KeyIdempotent, conformance.Rejecting, "first call: failed"},
		"tells a secret":        {tellsSecrets, dispatch.KeyIdempotent, conformance.Rejecting, "first call: failed, result: failed, no secret of the configuration: failed"},
		"echoes a secret":       {echoesSecrets, dispatch.NaturallyIdempotent, conformance.Answering, "no secret of the configuration: warning"},
		"changes requests":      {changesRequests, dispatch.NaturallyIdempotent, conformance.Answering, "request unchanged: failed"},
		"stores NUL":            {storesNUL, dispatch.NaturallyIdempotent, conformance.Answering, "storable: failed"},
		"leaks":                 {leaksGoroutines, dispatch.NaturallyIdempotent, conformance.Answering, "goroutines: failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			desk := newDesk(t)
			installed := install(t, desk, test.flaw, test.class)
			desk.enter(test.situation)
			report := installed.Live(t.Context(), plan(desk))
			if got := verdicts(report); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if failed := strings.Contains(test.want, "failed") || strings.Contains(test.want, "no verdict"); report.Passed == failed {
				t.Errorf("passed: %t", report.Passed)
			}
		})
	}
}

func TestNoMoreIsSentThanWasSaid(t *testing.T) {
	t.Parallel()
	for class, want := range map[dispatch.Class]int{dispatch.KeyIdempotent: 7, dispatch.NonIdempotent: 6} {
		desk := newDesk(t)
		if got := plan(desk).Calls(class); got != want {
			t.Errorf("%s: %d calls, want %d", class, got, want)
		}
		install(t, desk, none, class).Live(t.Context(), plan(desk))
		// The last has so short a deadline that it may not have left.
		if arrived := len(desk.counterpart().Received()); arrived != want && arrived != want-1 {
			t.Errorf("%s: %d messages arrived, want %d", class, arrived, want)
		}
	}
}
