package bench_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/cmd/drainer/cli"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/builtin"
)

// profileVariable names the variable with a folder for a CPU profile of every daemon.
const profileVariable = "BENCH_PROFILE"

// drainerMain runs the program with one more adapter.
func drainerMain() int {
	if folder := os.Getenv(profileVariable); folder != "" {
		profile, err := os.CreateTemp(folder, "drainer-*.pprof")
		if err != nil {
			return complain("drainer", err)
		}
		if err := pprof.StartCPUProfile(profile); err != nil {
			return complain("drainer", err)
		}
		defer pprof.StopCPUProfile()
	}
	return cli.Main(append(builtin.Kinds(), noopKind())...)
}

// daemon is `drainer run` in a process of its own.
type daemon struct {
	*process
	metrics string
}

// startDaemon starts a daemon. When it is stopped, it gives its attempts in flight one second.
func startDaemon(b testing.TB, databaseURL string, providers ...provider) *daemon {
	b.Helper()
	text := "version: 1\nserver: {listen: \"127.0.0.1:0\"}\nworker: {shutdown_timeout: 1s}\nproviders:\n"
	for _, provider := range providers {
		text += provider.config()
	}
	config := filepath.Join(b.TempDir(), "drainer.yaml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	p := spawn(b, "drainer", nil, "run", "--config", config, "--database-url", databaseURL)
	return &daemon{process: p, metrics: "http://" + p.awaitLog(`"address":"([^"]+)"`) + "/metrics"}
}

// provider is a provider in the daemon's configuration. It has the tool "act".
type provider struct {
	name        string
	adapter     string
	settings    string // the adapter's block
	tool        string // the tool's block of the adapter
	concurrency int
	promise     string // the tool's class and the class's settings
	authority   string // the certificate authority of the provider, in PEM; "" for the authorities of the machine
	undoneBy    string // the tool that undoes it; empty for none
}

func (p provider) config() string {
	trust := ""
	if p.authority != "" {
		trust = fmt.Sprintf("    tls: {ca: %q}\n", p.authority)
	}
	compensation := "compensation: none"
	if p.undoneBy != "" {
		compensation = fmt.Sprintf("compensate_with: {tool: %s, payload: \"{ref: .provider_ref}\"}", p.undoneBy)
	}
	return fmt.Sprintf(`  %s:
%s    adapter: %s
    concurrency: %d
    %s: {%s}
    tools: {act: {%s: {%s}, idempotency: {%s}, %s, retry: {base: 1ms, cap: 10ms}}}
`, p.name, trust, p.adapter, p.concurrency, p.adapter, p.settings, p.adapter, p.tool, p.promise, compensation)
}

func (p provider) act() string { return p.name + "/act" }

const keyIdempotent = "class: key_idempotent, ttl: 24h, scope: account"

// noop returns a provider without a cost of its own.
func noop(name string) provider {
	return provider{name: name, adapter: "noop", concurrency: inFlight, promise: keyIdempotent}
}

// served returns the provider at the endpoint.
func served(name string, at endpoint) provider {
	return provider{
		authority: at.authority,
		name:      name, adapter: "http", settings: fmt.Sprintf("base_url: %q", at.url), tool: "method: POST, path: /act, response: {ref: .id}",
		concurrency: inFlight, promise: keyIdempotent,
	}
}

var settledSeries = regexp.MustCompile(`(?m)^drainer_settled_total\{provider="[^"]+",status="completed"\} (\S+)$`)

// plainly asks for no compression, because compressing the metrics would slow down the daemon.
var plainly = &http.Client{Transport: &http.Transport{DisableCompression: true}}

// completed returns how many intents of all providers the daemon has completed.
func (d *daemon) completed() int {
	d.b.Helper()
	response, err := plainly.Get(d.metrics)
	if err != nil {
		d.b.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		d.b.Fatal(err)
	}
	total := 0.0
	for _, found := range settledSeries.FindAllSubmatch(text, -1) {
		value, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			d.b.Fatal(err)
		}
		total += value
	}
	return int(total)
}

// awaitCompleted returns once the daemons have completed that many intents together.
func awaitCompleted(rows int, daemons ...*daemon) {
	daemons[0].b.Helper()
	daemons[0].await(fmt.Sprintf("completed %d intents", rows), func() bool {
		completed := 0
		for _, daemon := range daemons {
			completed += daemon.completed()
		}
		return completed >= rows
	})
}

// payload is an SQL expression over n for an order of about 500 bytes of JSON.
const payload = `jsonb_build_object(
  'order', 'order-' || n, 'amount', n, 'currency', 'eur', 'capture', true, 'customer', 'customer-' || n % 5000,
  'items', jsonb_build_array(jsonb_build_object('sku', 'sku-' || n % 700, 'quantity', 1 + n % 3),
                             jsonb_build_object('sku', 'sku-' || n % 900, 'quantity', 1)),
  'note', repeat('Leave it at the door. ', 14))`

// payloadText is one such order.
var payloadText = `{"order": "order-1", "amount": 1, "currency": "eur", "capture": true, "customer": "customer-1", ` +
	`"items": [{"sku": "sku-1", "quantity": 2}, {"sku": "sku-1", "quantity": 1}], ` +
	`"note": "` + strings.Repeat("Leave it at the door. ", 14) + `"}`

// outbox is a database with the drainer's schema.
type outbox struct{ *database }

// enqueue spreads that many due intents over the providers. It fills the tables as the triggers would, in a tenth of
// the time. Their pages are written for the first time since a checkpoint, so the drain logs no images of whole
// pages.
func (o *outbox) enqueue(rows int, providers ...provider) {
	o.b.Helper()
	o.enqueueOf(1, rows, providers...)
}

// enqueueOf also spreads them over that many tenants. Their numbers start at the first listed tenant.
func (o *outbox) enqueueOf(tenants, rows int, providers ...provider) {
	o.b.Helper()
	var tools []string
	for _, provider := range providers {
		tools = append(tools, provider.act())
	}
	o.exec(`CHECKPOINT`)
	o.direct(func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.b.Context(), `CREATE TEMP TABLE added ON COMMIT DROP AS SELECT max(id) AS before FROM outbox.intent`); err != nil {
			return err
		}
		if _, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
			SELECT 'run-' || (n + before) / 10, 'step-' || (n + before) % 10, ($2::text[])[1 + n % cardinality($2)], 'order-' || n, `+payload+`
			FROM generate_series(1, $1::int) n, (SELECT coalesce(before, 0) AS before FROM added) a`, rows, tools); err != nil {
			return err
		}
		_, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, tenant)
			SELECT provider, created_at, id, agent_run_id, (SELECT coalesce(min(tenant_id), 0) FROM outbox.tenant) + id % $1
			FROM outbox.intent WHERE id > (SELECT coalesce(before, 0) FROM added)`, tenants)
		return err
	})
}

// direct writes to tables without their triggers, in one transaction.
func (o *outbox) direct(write func(pgx.Tx) error) {
	o.b.Helper()
	err := pgx.BeginFunc(o.b.Context(), o, func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.b.Context(), `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
		return write(tx)
	})
	if err != nil {
		o.b.Fatalf("filling the outbox: %v", err)
	}
}

// now returns the time of the database's clock.
func (o *outbox) now() time.Time {
	return read[time.Time](o.database, `SELECT clock_timestamp()`)
}

// attemptsPerSecond returns the rate of the attempts that have ended since then, from their first start to their last
// end.
func (o *outbox) attemptsPerSecond(since time.Time) float64 {
	o.b.Helper()
	return read[float64](o.database, `
		SELECT count(*) / extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM outbox.attempt
		WHERE outcome IN ('completed', 'throttled') AND finished_at > $1::timestamptz`, since)
}

// noopSettings is the provider's `noop` block.
type noopSettings struct {
	ThrottledPercent int  `yaml:"throttled_percent,omitempty"` // of the intents, on their first attempt
	Hangs            bool `yaml:"hangs,omitempty"`             // until the attempt's timeout
	Refuses          bool `yaml:"refuses,omitempty"`           // every intent, permanently
}

// noopKind registers an adapter whose provider costs nothing. Only the outbox's own cost remains.
func noopKind() dispatch.Kind {
	return dispatch.Kind{
		Name: "noop",
		New: func(spec dispatch.Spec) (dispatch.Adapter, error) {
			adapter := &noopAdapter{}
			return adapter, spec.Settings.Decode(&adapter.settings)
		},
		Settings: noopSettings{},
		Tool:     struct{}{},
	}
}

type noopAdapter struct{ settings noopSettings }

func (n *noopAdapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	switch {
	case n.settings.Hangs:
		<-ctx.Done()
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "timeout"}
	case n.settings.Refuses:
		return dispatch.Result{Outcome: dispatch.Rejected, HTTPStatus: 422, ErrorClass: "http_422", Healthy: true}
	case request.Attempt == 1 && n.throttles(request.IdempotencyKey):
		return dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 429, ErrorClass: "http_429", Healthy: true}
	}
	return dispatch.Result{Outcome: dispatch.Completed, HTTPStatus: 200, ProviderRef: "eff_1", Response: json.RawMessage(`{"id":"eff_1"}`)}
}

func (n *noopAdapter) throttles(key string) bool {
	if n.settings.ThrottledPercent == 0 {
		return false
	}
	digest, err := strconv.ParseUint(key[len(key)-8:], 16, 32)
	return err == nil && int(digest%100) < n.settings.ThrottledPercent
}

// wire is the protocol of a provider.
type wire string

const (
	plain    wire = "http"
	tlsHTTP1 wire = "tls_h1"
	tlsHTTP2 wire = "tls_h2"
)

// providerMain answers every request at once, until it is killed.
func providerMain() int {
	over, err := setupOf[wire]()
	if err != nil {
		return complain("provider", err)
	}
	var effects atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"eff_%d"}`, effects.Add(1))
	}))
	server.EnableHTTP2 = over == tlsHTTP2
	authority := ""
	if over == plain {
		server.Start()
	} else {
		server.StartTLS()
		authority = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	}
	fmt.Fprintf(os.Stdout, "serving at %s, trust %q\n", server.URL, authority)
	select {}
}

// endpoint is the address of a provider.
type endpoint struct {
	url       string
	authority string // its certificate authority, in PEM; "" without TLS
}

// startProvider starts a provider in its own process.
func startProvider(b testing.TB, over wire) endpoint {
	b.Helper()
	p := spawn(b, "provider", over)
	authority, err := strconv.Unquote(p.awaitLog(`serving at \S+, trust (".*")\n`))
	if err != nil {
		b.Fatal(err)
	}
	return endpoint{url: p.awaitLog(`serving at (\S+),`), authority: authority}
}

// trust returns the TLS configuration that trusts the endpoint. It is nil without TLS.
func (e endpoint) trust() *tls.Config {
	if e.authority == "" {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(e.authority))
	return &tls.Config{RootCAs: roots}
}

// inFlight is the number of requests that are in flight at once.
const inFlight = 64

// newClient returns a client that keeps a connection for each request in flight.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: inFlight, MaxConnsPerHost: inFlight, ForceAttemptHTTP2: true}}
}
