package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
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
console:
  listen: 127.0.0.1:9465
  database_file: /run/secrets/console
  viewer_database_file: /run/secrets/viewer
  tls: {certificate_file: /run/tls/tls.crt, key_file: /run/tls/tls.key}
  trust_proxy: [10.0.0.0/8]
  proxy_ca_file: /run/tls/ca.crt
  proxy_names: [proxy.example, "spiffe://mesh/proxy"]
  user_header: X-User
  group_header: X-Groups
  operators: on-call
  viewers: staff
  redact: [.card]
  trace_url: "https://traces.example/{trace_id}"
log: {level: warn, format: text, completed_every: 100}
retention: {default: 30d, max_run: 300d}
page_repeat: 5m
page_console: https://outbox.example.com
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
    circuit_breaker: {failure_rate: 0.2, window: 1m, minimum_intents: 20, consecutive_failures: 8, cool_down: 30s}
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
        retry: {max_attempts: 3, base: 1s, cap: 1d, max_wait: 90m}
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
	return load("drainer.yaml", []byte(text), fakeRegistry(t), fakeSecrets(), everything)
}

func TestLoadReadsEveryField(t *testing.T) {
	t.Parallel()
	got, err := loadText(t, complete)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Providers {
		got.Providers[i].Network = dispatch.Network{} // dialers cannot be compared
	}
	want := &Config{
		Database: Database{URL: Reference{text: "${env:DATABASE_URL}"}, PasswordTTL: time.Minute},
		Worker:   Worker{Heartbeat: 2 * time.Second, Lease: 12 * time.Second, ShutdownTimeout: 20 * time.Second},
		Server:   Server{Listen: "127.0.0.1:9000"},
		Console: Console{
			Listen: "127.0.0.1:9465", DatabaseFile: "/run/secrets/console", ViewerFile: "/run/secrets/viewer", UserHeader: "X-User", GroupHeader: "X-Groups",
			TLS: ConsoleTLS{CertificateFile: "/run/tls/tls.crt", KeyFile: "/run/tls/tls.key"}, TrustProxy: []string{"10.0.0.0/8"}, ProxyCAFile: "/run/tls/ca.crt", ProxyNames: []string{"proxy.example", "spiffe://mesh/proxy"},
			Operators: "on-call", Viewers: "staff", Redact: []string{".card"}, TraceURL: "https://traces.example/{trace_id}", OIDC: ConsoleOIDC{Groups: "groups"},
		},
		Log:           Log{Level: "warn", Format: "text", CompletedEvery: 100},
		Unconfigured:  Unconfigured{FailAfter: 7 * duration.Day},
		Misconfigured: Misconfigured{FailAfter: duration.Day},
		Retention:     Retention{Default: 30 * duration.Day, MaxRun: 300 * duration.Day, Tools: map[string]time.Duration{"stripe/create_charge": duration.Day}},
		PageRepeat:    5 * time.Minute,
		PageConsole:   "https://outbox.example.com",
		Secrets:       []string{"s3cret", "s3cret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "s3cret", "Bearer s3cret", "90s", "postgres://app:hunter2@db/outbox"},
		Pages: []Page{
			{Name: "pagerduty", Kind: PagerDuty, URL: "https://events.pagerduty.com/v2/enqueue", Secret: "s3cret"},
			{Name: "europe", Kind: PagerDuty, URL: "https://events.eu.pagerduty.com/v2/enqueue", Secret: "r"},
			{Name: "slack", Kind: Slack, URL: "https://hooks.slack.com/services/s3cret"},
			{Name: "alertmanager", Kind: Alertmanager, URL: "http://alertmanager:9093"},
			{Name: "webhook", Kind: Webhook, URL: "https://ops.example/pages", Secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
		},
		Providers: []dispatch.Provider{
			{
				Name: "stripe", Concurrency: 4, Timeout: 5 * time.Second, Fallback: "spare",
				RateLimit: dispatch.RateLimit{PerSecond: 2.5, Burst: 10},
				Breaker:   dispatch.BreakerPolicy{FailureRate: 0.2, Window: time.Minute, MinimumIntents: 20, ConsecutiveFailures: 8, CoolDown: 30 * time.Second},
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
						Class: dispatch.KeyIdempotent, Timeout: 5 * time.Second, KeyTTL: 24 * time.Hour, FirstReplayOpens: true, MaxAttempts: 3,
						Backoff: dispatch.Backoff{Base: time.Second, Cap: 24 * time.Hour},
						MaxWait: 90 * time.Minute, HasFallback: true,
						Reversal: dispatch.Reversal{None: true},
					},
					"refund": {
						Class: dispatch.NonIdempotent, Timeout: 5 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff, MaxWait: 24 * time.Hour, HasFallback: true,
						Lookup:   &dispatch.Lookup{Operation: "find", Margin: time.Minute},
						Reversal: dispatch.Reversal{Tool: "stripe/create_charge", Payload: "{charge: .response.id}", Window: 72 * time.Hour},
					},
					"find": {Class: dispatch.ReadOnly, Timeout: 5 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff, MaxWait: 24 * time.Hour, HasFallback: true},
				},
			},
			{
				Name: "spare", Concurrency: 32, Timeout: 30 * time.Second, Breaker: defaultBreaker,
				Adapter: &fakeAdapter{
					paths:   map[string]string{"create_charge": "/pay", "refund": "/pay/back", "find": "/find"},
					timeout: 30 * time.Second,
				},
				Tools: map[string]dispatch.Policy{
					"create_charge": {Class: dispatch.KeyIdempotent, Timeout: 30 * time.Second, KeyTTL: time.Hour, FirstReplayOpens: true, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff, MaxWait: 24 * time.Hour},
					"refund": {
						Class: dispatch.NonIdempotent, Timeout: 30 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff, MaxWait: 24 * time.Hour,
						Lookup:   &dispatch.Lookup{Operation: "find", Margin: 30 * time.Second},
						Reversal: dispatch.Reversal{Tool: "spare/create_charge"},
					},
					"find": {Class: dispatch.ReadOnly, Timeout: 30 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff, MaxWait: 24 * time.Hour},
				},
			},
			{
				Name: "mail", Concurrency: 32, Timeout: 30 * time.Second, Breaker: defaultBreaker,
				Adapter: &fakeAdapter{paths: map[string]string{"mail": "/"}, timeout: 30 * time.Second},
				Tools: map[string]dispatch.Policy{
					"mail": {Class: dispatch.ReadOnly, Timeout: 30 * time.Second, BeginsSaga: true, MaxAttempts: 8, Backoff: defaultBackoff, MaxWait: 24 * time.Hour},
				},
			},
		},
	}
	for i := range got.Providers {
		want.Providers[i].Digest = got.Providers[i].Digest // has a test of its own
	}
	want.Digests = got.Digests
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

var (
	defaultBackoff = dispatch.Backoff{Base: 500 * time.Millisecond, Cap: 10 * time.Minute}
	defaultBreaker = dispatch.BreakerPolicy{FailureRate: 0.5, Window: 30 * time.Second, MinimumIntents: 10, ConsecutiveFailures: 5, CoolDown: 10 * time.Second}
)

func TestLoadFillsInDefaults(t *testing.T) {
	t.Parallel()
	got, err := loadText(t, "version: 1\n")
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Database:      Database{PasswordTTL: time.Minute},
		Worker:        Worker{Heartbeat: 3 * time.Second, Lease: 15 * time.Second, ShutdownTimeout: 25 * time.Second},
		Console:       DefaultConsole(),
		Log:           Log{Level: "info", CompletedEvery: 1},
		Unconfigured:  Unconfigured{FailAfter: 7 * duration.Day},
		Misconfigured: Misconfigured{FailAfter: duration.Day},
		Retention:     Retention{Default: 90 * duration.Day, MaxRun: 365 * duration.Day, Tools: map[string]time.Duration{}},
		PageRepeat:    30 * time.Minute,
		Providers:     []dispatch.Provider{},
		Digests:       got.Digests,
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
	if err != nil {
		t.Fatal(err)
	}
	if url, err := loaded.Database.URL.Read(); err != nil || url != "postgres://localhost/outbox" {
		t.Errorf("got %q, %v", url, err)
	}
}

// Editors on Windows put a byte order mark before the first line.
func TestAByteOrderMarkIsNoPartOfAFile(t *testing.T) {
	t.Parallel()
	const mark = "\ufeff"
	secret := filepath.Join(t.TempDir(), "secret")
	put(t, secret, mark+"postgres://db/app\n")
	got, err := load("drainer.yaml", []byte(mark+"version: 1\ndatabase: {url: \"${file:"+secret+"}\"}\n"+providers("p: {adapter: fake, " + wellFormedTool + "}")[len("version: 1\n"):]), fakeRegistry(t), &secrets{readFile: os.ReadFile}, everything)
	if err != nil {
		t.Fatal(err)
	}
	if url, err := got.Database.URL.Read(); url != "postgres://db/app" {
		t.Errorf("%q, %v", url, err)
	}
	if content, err := ReadFile(secret); err != nil || string(content) != "postgres://db/app\n" {
		t.Errorf("%q, %v", content, err)
	}
}

func TestDeepNestingIsAllowedWhereItCloses(t *testing.T) {
	t.Parallel()
	_, err := loadText(t, "version: 1\nx: ["+strings.Repeat("[[[a]]],", 1000)+"]\ny:\n"+strings.Repeat("- - [a]\n", 1000)+strings.Repeat("-\n", 1000))
	if err == nil || strings.Contains(err.Error(), "nested") {
		t.Error(err)
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

type fakeSettings struct {
	Token   string            `yaml:"token"`
	Wait    time.Duration     `yaml:"wait"`
	Limit   int8              `yaml:"limit"`
	Strict  bool              `yaml:"strict"`
	Labels  map[string]string `yaml:"labels"`
	Allowed []string          `yaml:"allowed"`
	Extra   any               `yaml:"extra"`
	Level   *level            `yaml:"level"`
}

type fakeTool struct {
	Path string `yaml:"path" jsonschema:"required"`
}

// level refuses with a message that repeats the value, as careless types do.
type level struct{ text string }

func (l *level) UnmarshalText(text []byte) error {
	if l.text = string(text); l.text != "high" && l.text != "low" {
		return fmt.Errorf("unknown level %s", text)
	}
	return nil
}

type fakeAdapter struct {
	settings fakeSettings
	paths    map[string]string
	timeout  time.Duration
}

func (*fakeAdapter) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Completed}
}

func newFake(spec dispatch.Spec) (dispatch.Adapter, error) {
	adapter := &fakeAdapter{paths: map[string]string{}, timeout: spec.Timeout}
	problems := []error{spec.Settings.Decode(&adapter.settings)}
	if adapter.settings.Token == "leak me" {
		problems = append(problems, fmt.Errorf("token %q is refused", adapter.settings.Token))
	}
	for operation, tool := range spec.Tools {
		var settings fakeTool
		err := tool.Settings.Decode(&settings)
		if err == nil && settings.Path == "" {
			err = errors.New("path is missing")
		}
		if err != nil {
			problems = append(problems, &dispatch.ToolError{Operation: operation, Err: err})
		}
		adapter.paths[operation] = settings.Path
	}
	return adapter, errors.Join(problems...)
}

func fakeRegistry(t testing.TB) dispatch.Registry {
	t.Helper()
	registry, err := dispatch.NewRegistry(
		dispatch.Kind{Name: "fake", New: newFake, Settings: fakeSettings{}, Tool: fakeTool{}},
		dispatch.Kind{Name: "other", Classes: []dispatch.Class{dispatch.ReadOnly, dispatch.NaturallyIdempotent, dispatch.NonIdempotent}, New: newFake, Settings: fakeSettings{}, Tool: fakeTool{}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return registry
}

func fakeSecrets() *secrets {
	environment := map[string]string{
		"DATABASE_URL": "postgres://app:hunter2@db/outbox",
		"TOKEN":        "leak me",
		"WAIT":         "90s",
		"EMPTY":        "",
		"NESTED":       "${env:TOKEN}",
	}
	files := map[string]string{
		"/run/secrets/token": "s3cret\n",
		"/run/secrets/two":   "line\n\n",
		"/run/secrets/crlf":  "s3cret\r\n",
		"/run/secrets/empty": "\n",
	}
	return &secrets{
		lookupEnv: func(name string) (string, bool) {
			value, set := environment[name]
			return value, set
		},
		readFile: func(path string) ([]byte, error) {
			content, exists := files[path]
			if !exists {
				return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
			}
			return []byte(content), nil
		},
	}
}

func TestKeysInEveryNotationAreNamed(t *testing.T) {
	t.Parallel()
	mistakes{
		"a number": {"version: 1\n7: x\n", []string{
			`2:1: unknown field "7"; known here: console, database, egress, failover, history, log, misconfigured, page_console, page_repeat, pages, providers, retention, server, unconfigured, version, worker`,
		}},
		"an explicit key": {"version: 1\n? workr\n: {}\n", []string{`2:1: unknown field "workr"; did you mean "worker"?`}},
		"no operation": {provider("adapter: fake\ntools: {\"\": {fake: {path: /}, idempotency: {class: read_only}}}"), []string{
			`5:13: providers.p.tools."": an operation's name is the part of a tool name after its first slash; it cannot be empty`,
		}},
	}.test(t)
}

func TestOnlyFieldsCanStandWhereFieldsBelong(t *testing.T) {
	t.Parallel()
	const want = "want a block of fields, one `name: value` a line"
	mistakes{
		"text":          {"version: 1\nproviders: p\n", []string{"2:12: providers: " + want}},
		"a merged text": {"version: 1\nworker: {<<: 5}\n", []string{"2:1: worker: " + want}},
		"a merged list": {"version: 1\nworker: {<<: [{}, 5]}\n", []string{"2:1: worker: " + want}},
		"a schema with what JSON has not": {tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: {a: .nan}"), []string{
			"9:9: providers.p.tools.t.payload_schema: holds something that JSON has not",
		}},
	}.test(t)
}

// folder holds a configuration with a webhook's URL in a file called secret,
// named twice.
func folder(t *testing.T, secret string) (path string) {
	t.Helper()
	dir := t.TempDir()
	reference := "${file:" + filepath.Join(dir, "secret") + "}"
	put(t, filepath.Join(dir, "drainer.yaml"), "version: 1\npages: [{slack: {webhook_url: \"https://chat.example/"+reference+"/"+reference+"\"}}]\n")
	if secret != "" {
		put(t, filepath.Join(dir, "secret"), secret)
	}
	return filepath.Join(dir, "drainer.yaml")
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func names(files []File) (names []string) {
	for _, file := range files {
		names = append(names, filepath.Base(file.Path))
	}
	return names
}

func changed(files []File) (names []string) {
	for _, file := range files {
		if file.Current() != file.Version {
			names = append(names, filepath.Base(file.Path))
		}
	}
	return names
}

func TestAConfigurationKnowsTheFilesItWasReadFrom(t *testing.T) {
	t.Parallel()
	path := folder(t, "one")
	loaded, err := Load(path, fakeRegistry(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := names(loaded.Files); !slices.Equal(got, []string{"drainer.yaml", "secret"}) {
		t.Errorf("it was read from %v", got)
	}
	if got := changed(loaded.Files); got != nil {
		t.Errorf("%v changed without a change", got)
	}
	put(t, filepath.Join(filepath.Dir(path), "secret"), "two")
	if got := changed(loaded.Files); !slices.Equal(got, []string{"secret"}) {
		t.Errorf("%v changed, want the secret", got)
	}
}

func TestARejectedConfigurationKnowsTheFileThatWasMissing(t *testing.T) {
	t.Parallel()
	path := folder(t, "")
	_, err := Load(path, fakeRegistry(t))
	var mistakes *InvalidError
	if !errors.As(err, &mistakes) || !slices.Equal(names(mistakes.Files), []string{"drainer.yaml", "secret"}) {
		t.Fatalf("%v: it names the files %v", err, mistakes)
	}
	put(t, filepath.Join(filepath.Dir(path), "secret"), "here")
	if got := changed(mistakes.Files); !slices.Equal(got, []string{"secret"}) {
		t.Errorf("%v changed, want the secret", got)
	}
}

func TestAFileThatIsNoYAMLIsKnown(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "drainer.yaml")
	for _, content := range []string{"", "\tno: yaml"} {
		if content != "" {
			put(t, path, content)
		}
		_, err := Load(path, fakeRegistry(t))
		var mistakes *InvalidError
		if !errors.As(err, &mistakes) || len(mistakes.Files) != 1 || mistakes.Files[0].Path != path {
			t.Errorf("%q: %v names the files %v", content, err, mistakes)
		}
	}
}

// Two references to a file that is being replaced must not mean two contents.
func TestAFileIsReadOnceForAConfiguration(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	put(t, path, "one")
	sources := &sources{read: map[string]source{}}
	for _, next := range []string{"two", "three"} {
		content, err := sources.readFile(path)
		if err != nil || string(content) != "one" {
			t.Errorf("%q, %v", content, err)
		}
		put(t, path, next)
	}
	if len(sources.files) != 1 {
		t.Errorf("it counts as %d files", len(sources.files))
	}
}

// Opening a pipe without a writer blocks forever, and every later reload would wait too.
func TestAPipeInThePlaceOfAFileIsRefusedAtAReload(t *testing.T) {
	t.Parallel()
	path := folder(t, "one")
	loaded, err := Load(path, fakeRegistry(t))
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(filepath.Dir(path), "secret")
	if err := errors.Join(os.Remove(secret), syscall.Mkfifo(secret, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := changed(loaded.Files); !slices.Equal(got, []string{"secret"}) {
		t.Errorf("%v changed, want the secret", got)
	}
	_, err = Reload(path, fakeRegistry(t))
	var mistakes *InvalidError
	if !errors.As(err, &mistakes) || !strings.Contains(err.Error(), errIsPipe.Error()) {
		t.Fatalf("%v, want a refusal of the pipe", err)
	}
	if got := changed(mistakes.Files); got != nil {
		t.Errorf("%v changed since: it would be refused again and again", got)
	}
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	put(t, secret, "two")
	if got := changed(mistakes.Files); !slices.Equal(got, []string{"secret"}) {
		t.Errorf("%v changed, want the secret, which is a file again", got)
	}
}

func TestAFileThatNeverEndsIsNotReadForEver(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "drainer.yaml")
	put(t, path, "version: 1\ndatabase: {url: \"${file:/dev/zero}\"}\n")
	if _, err := Load(path, fakeRegistry(t)); err == nil || !strings.Contains(err.Error(), errHuge.Error()) {
		t.Errorf("%v", err)
	}
}

// A pipe gives its content once, and reading it may wait forever.
func TestAPipeIsNeverReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { _ = os.WriteFile(path, []byte("once"), 0o600) }()
	sources := &sources{read: map[string]source{}}
	if content, err := sources.readFile(path); err != nil || string(content) != "once" {
		t.Fatalf("%q, %v", content, err)
	}
	if file := sources.files[0]; !file.OnlyOnce() || file.Current() != file.Version {
		t.Errorf("a pipe is read again: %+v", file)
	}
}

// Its writer may never come, or never end.
func TestAPipeIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if content, err := readWithin(time.Millisecond, path); !errors.Is(err, errSilent) || content != nil {
		t.Errorf("%q, %v", content, err)
	}
}

// On-call people have no production secrets. What decides about an intent is read all the same.
func TestACommandThatSendsNothingNeedsNoSecret(t *testing.T) {
	t.Parallel()
	const text = `version: 1
database: {url: "${env:GONE_URL}"}
providers:
  stripe:
    adapter: fake
    timeout: 5s
    tls: {ca: "${file:/gone/ca.pem}"}
    fake: {token: "Bearer ${env:GONE_KEY}", labels: {team: "${file:/gone/token}", api_key: literal-canary}}
    tools:
      charge:
        fake: {path: "/${env:GONE_PATH}"}
        idempotency: {class: key_idempotent, ttl: "TTL", scope: account}
pages: [{slack: {webhook_url: "${env:GONE_SLACK}"}}]
`
	read := func(ttl string, wanted wanted) (*Config, error) {
		return load("drainer.yaml", []byte(strings.ReplaceAll(text, "TTL", ttl)), fakeRegistry(t), fakeSecrets(), wanted)
	}
	loaded, err := read("24h", wanted{})
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range loaded.Tools() {
		if policy.KeyTTL != 24*time.Hour {
			t.Errorf("%+v", policy)
		}
	}
	var unread []string
	for _, value := range loaded.Unread {
		unread = append(unread, value.Provider+" "+value.Path+" "+strings.Join(value.References, ","))
	}
	slices.Sort(unread)
	want := []string{
		" database.url env:GONE_URL",
		" pages.0.slack.webhook_url env:GONE_SLACK",
		"stripe providers.stripe.fake.labels.team file:/gone/token",
		"stripe providers.stripe.fake.token env:GONE_KEY",
		"stripe providers.stripe.tls.ca file:/gone/ca.pem",
		"stripe providers.stripe.tools.charge.fake.path env:GONE_PATH",
	}
	if !slices.Equal(unread, want) {
		t.Errorf("unread: %q", unread)
	}
	if len(loaded.Providers) != 1 || loaded.Providers[0].Adapter != nil || !slices.Equal(loaded.Secrets, []string{"literal-canary"}) {
		t.Errorf("%+v", loaded)
	}
	if _, err := read("24h", wanted{database: true}); err == nil || !strings.Contains(err.Error(), "GONE_URL is not set") || strings.Contains(err.Error(), "GONE_KEY") {
		t.Errorf("with the database: %v", err)
	}
	if _, err := read("${env:GONE_TTL}", wanted{}); err == nil || !strings.Contains(err.Error(), "GONE_TTL is not set") {
		t.Errorf("a lifetime decides: %v", err)
	}
	if _, err := read("24h", everything); err == nil || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("with everything: %v", err)
	}
}

func TestATraceURLLeadsToATrace(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "https://traces.example/{trace_id}", "http://localhost:16686/trace/{trace_id}?uiFind=x"} {
		if err := CheckTraceURL(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"https://eve:hunter2@traces.example/{trace_id}", "https://hunter2@traces.example/{trace_id}"} {
		if err := CheckTraceURL(text); err == nil || !strings.Contains(err.Error(), "login") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"https://traces.example/", "{trace_id}", "javascript:alert('{trace_id}')", "https:///{trace_id}", "https://a b/{trace_id}", "//host/{trace_id}"} {
		if _, err := loadText(t, "version: 1\nconsole: {listen: 'localhost:1', trace_url: \""+text+"\"}\n"); err == nil || !strings.Contains(err.Error(), "with {trace_id} in it") {
			t.Errorf("%q is accepted: %v", text, err)
		}
	}
}

// The start reads more references than a reload does, and their values may differ by replica.
func TestTheDigestOfAFileTellsEverySettingApart(t *testing.T) {
	t.Parallel()
	of := func(more string, secrets *secrets, wanted wanted) string {
		loaded, err := load("drainer.yaml", []byte(provider("adapter: fake\nfake: {token: '${env:TOKEN}'}\ntools: {t: {fake: {path: /}, idempotency: {class: read_only}}}")+more),
			fakeRegistry(t), secrets, wanted)
		if err != nil {
			t.Fatal(err)
		}
		return string(loaded.Digests.Sum())
	}
	withToken := func(token string) *secrets {
		fake := fakeSecrets()
		fake.lookupEnv = func(string) (string, bool) { return token, true }
		return fake
	}
	first := of("", withToken("a-token-of-one"), everything)
	if len(first) != 32 || first != of("", withToken("a-token-of-another"), wanted{providers: true}) {
		t.Error("a reload of the same file, or another value of a reference, changes it")
	}
	seen := map[string]string{first: "the file"}
	for _, more := range []string{
		"database: {password_ttl: 2m}", "worker: {lease: 20s}", "server: {listen: ':1'}", "log: {level: warn}", "retention: 91d", "failover: lossless",
		"page_repeat: 31m", "page_repeat: 32m", "console: {listen: 'localhost:1', redact: [.card]}", "unconfigured: {fail_after: 8d}", "misconfigured: {fail_after: 2d}",
	} {
		digest := of(more+"\n", withToken("a-token-of-one"), everything)
		if other, is := seen[digest]; is {
			t.Errorf("%s is not told from %s", more, other)
		}
		seen[digest] = more
	}
}

func TestTheOrderOfBlocksAndProvidersIsNotInADigest(t *testing.T) {
	t.Parallel()
	digests := func(text string) Digests {
		root, problem := parse("drainer.yaml", []byte(text))
		if problem != nil {
			t.Fatal(problem)
		}
		return digestsOf(root)
	}
	of := func(text string) string { return string(digests(text).Sum()) }
	if of("providers: {q: {adapter: a}, p: {adapter: b}}\nworker: {lease: 20s}") != of("worker: {lease: 20s} # long\nproviders: {p: {adapter: b}, q: {adapter: a}}") {
		t.Error("another order is told as another configuration")
	}
	if of("providers: {q: {adapter: a}, p: {adapter: b}}") == of("providers: {q: {adapter: b}, p: {adapter: a}}") {
		t.Error("blocks of two providers are mistaken for each other")
	}
	if of("--- &all\nworker: {lease: 20s}") == of("--- &all\nworker: {lease: 21s}") {
		t.Error("a file with a name for itself has no digest")
	}
	one, other := digests("page_repeat: &t 31m\nworker: {lease: *t}"), digests("page_repeat: &t 32m\nworker: {lease: *t}")
	if one["worker"] == other["worker"] {
		t.Error("a block does not change with what its alias stands for")
	}
}

func TestADigestTellsConfigurationsApartAndNoSecret(t *testing.T) {
	t.Parallel()
	of := func(token, more string) string {
		loaded, err := load("drainer.yaml", []byte(provider("adapter: fake\nfake: {token: '"+token+"'}\n"+more+"tools: {t: {fake: {path: /}, idempotency: {class: read_only}}}")),
			fakeRegistry(t), fakeSecrets(), everything)
		if err != nil {
			t.Fatal(err)
		}
		return string(loaded.Providers[0].Digest)
	}
	if of("hunter2-hunter2", "") != of("another-secret", "") {
		t.Error("it depends on a secret")
	}
	if of("hunter2-hunter2", "") == of("hunter2-hunter2", "concurrency: 3\n") || len(of("hunter2-hunter2", "")) != 32 {
		t.Error("it does not tell two configurations apart")
	}
	at := func(url string) string { return of("hunter2-hunter2', extra: '"+url, "") }
	if at("amqp://ann:hunter2@one.example/v") != at("amqp://ann:another@one.example/v") {
		t.Error("it depends on the password of an address")
	}
	if at("amqp://ann:hunter2@one.example/v") == at("amqp://ann:hunter2@two.example/v") {
		t.Error("it does not tell the hosts of addresses with a password apart")
	}
}
