package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// A page must not be read with a login that can change something.
func TestTheConsolesLoginForViewersCanOnlyRead(t *testing.T) {
	t.Parallel()
	databaseURL := drainertest.Database(t)
	own, viewer := drainertest.Login(t, databaseURL, "outbox_operator"), drainertest.Login(t, databaseURL, "outbox_auditor")
	start := []string{"console", "--database-url", own, "--listen", "127.0.0.1:0", "--viewer-database"}
	if got := run(t, append(start, own)...); got.code != exitUsage || !strings.Contains(got.stderr, "outbox_auditor alone") {
		t.Errorf("%+v", got)
	}
	ctx, end := context.WithTimeout(t.Context(), drainertest.Patience)
	defer end()
	said := endsOnce{word: "The console is at", end: end}
	root := newRoot(builtins(t))
	root.SetErr(&said)
	if code := execute(ctx, root, append(start, "${file:"+write(t, "url", viewer)+"}")); code != exitOK || !strings.Contains(said.String(), "The console is at") {
		t.Errorf("%d: %s", code, said.String())
	}
}

// A console that was given no configuration must not say that the configuration lacks the tool.
func TestAConsoleWithoutAConfigurationSaysSo(t *testing.T) {
	t.Parallel()
	databaseURL := drainertest.Database(t)
	db := drainertest.Connect(t, databaseURL)
	drainertest.Exec(t, db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', 's', 'sim/act', 'b', '{}')`)
	drainertest.Exec(t, db, `DELETE FROM outbox.queue`)
	drainertest.Exec(t, db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status) SELECT id, 1, 'w', now(), 'ambiguous', 'unknown' FROM outbox.intent`)
	at := func(configuration *config.Config) string {
		t.Helper()
		database := pgpool.At(databaseURL)
		pages, closePools, err := consolePages(t.Context(), console.Options{Log: slog.New(slog.DiscardHandler)}, database, database,
			func() *standing { return &standing{Config: configuration} })
		if err != nil {
			t.Fatal(err)
		}
		defer closePools()
		answer := httptest.NewRecorder()
		pages.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/intents/1", nil))
		return answer.Body.String()
	}
	const none, lacking = "no configuration was given with --config", "the configuration does not know its tool"
	if page := at(nil); !strings.Contains(page, none) || strings.Contains(page, lacking) {
		t.Errorf("without a configuration the page is\n%s", page)
	}
	if page := at(&config.Config{}); !strings.Contains(page, lacking) || strings.Contains(page, none) {
		t.Errorf("with one that lacks the tool the page is\n%s", page)
	}
}

func TestTheDemosConsoleShowsItsDataUntilItEnds(t *testing.T) {
	t.Parallel()
	databaseURL := drainertest.Database(t)
	drainertest.Exec(t, drainertest.Connect(t, databaseURL), `SELECT outbox.enqueue('trip-7', 'ferry', 'demo/book', 'island', '{}')`)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	reads, says := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- showDemo(ctx, says, listener, databaseURL) }()
	var at, token string
	if _, err := fmt.Fscanf(reads, "The console is at %s with the token %s\n", &at, &token); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, reads)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{Jar: jar}).PostForm(at+"login", url.Values{"token": {token}, "to": {"/runs/trip-7"}})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(page), "demo/book") || !strings.Contains(string(page), "guest, operator") {
		t.Errorf("%d %v\n%s", answer.StatusCode, err, page)
	}
	end()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if answer, err := http.Get(at); err == nil {
		answer.Body.Close()
		t.Errorf("after its end it answers %d", answer.StatusCode)
	}
}

// endsOnce keeps the output of a command, and ends the command once the output has the word.
type endsOnce struct {
	bytes.Buffer

	word string
	end  func()
}

func (e *endsOnce) Write(said []byte) (int, error) {
	defer func() {
		if strings.Contains(e.String(), e.word) {
			e.end()
		}
	}()
	return e.Buffer.Write(said)
}

const schemaOfCharge = "        payload_schema: {type: object, required: [amount], properties: {amount: {type: integer}}}\n"

// An address may also contain a credential. A console that read no credentials shows no request, and says so.
func TestTheRequestThatTheConsoleShowsHasNoSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drainer.yaml")
	if err := os.WriteFile(path, []byte(`version: 1
providers:
  shop:
    adapter: http
    http: {base_url: "https://shop.example/${env:SHOP_PATH}", headers: {Authorization: "Bearer ${env:SHOP_TOKEN}"}}
    tools:
      order: {http: {path: "/orders/${env:SHOP_PATH}", headers: {X-Store: "${env:SHOP_TOKEN}"}}, idempotency: {class: non_idempotent}}
      sum: {http: {path: /, map: '{token: "${env:SHOP_TOKEN}", sum: (.payload.sum + 1)}'}, idempotency: {class: non_idempotent}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SHOP_PATH", "canary-of-an-address")
	t.Setenv("SHOP_TOKEN", "canary-of-a-token")
	request := dispatch.Request{Tuple: dispatch.Tuple{AgentRunID: "r", StepID: "s", ToolName: "shop/order", BusinessScope: "b"}, IdempotencyKey: "idem_v1_1", Payload: []byte(`{"sum": 5}`)}
	loaded, err := config.Load(path, builtins(t))
	if err != nil {
		t.Fatal(err)
	}
	shown, err := preview(t.Context(), loaded, request)
	if err != nil || strings.Contains(shown, "canary") || !strings.HasPrefix(shown, "POST https://shop.example/[hidden]/orders/[secret]\n") || !strings.HasSuffix(shown, "\n\n"+`{"sum": 5}`) {
		t.Errorf("shown is %q, %v", shown, err)
	}
	failing := request
	failing.Tuple.ToolName, failing.Payload = "shop/sum", []byte(`{"sum": "canary-of-a-payload"}`)
	if shown, err := preview(t.Context(), loaded, failing); err == nil || shown != "" || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), `{token: "[secret]", `) {
		t.Errorf("of a map that fails: %q, %v", shown, err)
	}
	settings := fmt.Sprint(settingsOf(&standing{Config: loaded, file: loaded}))
	if strings.Contains(settings, "canary") || !strings.Contains(settings, "{worker.lease 15s }") || !strings.Contains(settings, "{providers.shop.concurrency 32 }") || settingsOf(&standing{}) != nil {
		t.Errorf("the settings are %s", settings)
	}
	blind, err := config.LoadWithoutSecrets(path, builtins(t), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, without := range []*config.Config{blind, nil} {
		if shown, err := preview(t.Context(), without, request); err == nil || shown != "" {
			t.Errorf("without credentials or a file: %q, %v", shown, err)
		}
	}
}

func TestOnlyConfiguredToolsAreOffered(t *testing.T) {
	t.Parallel()
	const place = "        http: {method: POST, path: /v1/charges, body: form}\n"
	withSchema := strings.Replace(validConfig, place, place+schemaOfCharge, 1)
	alike := validConfig + "      create.charge: {http: {method: POST, path: /v2}, idempotency: {class: naturally_idempotent}, compensation: none}\n"
	for name, test := range map[string]struct{ config, tools, want string }{
		"not configured":           {validConfig, "stripe/creat_charge", `no tool "stripe/creat_charge"`},
		"a name that is meant":     {validConfig, "stripe/creat_charge", "stripe/create_charge"},
		"named twice":              {validConfig, "stripe/refund,stripe/refund", "would both be the MCP tool enqueue_stripe_refund"},
		"names that become one":    {alike, "stripe/create_charge,stripe/create.charge", "stripe/create_charge and stripe/create.charge would both be the MCP tool enqueue_stripe_create_charge; name one of them"},
		"no object":                {strings.Replace(withSchema, "type: object, ", "", 1), "stripe/create_charge", `must say {"type": "object"}`},
		"a schema, and a database": {withSchema, "stripe/create_charge", "postgres"},
	} {
		file := write(t, "drainer.yaml", strings.ReplaceAll(test.config, "TOKEN", "/nowhere"))
		got := run(t, "mcp", "--enqueue", test.tools, "--config", file, "--database-url", "postgres://app@127.0.0.1:1/postgres")
		if got.code == exitOK || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%s: %d, %s, want %q", name, got.code, got.stderr, test.want)
		}
	}
}

func TestOtherMachinesNeedATokenForMCP(t *testing.T) {
	t.Parallel()
	got := run(t, "mcp", "--listen", ":9466", "--database-url", "postgres://app@127.0.0.1:1/postgres")
	if got.code != exitUsage || !strings.Contains(got.stderr, "--token-file") {
		t.Errorf("without a token: %d, %s", got.code, got.stderr)
	}
	// Each user of the machine can connect to a loopback address.
	file := write(t, "drainer.yaml", strings.ReplaceAll(validConfig, "TOKEN", "/nowhere"))
	got = run(t, "mcp", "--listen", "127.0.0.1:0", "--enqueue", "stripe/refund", "--config", file, "--database-url", "postgres://app@127.0.0.1:1/postgres")
	if got.code != exitUsage || !strings.Contains(got.stderr, "--token-file") {
		t.Errorf("taking intents without a token: %d, %s", got.code, got.stderr)
	}
	short := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(short, []byte("guess"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(t, "mcp", "--listen", ":9466", "--token-file", short); got.code != exitUsage || !strings.Contains(got.stderr, "at least 20") {
		t.Errorf("a short token: %d, %s", got.code, got.stderr)
	}
	if err := os.WriteFile(short, []byte("one token\nand another of many characters"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(t, "mcp", "--listen", ":9466", "--token-file", short); got.code != exitUsage || !strings.Contains(got.stderr, "second line") {
		t.Errorf("a token that no header can carry: %d, %s", got.code, got.stderr)
	}
}

func TestARequestWithoutTheTokenIsRefused(t *testing.T) {
	t.Parallel()
	const token = "a-token-of-more-than-20-characters"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guard, err := mcpSetup{listen: ":9466", token: file}.guard(newMCP(newOptions(builtins(t))))
	if err != nil {
		t.Fatal(err)
	}
	guarded := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for sent, want := range map[string]int{"": 401, "Bearer guess": 401, "Basic " + token: 401, "Bearer " + token: 204} {
		request := httptest.NewRequest(http.MethodPost, "/", nil)
		request.Header.Set("Authorization", sent)
		answer := httptest.NewRecorder()
		guarded.ServeHTTP(answer, request)
		if answer.Code != want {
			t.Errorf("%q: %d, want %d", sent, answer.Code, want)
		}
	}
}

// The configuration came through a pipe, and one of its secrets is rotated. The reload is refused once, not at every
// look.
func TestWhatAPipeKeepsFromBeingReloadedIsRefusedOnce(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	secret := filepath.Join(folder, "secret")
	write := func(content string) {
		if err := os.WriteFile(secret, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if _, err := io.WriteString(to, "version: 1\ndatabase: {url: \"${file:"+secret+"}\"}\nproviders: {}\n"); err != nil {
		t.Fatal(err)
	}
	to.Close()
	loaded, err := config.Load(filepath.Join("/dev/fd", strconv.Itoa(int(from.Fd()))), builtins(t))
	if err != nil {
		t.Fatal(err)
	}
	write("two")
	r := &reloader{files: loaded.Files}
	_, err = r.read()
	var mistakes *config.InvalidError
	if !errors.As(err, &mistakes) {
		t.Fatalf("%v, want a refusal", err)
	}
	for _, file := range mistakes.Files {
		if file.Current() != file.Version {
			t.Errorf("%s is as it was, and yet the next look would find it changed", filepath.Base(file.Path))
		}
	}
}

// Each replica uses the fixed blocks of its start and the rest of the current file, whichever files it had in between.
func TestBlocksThatNeedARestartStayInForceAndAreShownSo(t *testing.T) {
	t.Parallel()
	of := func(blocks ...string) *config.Config {
		file := write(t, "drainer.yaml", "version: 1\n"+strings.Join(blocks, "\n"))
		loaded, err := config.Load(file, builtins(t))
		if err != nil {
			t.Fatal(err)
		}
		return loaded
	}
	started := func(start *config.Config, reloads ...*config.Config) *reloader {
		r := &reloader{source: newOptions(builtins(t)).source(nil, nil), start: start}
		r.inForce.Store(&standing{Config: start, file: start})
		for _, loaded := range reloads {
			r.inForce.Store(r.stand(loaded))
		}
		return r
	}
	sum := func(r *reloader) string { return fmt.Sprintf("%x", r.inForce.Load().Digests.Sum()) }
	const repeat, lease = "page_repeat: 31m", "worker: {lease: 20s}"
	first, second, third := of(), of(repeat), of(repeat, lease)
	waits, other := started(first, second, third), started(second, third)
	if sum(waits) != sum(other) || sum(waits) == sum(started(third)) || sum(started(first, third, first)) != sum(started(first)) {
		t.Error("fingerprints do not tell what is in force")
	}
	if sum(started(first, of("worker: {lease: 15s}"), third)) != sum(started(of("worker: {lease: 15s}"), third)) {
		t.Error("how the block was written at the start counts, although it was written otherwise since")
	}
	if settings := fmt.Sprint(settingsOf(waits.inForce.Load())); !strings.Contains(settings, "{worker.lease 15s 20s}") ||
		!strings.Contains(settings, "{worker as at the start as in the file}") || !strings.Contains(settings, "{page_repeat 31m0s }") {
		t.Errorf("the settings are %s", settings)
	}

	all := started(first, of("database: {url: 'postgres://a@b/c'}", lease, "server: {listen: ':1'}", "console: {listen: 'localhost:1'}", "log: {level: warn}",
		"unconfigured: {fail_after: 8d}", "misconfigured: {fail_after: 2d}", "history: {witness: /w}", "failover: lossless"))
	if now := all.inForce.Load(); !reflect.DeepEqual(all.fixedOf(now.Config), all.fixedOf(first)) || len(now.waiting) != len(all.fixedOf(first)) || sum(all) != sum(started(first)) {
		t.Errorf("in force is %+v, and %q wait", all.fixedOf(now.Config), now.waiting)
	}
}

func TestEveryChannelLinksToTheConsoleOfTheFile(t *testing.T) {
	t.Parallel()
	file := write(t, "drainer.yaml", "version: 1\npage_console: https://outbox.example\npages: [{alertmanager: {url: 'http://a'}}, {slack: {webhook_url: 'http://s'}}]\n")
	loaded, err := config.Load(file, builtins(t))
	if err != nil {
		t.Fatal(err)
	}
	channels, err := channelsOf(loaded)
	if err != nil || len(channels) != 2 {
		t.Fatalf("%d channels, %v", len(channels), err)
	}
	for _, channel := range channels {
		if channel.Console != "https://outbox.example" {
			t.Errorf("%s links to %q", channel.Name, channel.Console)
		}
	}
}

// A reloaded file may have any content. It is refused with its mistakes, or all parts of the daemon can use it. No
// secret is shown in either case.
func FuzzAReloadIsRefusedOrTakenOver(f *testing.F) {
	const canary = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // it is also valid as a secret that signs
	f.Setenv("CANARY", canary)
	secret := regexp.MustCompile(`\$\{file:[^}]*\}`)
	for _, seed := range append(documentedConfigurations(f), validConfig, "", "{", "version: 1\nproviders: {}") {
		seed = secret.ReplaceAllLiteralString(seed, "${env:CANARY}")
		f.Add([]byte(seed))
		f.Add([]byte(strings.NewReplacer("https://", "${env:CANARY}", ": /", ": ${env:CANARY}").Replace(seed)))
	}
	registry, path := builtins(f), filepath.Join(f.TempDir(), "drainer.yaml")
	running, err := config.Load(writeValid(f), registry)
	if err != nil {
		f.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	parts, err := partsOf(pools{}, running, log, prometheus.NewRegistry())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := config.Reload(path, registry)
		var mistakes *config.InvalidError
		if err != nil {
			if !errors.As(err, &mistakes) || len(mistakes.Files) == 0 || mistakes.Files[0].Current() != mistakes.Files[0].Version {
				t.Errorf("not a list of mistakes in a file: %v", err)
			}
			if strings.Contains(err.Error(), canary) && !bytes.Contains(content, []byte(canary)) {
				t.Errorf("a secret is shown: %v", err)
			}
			return
		}
		use, err := parts.prepare(loaded)
		if err != nil {
			t.Fatalf("%q is loaded, and cannot be taken over: %v", content, err)
		}
		use()
		for _, provider := range loaded.Providers {
			_ = hostOf(provider.Adapter)
			if closer, closes := provider.Adapter.(io.Closer); closes {
				_ = closer.Close()
			}
		}
		if again, err := config.Reload(path, registry); err != nil || !slices.Equal(again.Files, loaded.Files) {
			t.Errorf("the same file is another one: %v", err)
		}
	})
}

// documentedConfigurations returns the examples of the adapters' pages.
func documentedConfigurations(t testing.TB) (examples []string) {
	t.Helper()
	pages, err := filepath.Glob("../../../docs/adapters/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
			example, _, _ := strings.Cut(block, "```")
			examples = append(examples, example)
		}
	}
	return examples
}
