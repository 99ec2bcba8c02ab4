package faults_test

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/integration/world"
)

// Every secret has canary in it. What agents name has agentName: operators see
// it, and nobody else.
const (
	canary    = "canary"
	agentName = "name-by-agent"
)

// TestNoSecretIsInAnyOutput plants canaries wherever there may be a secret, and
// has everything go wrong that may put one into an error.
func TestNoSecretIsInAnyOutput(t *testing.T) {
	t.Parallel()
	w := world.New(t, nil)
	witness := newWitness(w.Provider)
	address := dispatchtest.Serve(t, witness)
	w.Reconfigure(func(config string) string { return withSecrets(config, w.BaseURL, address) })
	w.Program = program.New(t, loginURL(t, w), "USER=ann", "TOKEN=canary-token", "CREDENTIALS=canary:canary",
		"PAGER_PATH=canary-pager", "PAGER_SECRET=whsec_"+strings.Repeat("canaryXX", 4),
		"OTEL_EXPORTER_OTLP_ENDPOINT="+as(t, address, "outbox")+"/collector", "OTEL_EXPORTER_OTLP_HEADERS=x-token=canary-collector", "OTEL_BSP_SCHEDULE_DELAY=50")
	daemon := w.Start()
	for run := range talks {
		enqueueWithSecrets(w, run, world.Once)
	}
	enqueueWithSecrets(w, len(talks), world.Order)
	w.AwaitRest()
	enqueueWithSecrets(w, len(talks), world.Declined)
	w.AwaitCount("a run has gone back", 1, `SELECT count(*) FROM outbox.status WHERE status = 'compensated'`)
	daemon.WaitFor("a page was not delivered")
	witness.pagerUp.Store(true)
	daemon.WaitFor(`"msg":"paged"`)
	drainertest.Eventually(t, "spans are exported", func() bool { return witness.body("collector") != "" })

	hidden := map[string]string{
		"metrics":   daemon.Get("/metrics"),
		"readiness": daemon.Get("/readyz"),
		"log":       daemon.Terminate(), // which exports the last spans
		"pages":     witness.body("pager"),
		"spans":     witness.body("collector"),
	}
	fault.Injected(t, 63, witness.spoke+witness.saw(t, "canary-token", "canary-payload", "canary-query", "canary-agent", "canary-pager", "canary-collector"))
	for place, text := range hidden {
		assertLacks(t, place, text, canary, agentName)
	}
	for command, text := range commands(w) {
		assertLacks(t, command, text, canary)
	}
	assertLacks(t, "incidents and jobs", kept(t, w), canary)
}

// kept is what waits in the database to be shown to somebody.
func kept(t *testing.T, w *world.World) string {
	t.Helper()
	const rows = `SELECT coalesce((SELECT string_agg(i::text, ' ') FROM outbox.incident i), '') || coalesce((SELECT string_agg(row_to_json(j)::text, ' ') FROM outbox.river_job j WHERE kind LIKE 'page%'), '')`
	return drainertest.Value[string](t, w.DB, rows)
}

func assertLacks(t *testing.T, place, text string, words ...string) {
	t.Helper()
	if text == "" {
		t.Errorf("the %s say nothing, and so they show nothing", place)
	}
	for _, word := range words {
		if before, after, found := strings.Cut(text, word); found {
			t.Errorf("the %s show a secret: …%s%s%.100s", place, before[max(0, len(before)-200):], word, after)
		}
	}
}
