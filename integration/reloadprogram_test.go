package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/program"
)

// volume is a folder as Kubernetes mounts one: what it holds changes all at
// once, by the swap of a symlink above it.
type volume struct {
	t        *testing.T
	folder   string
	versions int
}

func newVolume(t *testing.T) *volume {
	t.Helper()
	return &volume{t: t, folder: t.TempDir()}
}

func (v *volume) path(name string) string { return filepath.Join(v.folder, name) }

func (v *volume) publish(contents map[string]string) {
	v.t.Helper()
	v.versions++
	version := fmt.Sprintf("..version-%d", v.versions)
	must := func(err error) {
		v.t.Helper()
		if err != nil {
			v.t.Fatal(err)
		}
	}
	must(os.Mkdir(v.path(version), 0o700))
	for name, content := range contents {
		must(os.WriteFile(filepath.Join(v.path(version), name), []byte(content), 0o600))
		if _, err := os.Lstat(v.path(name)); err != nil {
			must(os.Symlink(filepath.Join("..data", name), v.path(name)))
		}
	}
	must(os.Symlink(version, v.path("..next")))
	must(os.Rename(v.path("..next"), v.path("..data")))
}

// gatekeeper is a provider that reports which token each request came with.
type gatekeeper struct {
	url    string
	tokens chan string
	hold   atomic.Pointer[chan struct{}] // what an answer waits for
}

func newGatekeeper(t *testing.T) *gatekeeper {
	t.Helper()
	g := &gatekeeper{tokens: make(chan string, 100)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hold := g.hold.Load()
		g.tokens <- strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if hold != nil {
			<-*hold
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"id": "ch_1"})
	}))
	t.Cleanup(server.Close)
	g.url = server.URL
	return g
}

// holdBack keeps answers until the function that it returns is called.
func (g *gatekeeper) holdBack() (release func()) {
	hold := make(chan struct{})
	g.hold.Store(&hold)
	return func() {
		g.hold.Store(nil)
		close(hold)
	}
}

func (v *volume) config(baseURL string) string {
	return strings.NewReplacer("%s", baseURL, "${env:BILLING_TOKEN}", "${file:"+v.path("token")+"}").Replace(billingConfig)
}

func charge(shell *program.Program, step string) {
	shell.Run(0, "enqueue", "--run", "run", "--step", step, "--tool", "billing/charge", "--scope", "invoice", "--payload", "{}")
}

func wantMetrics(t *testing.T, daemon *program.Daemon, wants ...string) {
	t.Helper()
	metrics := daemon.Get("/metrics")
	for _, want := range wants {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

func TestAConfigurationIsReloadedAsAWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	shell, provider, volume := program.New(t, drainertest.Database(t)), newGatekeeper(t), newVolume(t)
	valid := volume.config(provider.url)
	volume.publish(map[string]string{"drainer.yaml": valid, "token": "canary-one\n"})
	daemon := shell.Start(volume.path("drainer.yaml"))
	serves := func(step, token string) {
		t.Helper()
		charge(shell, step)
		if got := <-provider.tokens; got != token {
			t.Errorf("%s came with %q, want %q", step, got, token)
		}
	}
	serves("first", "canary-one")
	wantMetrics(t, daemon, `drainer_config_reloads_total{outcome="applied"} 0`, `drainer_config_reloads_total{outcome="rejected"} 0`, `drainer_config_last_reload_successful 1`)

	// A rotated secret.
	volume.publish(map[string]string{"drainer.yaml": valid, "token": "canary-two\n"})
	daemon.WaitFor(`"msg":"configuration reloaded","cause":"change","changed":true`)
	serves("rotated", "canary-two")

	// No change at all, but a reload is asked for.
	daemon.Signal(syscall.SIGHUP)
	daemon.WaitFor(`"msg":"configuration reloaded","cause":"signal","changed":false`)
	serves("asked", "canary-two")
	wantMetrics(t, daemon, `drainer_config_reloads_total{outcome="applied"} 2`)

	// Mistakes, one of them a secret in the wrong place.
	broken := strings.Replace(valid, "adapter: http", "adapter: http\n    timeout: ${file:"+volume.path("token")+"}\n    retires: 3", 1)
	volume.publish(map[string]string{"drainer.yaml": broken, "token": "canary-three\n"})
	daemon.WaitFor(`drainer.yaml:6:14: `)
	daemon.WaitFor(`drainer.yaml:7:5: `)
	serves("broken", "canary-two")
	wantMetrics(t, daemon, `drainer_config_reloads_total{outcome="rejected"} 1`, `drainer_config_last_reload_successful 0`)

	// A file that is not there yet.
	missing := strings.Replace(valid, volume.path("token"), volume.path("later"), 1)
	volume.publish(map[string]string{"drainer.yaml": missing})
	daemon.WaitFor(`later cannot be read`)
	volume.publish(map[string]string{"drainer.yaml": missing, "later": "canary-four\n"})
	daemon.WaitFor(`"msg":"configuration reloaded"`)
	serves("repaired", "canary-four")
	wantMetrics(t, daemon, `drainer_config_reloads_total{outcome="applied"} 3`, `drainer_config_reloads_total{outcome="rejected"} 2`, `drainer_config_last_reload_successful 1`)

	// Another provider in the place of the first, and what no reload can change.
	replaced := strings.NewReplacer("billing:", "ledger:", `"127.0.0.1:0"`, `"127.0.0.1:1"`).Replace(missing) + "worker: {shutdown_timeout: 9s}\n"
	volume.publish(map[string]string{"drainer.yaml": replaced, "later": "canary-five\n"})
	daemon.WaitFor(`needs a restart; everything else is in force","cause":"change","block":"worker"`)
	daemon.WaitFor(`"block":"server"`)
	shell.Run(0, "enqueue", "--run", "run", "--step", "ledger", "--tool", "ledger/charge", "--scope", "invoice", "--payload", "{}")
	if got := <-provider.tokens; got != "canary-five" {
		t.Errorf("the new provider was called with %q", got)
	}
	daemon.WaitFor(`"provider":"ledger"`)
	wantMetrics(t, daemon, `drainer_dispatch_attempts_total{operation="charge",outcome="completed",provider="ledger"} 0`)
	wantMetrics(t, daemon, `drainer_dispatch_attempts_total{operation="charge",outcome="completed",provider="ledger"} 1`)

	for place, text := range map[string]string{"metrics": daemon.Get("/metrics"), "log": daemon.Terminate()} {
		if strings.Contains(text, "canary") {
			t.Errorf("the %s shows a secret:\n%s", place, text)
		}
	}
	if rejections := strings.Count(daemon.Log(), "configuration rejected"); rejections != 3 {
		t.Errorf("%d mistakes were logged, want each of the three once", rejections)
	}
}

func TestAStopDuringAHandoverEndsWell(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	shell, provider, volume := program.New(t, url), newGatekeeper(t), newVolume(t)
	volume.publish(map[string]string{"drainer.yaml": volume.config(provider.url), "token": "old"})
	release := provider.holdBack()
	daemon := shell.Start(volume.path("drainer.yaml"))
	charge(shell, "old")
	<-provider.tokens
	volume.publish(map[string]string{"drainer.yaml": volume.config(provider.url), "token": "new"})
	daemon.Signal(syscall.SIGHUP)
	daemon.WaitFor(`"msg":"configuration reloaded"`)
	charge(shell, "new")
	if got := <-provider.tokens; got != "new" {
		t.Errorf("the second request came with the token %q", got)
	}
	daemon.Signal(syscall.SIGTERM)
	daemon.WaitFor(`"msg":"shutting down"`)
	daemon.WaitFor(`"msg":"shutting down"`) // one worker each
	release()
	daemon.AwaitEnd()
	if code := daemon.ExitCode(); code != 0 {
		t.Errorf("exit code %d\n%s", code, daemon.Log())
	}
	db := drainertest.Connect(t, url)
	var completed, workers int
	err := db.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT worker) FROM outbox.attempt WHERE outcome = 'completed' AND attempt = 1`).Scan(&completed, &workers)
	if err != nil || completed != 2 || workers != 2 {
		t.Errorf("%v; %d completed at once, by %d workers, want 2 by 2", err, completed, workers)
	}
	drainertest.AssertInvariant(t, db)
}

func TestDrainingOnceIgnoresAHangup(t *testing.T) {
	t.Parallel()
	shell, provider, volume := program.New(t, drainertest.Database(t)), newGatekeeper(t), newVolume(t)
	volume.publish(map[string]string{"drainer.yaml": volume.config(provider.url), "token": "t"})
	release := provider.holdBack()
	charge(shell, "only")
	command := shell.Command("run", "--once", "--config", volume.path("drainer.yaml"))
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	<-provider.tokens
	if err := command.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	release()
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}
