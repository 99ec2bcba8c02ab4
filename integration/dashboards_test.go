package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/program"
)

// busyConfig has one provider that fails in many ways, one that is down, one that operators pause, and one whose
// answers are lost and whose tool is not idempotent.
const busyConfig = `version: 1
server: {listen: "127.0.0.1:0"}
worker: {heartbeat: 500ms, lease: 4s, shutdown_timeout: 5s}
pages:
  - {name: works, webhook: {url: "${env:PAGER_URL}", secret: "${env:PAGER_SECRET}"}}
  - {name: down, webhook: {url: "http://127.0.0.1:1", secret: "${env:PAGER_SECRET}"}}
providers:
  billing:
    adapter: http
    http: {base_url: "${env:PROVIDER_URL}"}
    tools:
      charge:
        http: {method: POST, path: /v1/charges, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 20, base: 50ms, cap: 500ms}
        compensate_with: {tool: billing/refund, payload: "{charge: .provider_ref}"}
      refund:
        http: {method: POST, path: /v1/refunds, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 20, base: 50ms, cap: 500ms}
        compensation: none
  down:
    adapter: http
    circuit_breaker: {consecutive_failures: 3, cool_down: 1s}
    http: {base_url: "http://127.0.0.1:1"}
    tools:
      act:
        http: {method: POST, path: /}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensation: none
  held:
    adapter: http
    http: {base_url: "${env:PROVIDER_URL}"}
    tools:
      act:
        http: {method: POST, path: /}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensation: none
  mail:
    adapter: http
    http: {base_url: "${env:LOSSY_URL}"}
    tools:
      send:
        http: {method: POST, path: /}
        idempotency: {class: non_idempotent}
        on_failure: dead_letter
        compensation: none
`

// Prometheus stores each series, and reads all of them every few seconds.
func TestAScrapeOfManyToolsIsBounded(t *testing.T) {
	t.Parallel()
	const providers, tools, mostSeries, mostBytes = 20, 200, 8000, 700_000
	config := "version: 1\nserver: {listen: '127.0.0.1:0'}\nproviders:\n"
	for p := range providers {
		config += fmt.Sprintf("  provider_%02d:\n    adapter: log\n    tools:\n", p)
		for tool := range tools {
			config += fmt.Sprintf("      operation_%03d: {idempotency: {class: non_idempotent}}\n", tool)
		}
	}
	rig := harness.Without(t)
	daemon := program.New(t, rig.URL).Start(program.WriteConfig(t, config))
	scrape := func() (series, bytes int) {
		answer := daemon.Get("/metrics")
		for line := range strings.Lines(answer) {
			if !strings.HasPrefix(line, "#") {
				series++
			}
		}
		return series, len(answer)
	}
	if warnings := strings.Count(daemon.Log(), `"level":"WARN"`); warnings > 5 || len(daemon.Log()) > 10_000 {
		t.Errorf("the start of %d tools is %d warnings in %d bytes", providers*tools, warnings, len(daemon.Log()))
	}
	unused, _ := scrape()
	rig.Exec(fmt.Sprintf(`SELECT count(*) FROM generate_series(0, %d) p, generate_series(0, %d) t,
		outbox.enqueue('run-' || p, 'step-' || t, format('provider_%%s/operation_%%s', to_char(p, 'fm00'), to_char(t, 'fm000')), 'scope', '{}')`, providers-1, tools-1))
	rig.AwaitStatus("completed", providers*tools)
	series, bytes := 0, 0
	drainertest.Eventually(t, "each tool has its series", func() bool { series, bytes = scrape(); return series > providers*tools })
	for range 2 { // a tool's series are zero before they show its first count
		scrape()
	}
	series, bytes = scrape()
	t.Logf("%d series before any tool is used, %d in %d bytes after each was", unused, series, bytes)
	if unused > 2000 || series > mostSeries || bytes > mostBytes {
		t.Errorf("there are %d series before any tool is used, and %d in %d bytes after each was, want at most %d in %d", unused, series, bytes, mostSeries, mostBytes)
	}
}

// Each panel's query goes to a real Prometheus that scrapes the real program under load. No result may be empty.
func TestEveryPanelOfTheDashboardsShowsData(t *testing.T) {
	t.Parallel()
	prometheus := findPrometheus(t)
	busy := startBusy(t)
	server := prometheus.start(t, busy.replicas)

	var listed []string
	for _, query := range panelQueries(t) {
		listed = append(listed, fmt.Sprintf("%4d series  %s", server.await(t, query.panel, query.expr), query.panel))
	}
	t.Logf("%d queries\n%s", len(listed), strings.Join(listed, "\n"))

	// The panels show the events that the test caused.
	for _, query := range []string{
		`sum(drainer_census_leader) == 1 and count(drainer_census_duration_seconds) == 1`,
		`drainer_circuit_breaker_state{provider="down", state="closed"} == 0`,
		`drainer_provider_paused{provider="held"} == 1 and on (provider) drainer_outbox_due_rows > 0`,
		`drainer_pages_total{channel="works", outcome="delivered"} > 0`,
		`drainer_pages_total{channel="down", outcome="unreachable"} > 0`,
		`drainer_incidents_open{kind="outcome_unknown"} > 0 and drainer_incidents_open{kind="outcome_unknown"} < 10000`,
		`sum(drainer_settled_total{provider="mail", status="unknown"}) > 0`,
		`drainer_compensations_total{outcome="undo_enqueued"} > 0`,
		`increase(drainer_duplicates_total{provider="billing"}[10s]) > 0`,
		`increase(drainer_idempotency_key_collisions_total{provider="billing"}[10s]) > 0`,
		`sum(drainer_replays_total{provider="billing"}) > 0`,
		`ALERTS{alertname="DrainerKeyCollision", alertstate="firing"}`,
	} {
		server.await(t, query, query)
	}
}

// panelQuery is one query of one panel, with the dashboard's variables filled in.
type panelQuery struct{ panel, expr string }

func panelQueries(t *testing.T) (queries []panelQuery) {
	t.Helper()
	for file, provider := range map[string]string{"overview.json": ".*", "provider.json": "billing"} {
		text, err := os.ReadFile("../dashboards/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard struct {
			Annotations struct{ List []struct{ Name, Expr string } }
			Panels      []struct {
				Title   string
				Targets []struct{ Expr, RefID string }
			}
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			t.Fatal(err)
		}
		chosen := strings.NewReplacer("$namespace", ".*", "$job", "drainer", "$provider", provider, "$__rate_interval", "10s")
		for _, mark := range dashboard.Annotations.List {
			if mark.Name != "Reload" { // nothing is reloaded here
				queries = append(queries, panelQuery{file + ": annotation " + mark.Name, chosen.Replace(mark.Expr)})
			}
		}
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				queries = append(queries, panelQuery{fmt.Sprintf("%s: %s %s", file, panel.Title, target.RefID), chosen.Replace(target.Expr)})
			}
		}
	}
	if len(queries) < 50 {
		t.Fatalf("there are only %d queries", len(queries))
	}
	return queries
}

// busy is an outbox in which every event happens that the dashboards show.
type busy struct {
	t        *testing.T
	db       *pgxpool.Pool
	replicas []*program.Daemon
}

func startBusy(t *testing.T) *busy {
	t.Helper()
	url := drainertest.Database(t)
	_, healthy := dispatchtest.NewProvider(t, dispatchtest.Random(1, map[dispatchtest.Fault]float64{
		dispatchtest.ThrottleFor: 0.05, dispatchtest.ErrorAfter: 0.1, dispatchtest.DropAfter: 0.1,
	}))
	_, lossy := dispatchtest.NewProvider(t, dispatchtest.Always(dispatchtest.ErrorAfter))
	pager := dispatchtest.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	shell := program.New(t, url, "PROVIDER_URL="+healthy, "LOSSY_URL="+lossy, "PAGER_URL="+pager, "PAGER_SECRET="+pagerSecret, "USER=on-call")
	config := program.WriteConfig(t, busyConfig)
	b := &busy{t: t, db: drainertest.Connect(t, url)}
	for range 2 {
		b.replicas = append(b.replicas, shell.Start(config))
	}
	shell.Run(0, "providers", "pause", "held", "--reason", "to be seen")
	b.enqueue(0)
	drainertest.Eventually(t, "the first run is done", func() (done bool) { // a step in doubt when the rollback begins stays unknown
		err := b.db.QueryRow(t.Context(), `SELECT bool_and(status = 'completed') FROM outbox.status WHERE agent_run_id = 'run-0'`).Scan(&done)
		return err == nil && done
	})
	shell.Run(0, "compensate", "run-0", "--reason", "to be seen")
	go b.keepBusy()
	return b
}

// keepBusy enqueues intents each second until the test ends.
func (b *busy) keepBusy() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for round := 1; ; round++ {
		select {
		case <-b.t.Context().Done():
			return
		case <-ticker.C:
			b.enqueue(round)
		}
	}
}

// enqueue commits new intents for each provider. It enqueues one intent twice, and uses one key for another payload.
func (b *busy) enqueue(round int) {
	run := fmt.Sprintf("run-%d", round)
	// The intents that stay unknown or wait belong to another run, because a saga of this run would wait for them.
	for _, sql := range []string{
		`SELECT outbox.enqueue($1, n::text, 'billing/charge', 'scope', '{"amount": 1}') FROM generate_series(1, 10) n`,
		`SELECT outbox.enqueue($1, '1', 'billing/charge', 'scope', '{"amount": 1}')`,
		`SELECT outbox.enqueue($1, '2', 'billing/charge', 'scope', '{"amount": 2}')`,
		`SELECT outbox.enqueue('other-' || $1, tool, tool, 'scope', '{}') FROM unnest('{down/act, held/act, mail/send}'::text[]) tool`,
	} {
		_, _ = b.db.Exec(b.t.Context(), sql, run) // a collision is refused, and so is a new step of a closed run
	}
}

// prometheusProgram is the path of the first prometheus on the PATH, such as Debian's.
type prometheusProgram string

func findPrometheus(t *testing.T) prometheusProgram {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no prometheus here; install Debian's prometheus to see what the dashboards show")
	}
	return prometheusProgram(path)
}

// prometheusServer scrapes every second.
type prometheusServer struct{ url string }

func (program prometheusProgram) start(t *testing.T, replicas []*program.Daemon) *prometheusServer {
	t.Helper()
	rules, err := filepath.Abs("../dashboards/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, replica := range replicas {
		targets = append(targets, strings.TrimPrefix(replica.Base, "http://"))
	}
	folder := t.TempDir()
	config := filepath.Join(folder, "prometheus.yaml")
	text := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - {job_name: drainer, static_configs: [{targets: [%s], labels: {namespace: test}}]}
`, rules, `"`+strings.Join(targets, `", "`)+`"`)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := dispatchtest.Address(t)
	var log strings.Builder
	command := exec.Command(string(program), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(folder, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	server := &prometheusServer{url: "http://" + address}
	drainertest.Eventually(t, "Prometheus is ready", func() bool {
		response, err := http.Get(server.url + "/-/ready")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return server
}

// await queries until the result has a series, and returns the number of series.
func (p *prometheusServer) await(t *testing.T, what, query string) (series int) {
	t.Helper()
	drainertest.Eventually(t, what, func() bool {
		var err error
		if series, err = p.ask(query); err != nil {
			t.Fatalf("%s: %v\n%s", what, err, query)
		}
		return series > 0
	})
	return series
}

// ask counts the series whose value is a number.
func (p *prometheusServer) ask(query string) (series int, err error) {
	response, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	for _, one := range answer.Data.Result {
		if one.Value[1] != "NaN" {
			series++
		}
	}
	return series, nil
}
