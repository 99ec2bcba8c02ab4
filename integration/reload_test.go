package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/program"
)

// outlet is an adapter of one configuration. It counts its requests in flight, and how often it was closed.
type outlet struct {
	adapter dispatch.Adapter
	present atomic.Int64
	served  atomic.Int64
	closed  atomic.Int64
	misuse  atomic.Int64 // calls after it was closed, and closing it during a call
}

func (o *outlet) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	o.present.Add(1)
	defer o.present.Add(-1)
	if o.closed.Load() > 0 {
		o.misuse.Add(1)
	}
	o.served.Add(1)
	return o.adapter.Dispatch(ctx, request)
}

func (o *outlet) Close() error {
	o.closed.Add(1)
	if o.present.Load() > 0 {
		o.misuse.Add(1)
	}
	return nil
}

// adapterFunc makes an adapter of a function.
type adapterFunc func(context.Context) dispatch.Result

func (f adapterFunc) Dispatch(ctx context.Context, _ dispatch.Request) dispatch.Result { return f(ctx) }

// hold keeps every request until it is released, or until the context ends.
type hold struct {
	entered atomic.Int64
	release chan struct{}
}

func newHold() *hold { return &hold{release: make(chan struct{})} }

func (h *hold) Dispatch(ctx context.Context, _ dispatch.Request) dispatch.Result {
	h.entered.Add(1)
	select {
	case <-h.release:
		return well
	case <-ctx.Done():
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "timeout"}
	}
}

func (o *outlet) as(name string, concurrency int) dispatch.Provider {
	return dispatch.Provider{
		Name: name, Adapter: o, Concurrency: concurrency, Timeout: drainertest.Patience,
		Tools: map[string]dispatch.Policy{"act": quickPolicy(dispatch.KeyIdempotent, 50)},
	}
}

func through(adapter dispatch.Adapter) *outlet { return &outlet{adapter: adapter} }

func reload(t *testing.T, daemon *resident, providers ...dispatch.Provider) {
	t.Helper()
	if err := daemon.Reload(providers, nil); err != nil {
		t.Errorf("reloading: %v", err)
	}
}

func TestReloadsThatRaceUnderLoadLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	const racers, reloads, batch = 4, 12, 25
	rig := harness.Plain(t, dispatchtest.Random(7, map[dispatchtest.Fault]float64{dispatchtest.ErrorAfter: 0.1, dispatchtest.DropAfter: 0.05, dispatchtest.Slow: 0.01}))
	var mu sync.Mutex
	var outlets []*outlet
	configure := func() dispatch.Provider {
		provider := simOf(rig, dispatch.KeyIdempotent).build(t)
		outlet := through(provider.Adapter)
		provider.Adapter = outlet
		mu.Lock()
		defer mu.Unlock()
		outlets = append(outlets, outlet)
		return provider
	}
	daemon := launch(t, rig.URL, configure())

	var racing sync.WaitGroup
	for racer := range racers {
		racing.Go(func() {
			for n := range reloads {
				first := (racer*reloads + n) * batch
				rig.EnqueueSteps("sim/act", first, first+batch)
				rig.AwaitRequests(n * racers * batch / 2) // so that each reload happens under load
				reload(t, daemon, configure())
			}
		})
	}
	racing.Wait()
	rig.AwaitStatus("completed", racers*reloads*batch)
	rig.AssertOneEffectEach()
	drainertest.Eventually(t, "only the last worker is left", func() bool {
		return harness.Stored[int](rig, `SELECT count(*) FROM outbox.worker`) == 1
	})
	rig.AssertNoClaims()
	if lost := harness.Stored[int](rig, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'lost'`); lost > 0 {
		t.Errorf("%d attempts were lost", lost)
	}
	if workers := harness.Stored[int](rig, `SELECT count(DISTINCT worker) FROM outbox.attempt WHERE outcome = 'completed'`); workers <= racers {
		t.Errorf("%d workers completed anything; the reloads did not meet the load", workers)
	}
	if err := daemon.end(t); err != nil {
		t.Error(err)
	}
	if len(outlets) != 1+racers*reloads {
		t.Errorf("%d adapters were built", len(outlets))
	}
	for _, o := range outlets {
		if o.closed.Load() != 1 || o.misuse.Load() != 0 {
			t.Errorf("an adapter was closed %d times, and used wrongly %d times", o.closed.Load(), o.misuse.Load())
		}
	}
}

func TestWhatIsInFlightAtAReloadEndsInItsOwnTime(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	slow, first := newHold(), rig.DB
	before, after := through(slow), through(&scripted{})
	hasty := patientLease
	hasty.ShutdownTimeout = time.Millisecond
	rig.EnqueueSteps("sim/act", 0, 4)
	daemon := launchWith(t, rig.URL, hasty, before.as("sim", 2))
	drainertest.Eventually(t, "two are in flight", func() bool { return slow.entered.Load() == 2 })
	worker := harness.Stored[string](rig, `SELECT worker_id::text FROM outbox.worker`)

	reload(t, daemon, after.as("sim", 4))
	rig.AwaitStatus("completed", 2) // the new adapter did, while two requests of the old one were in flight
	if err := daemon.Ready(); err != nil {
		t.Errorf("it claims, and says %v", err)
	}
	if before.closed.Load() != 0 || slow.entered.Load() != 2 {
		t.Errorf("the old adapter was closed, or called %d times", slow.entered.Load())
	}
	close(slow.release)
	rig.AwaitStatus("completed", 4)
	drainertest.Eventually(t, "the old worker has left", func() bool {
		return harness.Stored[int](rig, `SELECT count(*) FROM outbox.worker WHERE worker_id = $1::uuid`, worker) == 0 && before.closed.Load() == 1
	})
	if attempts := harness.Stored[int](rig, `SELECT count(*) FROM outbox.attempt WHERE worker = $1 AND attempt = 1 AND outcome = 'completed'`, worker); attempts != 2 {
		t.Errorf("the old worker completed %d at its first attempt, want the 2 that it had begun", attempts)
	}
	drainertest.AssertInvariant(t, first)
}

// A limit of one is the hardest case. If a worker that only drains still had a share, about half of the new workers
// would come after it and have no share at all.
func TestALongDrainStarvesNobodyAndBreaksNoLimit(t *testing.T) {
	t.Parallel()
	const generations, limit = 6, 3
	rig := harness.Plain(t, nil)
	c := &crowd{leave: make(chan struct{})}
	quick := &scripted{}
	configuration := func() []dispatch.Provider {
		return []dispatch.Provider{through(c).as("slow", limit), through(quick).as("sim", 1)}
	}
	rig.EnqueueSteps("slow/act", 0, 50)
	daemon := launch(t, rig.URL, configuration()...)
	drainertest.Eventually(t, "the slow provider is full", func() bool { return c.mostAtOnce() == limit })
	for generation := range generations {
		reload(t, daemon, configuration()...)
		rig.EnqueueSteps("sim/act", 100+10*generation, 110+10*generation)
		rig.AwaitStatus("completed", 10*(generation+1))
	}
	if most := c.mostAtOnce(); most != limit {
		t.Errorf("%d dispatches were under way at once, want %d", most, limit)
	}
	close(c.leave)
	rig.AwaitStatus("completed", 50+10*generations)
	if most := c.mostAtOnce(); most != limit {
		t.Errorf("%d dispatches were under way at once, want %d", most, limit)
	}
	drainertest.Eventually(t, "only the last worker is left", func() bool {
		return harness.Stored[int](rig, `SELECT count(*) FROM outbox.worker`) == 1
	})
}

func TestReloadsKeepTheProvidersRate(t *testing.T) {
	t.Parallel()
	const intents = 15
	limit := dispatch.RateLimit{PerSecond: 10, Burst: 1}
	rig := harness.Plain(t, nil)
	configuration := func() dispatch.Provider {
		provider := through(&scripted{}).as("sim", 32)
		provider.RateLimit = limit
		return provider
	}
	daemon := launch(t, rig.URL, configuration())
	began := time.Now()
	rig.EnqueueSteps("sim/act", 0, intents)
	reloads := 0
	for ; rig.CountStatus("completed") < intents; reloads++ {
		reload(t, daemon, configuration())
	}
	least := time.Duration(float64(intents-1-limit.Burst) / limit.PerSecond * float64(time.Second))
	if took := time.Since(began); took < least {
		t.Errorf("%d dispatches took %s over %d reloads, at %v a second they take at least %s", intents, took, reloads, limit.PerSecond, least)
	}
}

func TestAReloadWaitsForTheDatabaseWhileTheOldProvidersStay(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	line := pgproxy.New(t, rig.URL)
	slow := newHold()
	before, after := through(slow), through(&scripted{})
	rig.EnqueueSteps("sim/act", 0, 1)
	daemon := launch(t, line.Behind(t, rig.URL), before.as("sim", 1))
	drainertest.Eventually(t, "one is in flight", func() bool { return slow.entered.Load() == 1 })

	line.TakeDown()
	done := make(chan error, 1)
	go func() { done <- daemon.Reload([]dispatch.Provider{after.as("sim", 1)}, nil) }()
	close(slow.release)
	drainertest.Eventually(t, "the old adapter is free", func() bool { return before.present.Load() == 0 })
	if err := daemon.Ready(); err != nil {
		t.Errorf("the old worker gave up before another had joined: %v", err)
	}
	select {
	case err := <-done:
		t.Fatalf("the reload ended without a database: %v", err)
	default:
	}
	line.BringUp()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	rig.EnqueueSteps("sim/act", 1, 2)
	rig.AwaitStatus("completed", 2)
	if before.served.Load() != 1 || after.served.Load() != 1 {
		t.Errorf("the old adapter served %d and the new one %d, want one each", before.served.Load(), after.served.Load())
	}
}

func TestARowOfAWorkerDeclaredDeadWhileItDrainsGoesToItsSuccessor(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	slow := newHold()
	before, after := through(slow), through(&scripted{})
	rig.EnqueueSteps("sim/act", 0, 1)
	daemon := launchWith(t, rig.URL, shortLease, before.as("sim", 1))
	drainertest.Eventually(t, "one is in flight", func() bool { return slow.entered.Load() == 1 })
	worker := harness.Stored[string](rig, `SELECT worker_id::text FROM outbox.worker`)
	reload(t, daemon, after.as("sim", 1))
	rig.Exec(`DELETE FROM outbox.worker WHERE worker_id = $1::uuid`, worker)

	rig.AwaitStatus("completed", 1)
	if history := rig.Outcomes(); len(history) != 2 || history[1] != "completed" { // the first is lost, or in doubt if it was cut off
		t.Errorf("attempts ended %v, want a second one that is completed", history)
	}
	drainertest.Eventually(t, "the old adapter is closed", func() bool { return before.closed.Load() == 1 })
	if after.served.Load() != 1 || after.closed.Load() != 0 {
		t.Errorf("the new adapter served %d, and was closed %d times", after.served.Load(), after.closed.Load())
	}
}

func TestAnAdapterThatLostItsLeaseIsUsedAgainAndClosedOnce(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	o := through(&scripted{})
	daemon := launchWith(t, rig.URL, shortLease, o.as("sim", 1))
	for n := range 3 {
		drainertest.Eventually(t, "a worker is there", func() bool { return harness.Stored[int](rig, `SELECT count(*) FROM outbox.worker`) == 1 })
		rig.Exec(`DELETE FROM outbox.worker`)
		rig.EnqueueSteps("sim/act", n, n+1)
		rig.AwaitStatus("completed", n+1)
	}
	if err := daemon.end(t); err != nil || o.closed.Load() != 1 || o.misuse.Load() != 0 {
		t.Errorf("%v; the adapter was closed %d times and used wrongly %d times", err, o.closed.Load(), o.misuse.Load())
	}
}

func TestAStopDuringAHandoverIsBoundedForBoth(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	hasty := patientLease
	hasty.ShutdownTimeout = 50 * time.Millisecond
	generations := []*outlet{through(newHold()), through(newHold()), through(newHold())}
	daemon := launchWith(t, rig.URL, hasty, generations[0].as("sim", 3))
	for n, o := range generations {
		if n > 0 {
			reload(t, daemon, o.as("sim", 3))
		}
		rig.EnqueueSteps("sim/act", n, n+1)
		drainertest.Eventually(t, fmt.Sprintf("generation %d has one in flight", n), func() bool { return o.present.Load() == 1 })
	}
	if err := daemon.end(t); err != nil {
		t.Error(err)
	}
	for n, o := range generations {
		if o.closed.Load() != 1 || o.misuse.Load() != 0 {
			t.Errorf("generation %d: closed %d times, used wrongly %d times", n, o.closed.Load(), o.misuse.Load())
		}
	}
	if workers := harness.Stored[int](rig, `SELECT count(*) FROM outbox.worker`); workers != 0 {
		t.Errorf("%d workers did not leave", workers)
	}
	if cut := harness.Stored[int](rig, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'ambiguous'`); cut != len(generations) {
		t.Errorf("%d dispatches were cut off, want %d", cut, len(generations))
	}
	rig.AssertNoClaims()
	drainertest.AssertInvariant(t, rig.DB)
}

func TestAReloadAfterTheEndIsRefusedAndItsAdaptersAreClosed(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	daemon := launch(t, rig.URL, through(&scripted{}).as("sim", 1))
	if err := daemon.end(t); err != nil {
		t.Fatal(err)
	}
	late := through(&scripted{})
	if err := daemon.Reload([]dispatch.Provider{late.as("sim", 1)}, nil); err == nil || late.closed.Load() != 1 {
		t.Errorf("%v; its adapter was closed %d times", err, late.closed.Load())
	}
}

func TestAnAdapterThatNeverReturnsIsNeverClosed(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	hasty := patientLease
	hasty.ShutdownTimeout = time.Millisecond
	release := make(chan struct{})
	defer close(release)
	var entered atomic.Bool
	deaf := through(adapterFunc(func(context.Context) dispatch.Result {
		entered.Store(true)
		<-release
		return well
	}))
	other := through(&scripted{})
	rig.EnqueueSteps("deaf/act", 0, 1)
	daemon := launchWith(t, rig.URL, hasty, deaf.as("deaf", 1), other.as("sim", 1))
	drainertest.Eventually(t, "one is in flight", entered.Load)
	daemon.stop()
	<-daemon.ended
	if daemon.err == nil || deaf.closed.Load() != 0 || other.closed.Load() != 1 {
		t.Errorf("%v; the deaf adapter was closed %d times, the other %d times", daemon.err, deaf.closed.Load(), other.closed.Load())
	}
	daemon.err = nil // the test expects this error
}

// An operator who finds out that a provider forgets keys reloads to stop the repetitions.
func TestATightenedClassHoldsForRowsInDoubt(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	var sends atomic.Int64
	acts := adapterFunc(func(context.Context) dispatch.Result {
		sends.Add(1)
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "timeout", RetryAfter: time.Hour}
	})
	of := func(class dispatch.Class) dispatch.Provider {
		p := through(acts).as("sim", 1)
		p.Tools = map[string]dispatch.Policy{"act": quickPolicy(class, 50)}
		p.Breaker = dispatch.BreakerPolicy{ConsecutiveFailures: 1000, CoolDown: time.Second}
		return p
	}
	rig.EnqueueSteps("sim/act", 0, 1)
	daemon := launch(t, rig.URL, of(dispatch.KeyIdempotent))
	drainertest.Eventually(t, "one attempt in doubt", func() bool {
		return harness.Stored[int](rig, `SELECT count(*) FROM outbox.queue WHERE maybe_applied`) == 1
	})
	reload(t, daemon, of(dispatch.NonIdempotent))
	rig.Exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
	drainertest.Eventually(t, "it is settled or sent again", func() bool {
		return sends.Load() > 1 || harness.Stored[int](rig, `SELECT count(*) FROM outbox.status WHERE status='unknown'`) == 1
	})
	if sends.Load() != 1 {
		t.Errorf("sent %d times", sends.Load())
	}
}

// volume is a folder like a volume of Kubernetes: all its files change at once, when a symlink above them is
// replaced.
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

// gatekeeper is a provider that reports the token of each request.
type gatekeeper struct {
	url    string
	tokens chan string
	hold   atomic.Pointer[chan struct{}] // an answer waits until it is closed
}

func newGatekeeper(t *testing.T) *gatekeeper {
	t.Helper()
	g := &gatekeeper{tokens: make(chan string, 100)}
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hold := g.hold.Load()
		g.tokens <- strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if hold != nil {
			<-*hold
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"id": "ch_1"})
	}))
	g.url = baseURL
	return g
}

// holdBack delays answers until release is called.
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
	url := drainertest.Database(t)
	shell, provider, volume := program.New(t, url), newGatekeeper(t), newVolume(t)
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

	// A secret is rotated.
	volume.publish(map[string]string{"drainer.yaml": valid, "token": "canary-two\n"})
	daemon.WaitFor(`"msg":"configuration reloaded","cause":"change","changed":true`)
	serves("rotated", "canary-two")

	// A reload is requested, but nothing has changed.
	daemon.Signal(syscall.SIGHUP)
	daemon.WaitFor(`"msg":"configuration reloaded","cause":"signal","changed":false`)
	serves("asked", "canary-two")
	wantMetrics(t, daemon, `drainer_config_reloads_total{outcome="applied"} 2`)

	// The file has mistakes. One of them is a secret in the wrong place.
	broken := strings.Replace(valid, "adapter: http", "adapter: http\n    timeout: ${file:"+volume.path("token")+"}\n    retires: 3", 1)
	volume.publish(map[string]string{"drainer.yaml": broken, "token": "canary-three\n"})
	daemon.WaitFor(`drainer.yaml:6:14: `)
	daemon.WaitFor(`drainer.yaml:7:5: `)
	serves("broken", "canary-two")
	wantMetrics(t, daemon, `drainer_config_reloads_total{outcome="rejected"} 1`, `drainer_config_last_reload_successful 0`)

	// A file does not exist yet.
	missing := strings.Replace(valid, volume.path("token"), volume.path("later"), 1)
	volume.publish(map[string]string{"drainer.yaml": missing})
	daemon.WaitFor(`later cannot be read`)
	volume.publish(map[string]string{"drainer.yaml": missing, "later": "canary-four\n"})
	daemon.WaitFor(`"msg":"configuration reloaded"`)
	serves("repaired", "canary-four")
	wantMetrics(t, daemon, `drainer_config_reloads_total{outcome="applied"} 3`, `drainer_config_reloads_total{outcome="rejected"} 2`, `drainer_config_last_reload_successful 1`)

	// Another provider replaces the first one. Two other blocks change that need a restart.
	replaced := strings.NewReplacer("billing:", "ledger:", `"127.0.0.1:0"`, `"127.0.0.1:1"`).Replace(missing) + "worker: {shutdown_timeout: 9s}\n"
	volume.publish(map[string]string{"drainer.yaml": replaced, "later": "canary-five\n"})
	daemon.WaitFor(`needs a restart; everything else is in force","cause":"change","block":"worker"`)
	daemon.WaitFor(`"block":"server"`)
	shell.Run(0, "enqueue", "--run", "run", "--step", "ledger", "--tool", "ledger/charge", "--scope", "invoice", "--payload", "{}")
	if got := <-provider.tokens; got != "canary-five" {
		t.Errorf("the new provider was called with %q", got)
	}
	daemon.WaitFor(`"provider":"ledger"`)
	for range 2 { // two replicas of Prometheus can read the zero
		wantMetrics(t, daemon, `drainer_dispatch_attempts_total{operation="charge",outcome="completed",provider="ledger"} 0`)
	}
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

// The fingerprint describes the configuration in force, not the file. The block worker keeps its values until a
// restart.
func TestAReplicaThatWaitsForARestartIsToldFromOneThatWasRestarted(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	shell, provider, volume := program.New(t, url), newGatekeeper(t), newVolume(t)
	start := volume.config(provider.url) + "console: {listen: '127.0.0.1:0'}\n"
	reloaded := start + "page_repeat: 31m\n"
	restarted := reloaded + "worker: {shutdown_timeout: 9s}\n"
	db := drainertest.Connect(t, url)
	newest := func() string {
		return drainertest.Value[string](t, db, `SELECT configuration FROM outbox.worker ORDER BY started_at DESC LIMIT 1`)
	}
	publish := func(text string) {
		volume.publish(map[string]string{"drainer.yaml": text, "other.yaml": restarted, "token": "t"})
	}
	publish(start)
	daemon := shell.Start(volume.path("drainer.yaml"))
	charge(shell, "first")
	<-provider.tokens // by then the worker has joined
	first := newest()
	follow := func(text string) string {
		t.Helper()
		publish(text)
		daemon.WaitFor(`"msg":"configuration reloaded"`)
		return newest()
	}
	second := follow(reloaded)
	if len(first) != 12 || second == first {
		t.Errorf("the fingerprint is %q, after the reload of a setting %q", first, second)
	}
	if waiting := follow(restarted); waiting != second {
		t.Errorf("with a block that waits for a restart it is %q, want %q as before", waiting, second)
	}

	address := regexp.MustCompile(`"msg":"serving the console","address":"([^"]+)"`).FindStringSubmatch(daemon.Log())[1]
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/config", nil)
	request.Header.Set("Accept", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var shown struct{ Settings []map[string]string }
	if err := json.NewDecoder(answer.Body).Decode(&shown); err != nil {
		t.Fatal(err)
	}
	for _, want := range []map[string]string{{"name": "worker.shutdown_timeout", "value": "25s", "after_restart": "9s"}, {"name": "page_repeat", "value": "31m0s"}} {
		if !slices.ContainsFunc(shown.Settings, func(got map[string]string) bool { return maps.Equal(got, want) }) {
			t.Errorf("/config shows %v, want %v in it", shown.Settings, want)
		}
	}

	other := shell.Start(volume.path("other.yaml"))
	drainertest.Eventually(t, "another fingerprint of the one that was started with the file", func() bool { return newest() != second })
	other.Terminate()
	if again := follow(start); again != first {
		t.Errorf("with the file of the start again it is %q, want %q", again, first)
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
	daemon.WaitFor(`"msg":"shutting down"`) // each of the two workers logs it
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
