package integration_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/internal/pgpool"
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
		"long key part":        {current, []string{"enqueue", "--run", strings.Repeat("r", 256), "--step", "s", "--tool", "t", "--scope", "x", "--payload", "{}"}, 2, "256 bytes"},
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

// Every place that could leak has a canary. The log of an attempt must still show the hash of its key and the id that
// the provider gave.
func TestNoPayloadKeyPartOrSecretReachesLogsOrMetrics(t *testing.T) {
	t.Parallel()
	_, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.ErrorAfter, dispatchtest.None))
	databaseURL := drainertest.Database(t)
	shell := program.New(t, databaseURL, "BILLING_TOKEN=canary-token")
	config := strings.Replace(fmt.Sprintf(billingConfig, baseURL), "providers:\n", "console: {listen: '127.0.0.1:0'}\nproviders:\n", 1)
	daemon := shell.Start(program.WriteConfig(t, config))

	shell.Run(0, "enqueue", "--run", "canary-run", "--step", "canary-step", "--tool", "billing/charge", "--scope", "canary-scope",
		"--payload", `{"card": "canary-payload"}`)
	daemon.WaitFor(`"status":"completed"`)
	db := drainertest.Connect(t, databaseURL)
	drainertest.Exec(t, db, `INSERT INTO outbox.saga (agent_run_id, cause, passes) VALUES ('canary-run', 1, 3)`)
	daemon.WaitFor("a saga is left to a human")
	drainertest.Exec(t, db, `ALTER TABLE outbox.saga RENAME TO away`)
	if page, err := http.Get(daemon.Console() + "/runs/canary-run"); err != nil || page.StatusCode != http.StatusInternalServerError {
		t.Errorf("a page without its table answers %v, %v", page, err)
	} else {
		page.Body.Close()
	}
	daemon.WaitFor("a page failed")
	for range 2 { // the first scrapes show an attempt's series as 0
		daemon.Get("/metrics")
	}
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
	for _, want := range []string{
		`"outcome":"ambiguous"`, `"idempotency_key":"idem_v1_`, `"provider_ref":"eff_`,
		`"msg":"a saga is left to a human: three passes did not end","intent_id":1}`, `"msg":"a page failed","route":"GET /runs/{run}",`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	if want := `drainer_dispatch_attempts_total{operation="charge",outcome="completed",provider="billing"} 1`; !strings.Contains(metrics, want) {
		t.Errorf("the metrics lack %s", want)
	}
}

func TestProfilesAnswerOnTheirOwnListenerAloneAndScrapersMayAskForOpenMetrics(t *testing.T) {
	t.Parallel()
	_, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script())
	shell := program.New(t, drainertest.Database(t), "BILLING_TOKEN=t")
	config := fmt.Sprintf(billingConfig, baseURL)
	daemon := shell.Start(program.WriteConfig(t, strings.Replace(config, "server: {", `server: {debug: "127.0.0.1:0", native_histograms: true, `, 1)))
	if daemon.Logged("profiles can be read") == 0 {
		daemon.WaitFor("profiles can be read")
	}
	address := regexp.MustCompile(`"profiles can be read","address":"([^"]+)"`).FindStringSubmatch(daemon.Log())[1]
	response, err := http.Get("http://" + address + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	profile, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || !strings.Contains(string(profile), "goroutine profile: total") {
		t.Errorf("it answers %v and %.100q, want a profile", err, profile)
	}
	if got := daemon.Get("/debug/pprof/"); !strings.Contains(got, "404") {
		t.Errorf("the listener of the metrics answers %.100q", got)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, daemon.Base+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	if response, err = http.DefaultClient.Do(request); err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || !strings.HasSuffix(string(metrics), "# EOF\n") || !strings.Contains(string(metrics), "drainer_in_flight{") {
		t.Errorf("a scraper that asks for OpenMetrics gets %v and %.100q", err, metrics)
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
	daemon.WaitFor(`"msg":"shutting down"`) // it now waits for the dispatch, which hangs
	daemon.Signal(syscall.SIGTERM)
	<-daemon.Ended
	if daemon.ExitCode() == 0 {
		t.Error("an aborted program exits with 0, want anything else")
	}
}

func TestWhatTheConfigurationForbidsNeverLeaves(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change  func(config, baseURL string) string
		payload string
		status  string
		class   string
	}{
		"a payload against its schema": {
			func(config, _ string) string {
				return config + "        payload_schema: {type: object, properties: {amount: {type: integer}}}\n"
			}, `{"amount": "canary"}`, "failed", "payload_schema",
		},
		"a private address where that is denied": {
			func(config, _ string) string {
				return "egress: {private: deny}\n" + oneTry(config)
			}, `{"amount": 1}`, "failed", "egress_refused",
		},
		"a name that is not on the list": {
			func(config, baseURL string) string {
				return "egress: {allow: [api.example.com]}\n" + oneTry(strings.Replace(config, baseURL, strings.Replace(baseURL, "127.0.0.1", "localhost", 1), 1))
			}, `{"amount": 1}`, "failed", "egress_refused",
		},
		"a cloud's metadata service": {
			func(config, baseURL string) string {
				return oneTry(strings.Replace(config, baseURL, "http://[::ffff:169.254.169.254]/latest", 1))
			}, `{"amount": 1}`, "failed", "egress_refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Healthy())
			shell := program.New(t, drainertest.Database(t), "BILLING_TOKEN=t")
			config := program.WriteConfig(t, test.change(fmt.Sprintf(billingConfig, baseURL), baseURL))
			shell.Run(0, enqueueCharge(test.payload)...)
			_, log := shell.Run(0, "run", "--once", "--config", config)

			var intent struct {
				Status    string
				LastError string `json:"last_error"`
			}
			shell.RunJSON(&intent, append([]string{"intents", "show"}, chargeKey...)...)
			if intent.Status != test.status || intent.LastError != test.class {
				t.Errorf("the intent is %+v, want %s by %s", intent, test.status, test.class)
			}
			if got := provider.Ledger.Audit().TotalRequests(); got != 0 {
				t.Errorf("%d requests left", got)
			}
			if strings.Contains(log, "canary") {
				t.Errorf("the log shows the payload:\n%s", log)
			}
		})
	}
}

// oneTry allows only one attempt.
func oneTry(config string) string {
	return config + "        retry: {max_attempts: 1}\n"
}

// spareConfig follows billingConfig and is its fallback.
const spareConfig = `  spare:
    adapter: http
    http: {base_url: %s}
    tools:
      charge:
        http: {method: POST, path: /v1/charges}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
`

func TestDrainingOnceFailsOnlyIfAShutGateLeavesDueRows(t *testing.T) {
	t.Parallel()
	const (
		paused = `UPDATE outbox.provider SET paused = true WHERE name = 'billing'`
		open   = `UPDATE outbox.provider SET state = 'open', open_until = now() + interval '1 hour' WHERE name = 'billing'`
		doubt  = `UPDATE outbox.queue SET maybe_applied = true, tries = 1, attempt = 1, first_attempt_at = now()`
		lost   = `UPDATE outbox.history SET accepted_by = NULL`
		later  = `UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour'`
	)
	for name, test := range map[string]struct {
		tool     string
		setUp    []string
		fallback bool
		exit     int
		left     int
		status   string
		class    string
	}{
		"nothing shut":                     {"billing/charge", nil, false, 0, 0, "billing 0 0 0 … … false closed", ""},
		"paused":                           {"billing/charge", []string{paused}, false, 1, 1, "billing 1 1 0 … … true closed", ""},
		"breaker open":                     {"billing/charge", []string{open}, false, 1, 1, "billing 1 1 0 … … false open …", ""},
		"paused, nothing due":              {"billing/charge", []string{paused, later}, false, 0, 1, "billing 1 0 0 … … true closed", ""},
		"breaker open, nothing due":        {"billing/charge", []string{open, later}, false, 0, 1, "billing 1 0 0 … … false open …", ""},
		"breaker open, a fallback":         {"billing/charge", []string{open}, true, 0, 0, "billing 0 0 0 … … false open …", ""},
		"breaker open, no fallback for it": {"billing/charge", []string{open, doubt}, true, 1, 1, "billing 1 1 0 … … false open …", ""},
		"commits lost, acts once":          {"billing/charge", []string{lost}, false, 1, 1, "billing 1 1 0 … … false closed", "non_idempotent"},
		"commits lost, nothing due":        {"billing/charge", []string{lost, later}, false, 0, 1, "billing 1 0 0 … … false closed", "non_idempotent"},
		"commits lost, keys":               {"billing/charge", []string{lost}, false, 0, 0, "billing 0 0 0 … … false closed", ""},
		"a provider that no file names":    {"nobody/charge", nil, false, 0, 1, "nobody 1 1 0 … … false not configured", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, baseURL := dispatchtest.NewProvider(t, nil)
			url := drainertest.Database(t)
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			shell := program.New(t, url, "BILLING_TOKEN=t")
			text := fmt.Sprintf(billingConfig, baseURL)
			if test.fallback {
				text = strings.Replace(text, "    adapter: http\n", "    adapter: http\n    fallback: spare\n", 1) + fmt.Sprintf(spareConfig, baseURL)
			}
			if test.class != "" {
				text = strings.Replace(text, "{class: key_idempotent, ttl: 24h, scope: account}", "{class: "+test.class+"}", 1)
			}
			config := program.WriteConfig(t, text)
			shell.Run(0, "run", "--once", "--config", config) // announces the providers
			for _, statement := range append([]string{`SELECT outbox.enqueue('r', 's', '` + test.tool + `', 'x', '{}')`}, test.setUp...) {
				drainertest.Exec(t, conn, statement)
			}

			_, stderr := shell.Run(test.exit, "run", "--once", "--config", config)
			if want := "drainer: due rows are left, because"; strings.Contains(stderr, want) != (test.exit == 1) || (test.exit == 1 && !strings.HasSuffix(stderr, "(billing 1)\n")) {
				t.Errorf("it says\n%s", stderr)
			}
			if left := drainertest.Value[int](t, conn, `SELECT count(*) FROM outbox.queue`); left != test.left {
				t.Errorf("%d rows are left, want %d", left, test.left)
			}
			if stdout, _ := shell.Run(0, "status"); !hasRow(stdout, test.status) {
				t.Errorf("the status is\n%s\nwant %s", stdout, test.status)
			}
			drainertest.AssertInvariant(t, conn)
		})
	}
}

// hasRow looks for a row of a table. A duration in the row is replaced by "…".
func hasRow(table, want string) bool {
	for row := range strings.Lines(table) {
		fields := strings.Fields(row)
		for i, field := range fields {
			if _, err := time.ParseDuration(field); err == nil && strings.HasSuffix(field, "s") {
				fields[i] = "…"
			}
		}
		if strings.Join(fields, " ") == want {
			return true
		}
	}
	return false
}

func TestADaemonServesTheConsoleBesideItsWork(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	daemons, operators := drainertest.Login(t, rig.URL, "outbox_drainer"), drainertest.Login(t, rig.URL, "outbox_operator")
	viewers := drainertest.Login(t, rig.URL, "outbox_auditor")
	folder, token := t.TempDir(), strings.Repeat("a", 40)
	for name, text := range map[string]string{"url": operators, "viewer": viewers, "people": "alice operator " + token + "\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	original := rig.Config
	start := func(block string) (daemon *program.Daemon, ask func(page string, form url.Values) (int, string)) {
		rig.Config = original
		rig.Reconfigure(func(config string) string {
			return strings.Replace(config, "providers:\n", fmt.Sprintf("database: {url: %q}\nconsole: {listen: '127.0.0.1:0'%s}\nproviders:\n", daemons, block), 1)
		})
		daemon = rig.Start()
		base := daemon.Console()
		jar, _ := cookiejar.New(nil)
		client := http.Client{Jar: jar}
		return daemon, func(page string, form url.Values) (int, string) {
			answer, err := client.Get(base + page)
			if form != nil {
				answer.Body.Close()
				answer, err = client.PostForm(base+page, form)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			return answer.StatusCode, string(body)
		}
	}
	pause := url.Values{"of": {"keyed"}, "reason": {"an experiment"}}

	daemon, ask := start("")
	rig.Enqueue(harness.Keyed, 1)
	rig.AwaitStatus("completed", 1) // by then the worker has published what it serves
	for _, page := range []string{"/", "/runs", "/intents", "/intents/1", "/providers", "/providers/keyed", "/incidents", "/sagas", "/workers", "/operations", "/doctor", "/config"} {
		if code, text := ask(page, nil); code != http.StatusOK {
			t.Errorf("with the daemon's login %s answers %d\n%s", page, code, text)
		}
	}
	if _, text := ask("/config", nil); !regexp.MustCompile(`keyed [0-9a-f]{12}`).MatchString(text) {
		t.Errorf("the configuration shows no fingerprint of the worker's provider:\n%s", text)
	}
	if code, _ := ask("/providers/pause", pause); code != http.StatusForbidden {
		t.Errorf("a reader who is unknown pauses a provider: %d", code)
	}
	daemon.Terminate()

	daemon, ask = start(fmt.Sprintf(", database_file: %[1]s/url, viewer_database_file: %[1]s/viewer, tokens: %[1]s/people", folder))
	if code, _ := ask("/", nil); code != http.StatusUnauthorized {
		t.Errorf("a reader without a token gets %d", code)
	}
	ask("/login", url.Values{"token": {token}})
	if code, _ := ask("/runs", nil); code != http.StatusOK {
		t.Errorf("the runs answer %d", code)
	}
	for login, pages := range map[string]int{viewers: 1, operators: 0} {
		at, err := url.Parse(login)
		if err != nil {
			t.Fatal(err)
		}
		if count := rig.Count(`SELECT count(*) FROM pg_stat_activity WHERE usename = $1`, at.User.Username()); (count > 0) != (pages > 0) {
			t.Errorf("%d connections are of %s", count, at.User.Username())
		}
	}
	if code, text := ask("/providers/pause", pause); code != http.StatusOK || !strings.Contains(text, "1 changed") {
		t.Errorf("an operator cannot pause a provider: %d\n%s", code, text)
	}
	rig.Enqueue(harness.Set, 1)
	rig.AwaitStatus("completed", 2)
	if said := daemon.Terminate(); strings.Contains(said, token) {
		t.Error("the token is logged")
	}
}

func TestADaemonsConsoleBelievesItsProxyOverMutualTLSAndTakesRenewedFiles(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	files, trusts := newVolume(t), x509.NewCertPool()
	renew := func(authority *drainertest.Authority) {
		certificate, key := authority.Issue(t, "127.0.0.1", time.Hour)
		files.publish(map[string]string{"tls.crt": certificate, "tls.key": key, "ca.crt": authority.PEM})
		trusts.AppendCertsFromPEM([]byte(authority.PEM))
	}
	one, two := drainertest.NewAuthority(t), drainertest.NewAuthority(t)
	renew(one)
	rig.Reconfigure(func(config string) string {
		return strings.Replace(config, "providers:\n", fmt.Sprintf("console: {listen: '127.0.0.1:0', tls: {certificate_file: %q, key_file: %q}, proxy_ca_file: %q, proxy_names: [proxy.example]}\nproviders:\n",
			files.path("tls.crt"), files.path("tls.key"), files.path("ca.crt")), 1)
	})
	daemon := rig.Start()
	base := strings.Replace(daemon.Console(), "http://", "https://", 1)
	ask := func(authority *drainertest.Authority, name string) (int, error) {
		t.Helper()
		shown, err := tls.X509KeyPair(pemOf(authority.Issue(t, name, time.Hour)))
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: trusts.Clone(), GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
		}}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/runs", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Forwarded-User", "carol")
		answer, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			return 0, err
		}
		answer.Body.Close()
		return answer.StatusCode, nil
	}
	if status, err := ask(one, "proxy.example"); status != http.StatusOK {
		t.Errorf("the proxy gets %d, %v", status, err)
	}
	if status, err := ask(one, "agent.example"); status != http.StatusUnauthorized {
		t.Errorf("another program gets %d, %v", status, err)
	}
	if status, err := ask(two, "proxy.example"); err == nil {
		t.Errorf("a certificate of another authority gets %d", status)
	}
	renew(two)
	drainertest.Eventually(t, "the proxy of the new authority is believed", func() bool {
		status, _ := ask(two, "proxy.example")
		return status == http.StatusOK
	})
	if status, err := ask(one, "proxy.example"); err == nil {
		t.Errorf("a certificate of the old authority gets %d", status)
	}
	daemon.Terminate()
}

func pemOf(certificate, key string) (inPEM, keyInPEM []byte) { return []byte(certificate), []byte(key) }

func TestAConsoleThatCannotBeServedStopsTheDaemonAtItsStart(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	mighty := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(mighty, []byte(drainertest.Login(t, rig.URL, "outbox_operator")), 0o600); err != nil {
		t.Fatal(err)
	}
	for block, says := range map[string]string{
		fmt.Sprintf(`listen: "127.0.0.1:0", viewer_database_file: %q`, mighty): "console.viewer_database_file: this login can change the outbox",
		`listen: ":9465"`:                                                                "console.listen: is open to other machines",
		fmt.Sprintf("listen: %q", taken.Addr()):                                          "console.listen: ",
		`listen: "127.0.0.1:0", tokens: /nope/people`:                                    "console.tokens: open /nope/people",
		`listen: "127.0.0.1:0", redact: ["card"]`:                                        "console.redact: ",
		`listen: ":9465", tokens: /nope, tls: {certificate_file: /nope}`:                 "console: TLS needs the file of a certificate",
		`listen: "127.0.0.1:0", tls: {certificate_file: /nope.crt, key_file: /nope.key}`: "console.tls.certificate_file: open /nope.crt",
		`tokens: /nope/people`:                                                           "console: serves nothing without listen",
		`listen: ":9465", oidc: {issuer: "https://login.example"}`:                       "console.oidc",
	} {
		original := rig.Config
		rig.Reconfigure(func(config string) string {
			return strings.Replace(config, "providers:\n", "console: {"+block+"}\nproviders:\n", 1)
		})
		daemon := rig.Program.Launch(rig.Config)
		daemon.AwaitEnd()
		if code := daemon.ExitCode(); code == 0 || !strings.Contains(daemon.Log(), says) {
			t.Errorf("console: {%s} ends with %d, want one that says %q:\n%s", block, code, says, daemon.Log())
		}
		rig.Config = original
	}
}

// drainOnce drains in this process until nothing is due.
func drainOnce(t testing.TB, url string, providers ...dispatch.Provider) {
	t.Helper()
	store, err := postgres.Open(context.Background(), pgpool.At(url))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	settings := drainer.Settings{Worker: patientLease, Once: true}
	daemon := drainer.New(store, providers, settings, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := daemon.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// resident is a daemon in this process.
type resident struct {
	*drainer.Daemon

	stop  context.CancelFunc
	ended chan struct{} // closed after the daemon ended; err is set before
	err   error
}

// launch drains in this process until the test ends. The test fails if the daemon ends with an error.
func launch(t *testing.T, url string, providers ...dispatch.Provider) *resident {
	t.Helper()
	return launchWith(t, url, patientLease, providers...)
}

func launchWith(t *testing.T, url string, worker drainer.WorkerSettings, providers ...dispatch.Provider) *resident {
	t.Helper()
	store, err := postgres.Open(context.Background(), pgpool.At(url))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &resident{
		Daemon: drainer.New(store, providers, drainer.Settings{Worker: worker}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()),
		stop:   stop, ended: make(chan struct{}),
	}
	go func() {
		r.err = r.Run(ctx)
		close(r.ended)
	}()
	t.Cleanup(func() {
		if err := r.end(t); err != nil {
			t.Error(err)
		}
		store.Close()
	})
	return r
}

// end shuts the daemon down in order.
func (r *resident) end(t *testing.T) error {
	t.Helper()
	r.stop()
	select {
	case <-r.ended:
		return r.err
	case <-time.After(drainertest.Patience):
		t.Fatal("the daemon did not end")
		return nil
	}
}
