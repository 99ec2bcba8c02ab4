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
)

const complete = `# yaml-language-server: $schema=./drainer.schema.json
version: 1
database: {url: "${env:DATABASE_URL}", schema: outbox}
worker: {heartbeat: 2s, lease: 12s, shutdown_timeout: 20s}
server: {listen: "127.0.0.1:9000"}
providers:
  stripe:
    adapter: fake
    concurrency: 4
    timeout: 5s
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
      refund:
        fake: {path: /v1/refunds}
        idempotency: {class: non_idempotent}
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
	want := &Config{
		DatabaseURL: "postgres://app:hunter2@db/outbox",
		Worker:      Worker{Heartbeat: 2 * time.Second, Lease: 12 * time.Second, ShutdownTimeout: 20 * time.Second},
		Server:      Server{Listen: "127.0.0.1:9000"},
		Providers: []Provider{
			{
				Name: "stripe", Concurrency: 4, Timeout: 5 * time.Second,
				Adapter: &fakeAdapter{
					settings: fakeSettings{
						Token: "Bearer s3cret", Wait: 90 * time.Second, Limit: 3, Strict: true,
						Labels: map[string]string{"team": "payments"}, Allowed: []string{"a", "b"},
						Extra: map[string]any{"deep": []any{uint64(1), "x", true}}, Level: &level{"high"},
					},
					paths:   map[string]string{"create_charge": "/v1/charges", "refund": "/v1/refunds"},
					timeout: 5 * time.Second,
				},
				Tools: map[string]dispatch.Policy{
					"create_charge": {
						Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour, MaxAttempts: 3,
						Backoff: dispatch.Backoff{Base: time.Second, Cap: 24 * time.Hour},
					},
					"refund": {Class: dispatch.NonIdempotent, MaxAttempts: 8, Backoff: defaultBackoff},
				},
			},
			{
				Name: "mail", Concurrency: 32, Timeout: 30 * time.Second,
				Adapter: &fakeAdapter{paths: map[string]string{"mail": "/"}, timeout: 30 * time.Second},
				Tools: map[string]dispatch.Policy{
					"mail": {Class: dispatch.ReadOnly, MaxAttempts: 8, Backoff: defaultBackoff},
				},
			},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

var defaultBackoff = dispatch.Backoff{Base: 500 * time.Millisecond, Cap: 10 * time.Minute}

func TestLoadFillsInDefaults(t *testing.T) {
	t.Parallel()
	got, err := loadText(t, "version: 1\n")
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Worker: Worker{Heartbeat: 3 * time.Second, Lease: 15 * time.Second, ShutdownTimeout: 25 * time.Second},
		Server: Server{Listen: ":9464"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
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
    fake: {token: "${env:TOKEN}", level: low}
    tools:
      a: {fake: {path: /}, idempotency: {class: "${env:TOKEN}"}}
  q:
    adapter: "${env:TOKEN}"
    tools:
      a: {idempotency: {class: read_only}}
  r:
    adapter: fake
    fake: {level: "${env:TOKEN}"}
    tools:
      a: {fake: {path: /}, idempotency: {class: read_only}}
`)
	var invalid *InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) != 6 {
		t.Errorf("got %v; want six problems", err)
	}
	if strings.Contains(err.Error(), "leak me") {
		t.Errorf("the secret is shown: %v", err)
	}
}
