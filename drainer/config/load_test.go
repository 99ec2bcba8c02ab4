package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/duration"
)

const complete = `# yaml-language-server: $schema=./drainer.schema.json
version: 1
database: {url: "${env:DATABASE_URL}", schema: outbox}
worker: {heartbeat: 2s, lease: 12s, shutdown_timeout: 20s}
server: {listen: "127.0.0.1:9000"}
retention: 30d
page_repeat: 5m
pages:
  - {pagerduty: {routing_key: "${file:/run/secrets/token}"}}
  - {name: europe, pagerduty: {routing_key: r, url: "https://events.eu.pagerduty.com/v2/enqueue"}}
  - {slack: {webhook_url: "https://hooks.slack.com/services/${file:/run/secrets/token}"}}
  - {alertmanager: {url: "http://alertmanager:9093"}}
  - {webhook: {url: "https://ops.example/pages", secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}}
providers:
  stripe:
    adapter: fake
    concurrency: 4
    timeout: 5s
    rate_limit: {per_second: 2.5, burst: 10}
    circuit_breaker: {consecutive_failures: 5, cool_down: 30s}
    fallback: spare
    fake:
      token: "Bearer ${file:/run/secrets/token}"
      wait: ${env:WAIT}
      limit: 3
      strict: true
      labels: {team: payments}
      allowed: [a, b]
      extra: {deep: [1, x, true]}
      level: high
    tools:
      create_charge:
        fake: {path: /v1/charges}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 3, base: 1s, cap: 1d}
        compensation: none
        on_failure: dead_letter
        retention: 1d
      refund:
        fake: {path: /v1/refunds}
        idempotency: {class: non_idempotent}
        lookup: {tool: find, margin: 1m}
        compensate_with: {tool: stripe/create_charge, payload: "{charge: .response.id}"}
        reversal_window: 3d
      find:
        fake: {path: /v1/search}
        idempotency: {class: read_only}
  spare:
    adapter: fake
    tools:
      create_charge:
        fake: {path: /pay}
        idempotency: {class: key_idempotent, ttl: 1h, scope: account}
      refund:
        fake: {path: /pay/back}
        idempotency: {class: non_idempotent}
        lookup: {tool: find}
        compensate_with: {tool: spare/create_charge}
      find:
        fake: {path: /find}
        idempotency: {class: read_only}
  mail:
    adapter: other
    tools:
      mail: {other: {path: /}, idempotency: {class: read_only}}
`

func loadText(t testing.TB, text string) (*Config, error) {
	t.Helper()
	return load("drainer.yaml", []byte(text), fakeRegistry(t), fakeSecrets())
}

func TestLoadReadsEveryField(t *testing.T) {
	t.Parallel()
	got, err := loadText(t, complete)
	if err != nil {
		t.Fatal(err)
	}
	got.Networks = nil // dialers cannot be compared
	want := &Config{
		DatabaseURL: "postgres://app:hunter2@db/outbox",
		Worker:      Worker{Heartbeat: 2 * time.Second, Lease: 12 * time.Second, ShutdownTimeout: 20 * time.Second},
		Server:      Server{Listen: "127.0.0.1:9000"},
		Retention:   Retention{Default: 30 * duration.Day, Tools: map[string]time.Duration{"stripe/create_charge": duration.Day}},
		PageRepeat:  5 * time.Minute,
		Secrets:     []string{"postgres://app:hunter2@db/outbox", "s3cret", "s3cret", "s3cret", "90s"},
		Pages: []Page{
			{Name: "pagerduty", Kind: PagerDuty, URL: "https://events.pagerduty.com/v2/enqueue", Secret: "s3cret"},
			{Name: "europe", Kind: PagerDuty, URL: "https://events.eu.pagerduty.com/v2/enqueue", Secret: "r"},
			{Name: "slack", Kind: Slack, URL: "https://hooks.slack.com/services/s3cret"},
			{Name: "alertmanager", Kind: Alertmanager, URL: "http://alertmanager:9093"},
			{Name: "webhook", Kind: Webhook, URL: "https://ops.example/pages", Secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
		},
		Providers: []Provider{
			{
				Name: "stripe", Concurrency: 4, Timeout: 5 * time.Second, Fallback: "spare",
				RateLimit: dispatch.RateLimit{PerSecond: 2.5, Burst: 10},
				Breaker:   dispatch.BreakerPolicy{ConsecutiveFailures: 5, CoolDown: 30 * time.Second},
				Adapter: &fakeAdapter{
					settings: fakeSettings{
						Token: "Bearer s3cret", Wait: 90 * time.Second, Limit: 3, Strict: true,
						Labels: map[string]string{"team": "payments"}, Allowed: []string{"a", "b"},
						Extra: map[string]any{"deep": []any{uint64(1), "x", true}}, Level: &level{"high"},
					},
					paths:   map[string]string{"create_charge": "/v1/charges", "refund": "/v1/refunds", "find": "/v1/search"},
					timeout: 5 * time.Second,
				},
				Tools: map[string]dispatch.Policy{
					"create_charge": {
						Class: dispatch.KeyIdempotent, Timeout: 5 * time.Second, KeyTTL: 24 * time.Hour, MaxAttempts: 3,
						Backoff:  dispatch.Backoff{Base: time.Second, Cap: 24 * time.Hour},
						Reversal: dispatch.Reversal{None: true},
					},
					"refund": {
						Class: dispatch.NonIdempotent, Timeout: 5 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff,
						Lookup:   &dispatch.Lookup{Operation: "find", Margin: time.Minute},
						Reversal: dispatch.Reversal{Tool: "stripe/create_charge", Payload: "{charge: .response.id}", Window: 72 * time.Hour},
					},
					"find": {Class: dispatch.ReadOnly, Timeout: 5 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff},
				},
			},
			{
				Name: "spare", Concurrency: 32, Timeout: 30 * time.Second, Breaker: defaultBreaker,
				Adapter: &fakeAdapter{
					paths:   map[string]string{"create_charge": "/pay", "refund": "/pay/back", "find": "/find"},
					timeout: 30 * time.Second,
				},
				Tools: map[string]dispatch.Policy{
					"create_charge": {Class: dispatch.KeyIdempotent, Timeout: 30 * time.Second, KeyTTL: time.Hour, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff},
					"refund": {
						Class: dispatch.NonIdempotent, Timeout: 30 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff,
						Lookup:   &dispatch.Lookup{Operation: "find", Margin: 30 * time.Second},
						Reversal: dispatch.Reversal{Tool: "spare/create_charge"},
					},
					"find": {Class: dispatch.ReadOnly, Timeout: 30 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff},
				},
			},
			{
				Name: "mail", Concurrency: 32, Timeout: 30 * time.Second, Breaker: defaultBreaker,
				Adapter: &fakeAdapter{paths: map[string]string{"mail": "/"}, timeout: 30 * time.Second},
				Tools: map[string]dispatch.Policy{
					"mail": {Class: dispatch.ReadOnly, Timeout: 30 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff},
				},
			},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

var (
	defaultBackoff = dispatch.Backoff{Base: 500 * time.Millisecond, Cap: 10 * time.Minute}
	defaultBreaker = dispatch.BreakerPolicy{ConsecutiveFailures: 3, CoolDown: 10 * time.Second}
)

func TestLoadFillsInDefaults(t *testing.T) {
	t.Parallel()
	got, err := loadText(t, "version: 1\n")
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Worker: Worker{Heartbeat: 3 * time.Second, Lease: 15 * time.Second, ShutdownTimeout: 25 * time.Second},
		Server: Server{Listen: ":9464"}, Retention: Retention{Default: 90 * duration.Day, Tools: map[string]time.Duration{}},
		PageRepeat: 30 * time.Minute, Networks: map[string]dispatch.Network{},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestABurstIsASecondsWorthUnlessItIsSaid(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]dispatch.RateLimit{
		"":                           {},
		"{per_second: 90}":           {PerSecond: 90, Burst: 90},
		"{per_second: 2.5}":          {PerSecond: 2.5, Burst: 3},
		"{per_second: 0.01}":         {PerSecond: 0.01, Burst: 1},
		"{per_second: 1, burst: 60}": {PerSecond: 1, Burst: 60},
	} {
		loaded, err := loadText(t, provider("adapter: fake\nrate_limit: "+text+"\n"+wellFormedTool))
		if err != nil {
			t.Fatal(err)
		}
		if got := loaded.Providers[0].RateLimit; got != want {
			t.Errorf("rate_limit: %s is %+v, want %+v", text, got, want)
		}
	}
}

func TestAnchorsAndMergesSpareRepetition(t *testing.T) {
	t.Parallel()
	loaded, err := loadText(t, `version: 1
providers:
  p:
    adapter: fake
    tools:
      a:
        fake: {path: /a}
        idempotency: &once {class: key_idempotent, ttl: 24h, scope: account}
      b:
        fake: {path: /b}
        idempotency: *once
      c:
        fake: {path: /c}
        idempotency: {<<: *once, ttl: 1h}
`)
	if err != nil {
		t.Fatal(err)
	}
	for operation, want := range map[string]time.Duration{"a": 24 * time.Hour, "b": 24 * time.Hour, "c": time.Hour} {
		if got := loaded.Providers[0].Tools[operation]; got.KeyTTL != want || got.Class != dispatch.KeyIdempotent {
			t.Errorf("%s: got %+v, want a key that lives %v", operation, got, want)
		}
	}
}

func TestLoadReadsFilesAndTheEnvironment(t *testing.T) {
	t.Setenv("DRAINER_TEST_DATABASE", "postgres://localhost/outbox")
	file := filepath.Join(t.TempDir(), "drainer.yaml")
	if err := os.WriteFile(file, []byte("version: 1\ndatabase: {url: \"${env:DRAINER_TEST_DATABASE}\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(file, fakeRegistry(t))
	if err != nil || loaded.DatabaseURL != "postgres://localhost/outbox" {
		t.Errorf("got %+v, %v", loaded, err)
	}
}

func TestLoadSaysThatThereIsNoFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gone.yaml")
	_, err := Load(file, fakeRegistry(t))
	if want := file + ": cannot be read: no such file or directory; correct --config"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestErrorsNeverShowASecret(t *testing.T) {
	t.Parallel()
	_, err := loadText(t, `version: 1
worker: {heartbeat: "${env:TOKEN}"}
server: {listen: "${env:TOKEN}"}
providers:
  p:
    adapter: fake
    fallback: r
    fake: {token: "${env:TOKEN}", level: low}
    tools:
      a: {fake: {path: /}, idempotency: {class: "${env:TOKEN}"}}
  q:
    adapter: "${env:TOKEN}"
    fallback: "${env:TOKEN}"
    tools:
      a: {idempotency: {class: non_idempotent}, lookup: {tool: "${env:TOKEN}"}, compensate_with: {tool: "${env:TOKEN}"}}
  r:
    adapter: fake
    fake: {level: "${env:TOKEN}"}
    tools:
      a: {fake: {path: /}, idempotency: {class: read_only}}
`)
	var invalid *InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) != 9 {
		t.Errorf("got %v; want nine problems", err)
	}
	if strings.Contains(err.Error(), "leak me") {
		t.Errorf("the secret is shown: %v", err)
	}
}
