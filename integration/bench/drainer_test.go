package bench_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"strconv"
	"testing"

	"github.com/agentoutbox/drainer/cmd/drainer/cli"
	"github.com/agentoutbox/drainer/dispatch/builtin"
)

// profileVariable names a folder that gets a CPU profile of every daemon.
const profileVariable = "BENCH_PROFILE"

// drainerMain is the program, with an adapter more.
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

// startDaemon gives what is in flight a second when it is told to end.
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

// provider is one that a daemon is configured for, with the tool "act".
type provider struct {
	name        string
	adapter     string
	settings    string // the adapter's block
	tool        string // the tool's block of the adapter
	concurrency int
	promise     string // the tool's class, with what belongs to it
}

func (p provider) config() string {
	return fmt.Sprintf(`  %s:
    adapter: %s
    concurrency: %d
    %s: {%s}
    tools: {act: {%s: {%s}, idempotency: {%s}, compensation: none, retry: {base: 1ms, cap: 10ms}}}
`, p.name, p.adapter, p.concurrency, p.adapter, p.settings, p.adapter, p.tool, p.promise)
}

func (p provider) act() string { return p.name + "/act" }

const keyIdempotent = "class: key_idempotent, ttl: 24h, scope: account"

// noop is a provider without a cost of its own.
func noop(name string) provider {
	return provider{name: name, adapter: "noop", concurrency: inFlight, promise: keyIdempotent}
}

// served is the provider at the URL.
func served(name, baseURL string) provider {
	return provider{
		name: name, adapter: "http", settings: fmt.Sprintf("base_url: %q", baseURL), tool: "method: POST, path: /act, response: {ref: .id}",
		concurrency: inFlight, promise: keyIdempotent,
	}
}

var settledSeries = regexp.MustCompile(`(?m)^drainer_settled_total\{provider="[^"]+",status="completed"\} (\S+)$`)

// plainly asks for no compression: looking must not cost what is looked at.
var plainly = &http.Client{Transport: &http.Transport{DisableCompression: true}}

// completed is how many intents the daemon has completed, of all providers.
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

// awaitCompleted returns once the daemons have completed that many.
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
