package integration_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// These tests run the program as a person does.

var buildProgram = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "drainer-program-")
	if err != nil {
		return "", err
	}
	program := filepath.Join(folder, "drainer")
	output, err := exec.Command("go", "build", "-o", program, "../cmd/drainer").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return program, nil
})

// shell runs the program against one database.
type shell struct {
	t       testing.TB
	program string
	env     []string
}

func newShell(t testing.TB, databaseURL string, env ...string) *shell {
	t.Helper()
	program, err := buildProgram()
	if err != nil {
		t.Fatal(err)
	}
	return &shell{t: t, program: program, env: append(os.Environ(), append(env, "DATABASE_URL="+databaseURL)...)}
}

func (s *shell) command(args ...string) *exec.Cmd {
	command := exec.Command(s.program, args...)
	command.Env = s.env
	return command
}

func (s *shell) run(wantExit int, args ...string) (stdout, stderr string) {
	s.t.Helper()
	command := s.command(args...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	if got := command.ProcessState.ExitCode(); got != wantExit {
		s.t.Fatalf("drainer %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, wantExit, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

func (s *shell) runJSON(into any, args ...string) {
	s.t.Helper()
	stdout, _ := s.run(0, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(stdout), into); err != nil {
		s.t.Fatalf("drainer %s: %v\n%s", strings.Join(args, " "), err, stdout)
	}
}

func writeConfig(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drainer.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

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
	shell := newShell(t, drainertest.EmptyDatabase(t), "BILLING_TOKEN=t")
	config := writeConfig(t, fmt.Sprintf(billingConfig, baseURL))

	shell.run(0, "migrate", "up")
	var receipt struct {
		Created        bool
		IdempotencyKey string `json:"idempotency_key"`
	}
	for _, wantCreated := range []bool{true, false} {
		shell.runJSON(&receipt, enqueueCharge(`{"amount": 1200}`)...)
		if receipt.Created != wantCreated {
			t.Fatalf("created is %v, want %v", receipt.Created, wantCreated)
		}
	}
	shell.run(0, "run", "--once", "--config", config)

	var intent struct {
		Status      string
		ProviderRef string `json:"provider_ref"`
		Response    struct{ ID string }
	}
	shell.runJSON(&intent, append([]string{"intents", "show"}, chargeKey...)...)
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
	current := newShell(t, url, "BILLING_TOKEN=t")
	config := writeConfig(t, fmt.Sprintf(billingConfig, "http://127.0.0.1:1"))
	typo := writeConfig(t, strings.Replace(fmt.Sprintf(billingConfig, "http://127.0.0.1:1"), "base_url", "bas_url", 1))
	current.run(0, enqueueCharge(`{"amount": 1200}`)...)

	for name, test := range map[string]struct {
		shell *shell
		args  []string
		exit  int
		says  string
	}{
		"unknown field":        {current, []string{"run", "--config", typo}, 3, `drainer.yaml:7:7`},
		"missing secret":       {newShell(t, url), []string{"run", "--config", config}, 3, "BILLING_TOKEN"},
		"unreachable database": {newShell(t, "postgres://127.0.0.1:1/x", "BILLING_TOKEN=t"), []string{"run", "--config", config}, 4, "cannot be reached"},
		"schema behind":        {newShell(t, drainertest.EmptyDatabase(t), "BILLING_TOKEN=t"), []string{"run", "--config", config}, 5, "drainer migrate up"},
		"empty key part":       {current, []string{"enqueue", "--run", "", "--step", "s", "--tool", "t", "--scope", "x", "--payload", "{}"}, 2, "agent_run_id is empty"},
		"long key part":        {current, []string{"enqueue", "--run", strings.Repeat("r", 256), "--step", "s", "--tool", "t", "--scope", "x", "--payload", "{}"}, 2, "256 octets"},
		"payload not JSON":     {current, enqueueCharge(`{amount}`), 2, "not valid JSON"},
		"another payload":      {current, enqueueCharge(`{"amount": 9}`), 1, "another payload"},
		"no such status":       {current, []string{"intents", "list", "--status", "stuck"}, 2, "no such status"},
		"no such intent":       {current, []string{"intents", "show", "4711"}, 1, "no such intent"},
	} {
		t.Run(name, func(t *testing.T) {
			test.shell.t = t
			if _, stderr := test.shell.run(test.exit, test.args...); !strings.Contains(stderr, test.says) {
				t.Errorf("it says %q, want %q in it", stderr, test.says)
			}
		})
	}

	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var intents, queued int
	if err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM outbox.intent), (SELECT count(*) FROM outbox.queue)`).Scan(&intents, &queued); err != nil {
		t.Fatal(err)
	}
	if intents != 1 || queued != 1 {
		t.Errorf("there are %d intents and %d queued, want the one that was there before", intents, queued)
	}
	drainertest.AssertInvariant(t, conn)
}

// Canaries in every place that could leak; an attempt must still show its key's
// hash and the provider's id.
func TestNoPayloadKeyPartOrSecretReachesLogsOrMetrics(t *testing.T) {
	t.Parallel()
	_, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.ErrorAfter, dispatchtest.None))
	shell := newShell(t, drainertest.Database(t), "BILLING_TOKEN=canary-token")
	config := writeConfig(t, fmt.Sprintf(billingConfig, baseURL))
	daemon := shell.startDaemon(config)

	shell.run(0, "enqueue", "--run", "canary-run", "--step", "canary-step", "--tool", "billing/charge", "--scope", "canary-scope",
		"--payload", `{"card": "canary-payload"}`)
	daemon.waitFor(`"status":"completed"`)
	metrics := daemon.get("/metrics")
	for _, probe := range []string{"/livez", "/readyz"} {
		if got := daemon.get(probe); got != "ok\n" {
			t.Errorf("%s answers %q, want ok", probe, got)
		}
	}
	log := daemon.terminate()

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
	shell := newShell(t, drainertest.Database(t), "BILLING_TOKEN=t")
	daemon := shell.startDaemon(writeConfig(t, fmt.Sprintf(billingConfig, baseURL)))
	shell.run(0, enqueueCharge(`{}`)...)
	if err := provider.Ledger.Wait(t.Context(), func(a dispatchtest.Audit) bool { return a.TotalRequests() == 1 }); err != nil {
		t.Fatal(err)
	}

	daemon.signal(syscall.SIGTERM)
	daemon.waitFor(`"msg":"shutting down"`) // and waiting for the dispatch, which hangs
	daemon.signal(syscall.SIGTERM)
	<-daemon.ended
	if daemon.command.ProcessState.Success() {
		t.Error("an aborted program exits with 0, want anything else")
	}
}

// programDaemon is `drainer run` in a process of its own.
type programDaemon struct {
	t       testing.TB
	command *exec.Cmd
	base    string
	lines   chan string
	log     strings.Builder
	ended   chan struct{}
}

// moreThanLogged is more lines than any test logs: a daemon must not wait for
// its log to be read.
const moreThanLogged = 1 << 17

func (s *shell) startDaemon(config string) *programDaemon {
	s.t.Helper()
	d := &programDaemon{t: s.t, command: s.command("run", "--config", config), lines: make(chan string, moreThanLogged), ended: make(chan struct{})}
	stderr, err := d.command.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := d.command.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		for scanner := bufio.NewScanner(stderr); scanner.Scan(); {
			d.lines <- scanner.Text()
		}
		close(d.lines)
		_ = d.command.Wait()
		close(d.ended)
	}()
	s.t.Cleanup(func() {
		_ = d.command.Process.Kill()
		<-d.ended
	})
	d.waitFor(`"msg":"serving"`)
	d.base = "http://" + regexp.MustCompile(`"address":"([^"]+)"`).FindStringSubmatch(d.log.String())[1]
	return d
}

// waitFor reads the log up to a line that contains text.
func (d *programDaemon) waitFor(text string) {
	d.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case line, open := <-d.lines:
			d.log.WriteString(line + "\n")
			if strings.Contains(line, text) {
				return
			}
			if !open {
				d.t.Fatalf("the program ended without logging %s:\n%s", text, d.log.String())
			}
		case <-timeout:
			d.t.Fatalf("the program did not log %s:\n%s", text, d.log.String())
		}
	}
}

func (d *programDaemon) get(path string) string {
	d.t.Helper()
	response, err := http.Get(d.base + path)
	if err != nil {
		d.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(body)
}

func (d *programDaemon) signal(signal syscall.Signal) {
	d.t.Helper()
	if err := d.command.Process.Signal(signal); err != nil {
		d.t.Fatal(err)
	}
}

// terminate shuts the program down in order and returns its whole log.
func (d *programDaemon) terminate() string {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	for line := range d.lines {
		d.log.WriteString(line + "\n")
	}
	<-d.ended
	if !d.command.ProcessState.Success() {
		d.t.Errorf("the program exits with %d after SIGTERM, want 0", d.command.ProcessState.ExitCode())
	}
	return d.log.String()
}
