package faults_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
)

// Each of these replies would fill the memory of a daemon that read it to its end.
func TestAHugeReplyDoesNotGrowTheDaemon(t *testing.T) {
	t.Parallel()
	const (
		intents = 32 // twice as many as are in flight at once
		most    = 128 << 20
	)
	bomb := newBomb()
	for name, garble := range map[string]http.HandlerFunc{
		"endless":  func(w http.ResponseWriter, _ *http.Request) { pour(w) },
		"gigabyte": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1073741824"); pour(w) },
		"gzip bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := harness.New(t, nil)
			garbler := newGarbler(t, rig, garble)
			rig.Reconfigure(steady)
			daemon := rig.Start()
			before := peakMemory(t, daemon.PID())
			rig.Enqueue(harness.Keyed, intents)
			rig.AwaitRest()
			fault.Injected(t, 45, garbler.met())
			if grown := peakMemory(t, daemon.PID()) - before; grown > most {
				t.Errorf("the daemon's memory grew by %d MiB", grown>>20)
			}
			if cut := rig.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'ambiguous' AND error = 'body_too_large'`); cut != intents {
				t.Errorf("%d replies were cut off, want %d", cut, intents)
			}
			rig.Check()
		})
	}
}

// pour writes until the reader has gone.
func pour(to io.Writer) {
	megabyte := make([]byte, 1<<20)
	for {
		if _, err := to.Write(megabyte); err != nil {
			return
		}
	}
}

// newBomb returns 32 MiB, compressed to 32 KiB.
func newBomb() []byte {
	var small bytes.Buffer
	zipped := gzip.NewWriter(&small)
	_, _ = zipped.Write(make([]byte, 32<<20))
	_ = zipped.Close()
	return small.Bytes()
}

func TestAReplyThatTricklesIsGivenUpAtTheDeadline(t *testing.T) {
	t.Parallel()
	const intents = 16
	for name, begins := range map[string]string{
		"its header": "HTTP/1.1 200 OK\r\nX-Long: ",
		"its body":   "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := harness.New(t, nil)
			garbler := newGarbler(t, rig, func(w http.ResponseWriter, _ *http.Request) { trickle(w, begins) })
			rig.Reconfigure(withPatientLease)
			rig.Start()
			rig.Enqueue(harness.Keyed, intents)
			rig.AwaitRest()
			fault.Injected(t, 46, garbler.met())
			if late := rig.Count(`SELECT count(DISTINCT intent_id) FROM outbox.attempt WHERE error = 'timeout' AND finished_at - started_at BETWEEN '0.9 s' AND '30 s'`); late != intents {
				t.Errorf("%d replies were given up after the second that they may take, want %d", late, intents)
			}
			rig.Check()
		})
	}
}

// trickle writes one byte at a time until the client hangs up.
func trickle(w http.ResponseWriter, begins string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, err = io.WriteString(conn, begins)
	drop := time.NewTicker(20 * time.Millisecond)
	defer drop.Stop()
	for err == nil {
		<-drop.C
		_, err = io.WriteString(conn, "x")
	}
}

// Postgres stores neither NUL nor an incomplete character.
func TestAFailureIsRecordedWhateverItsWords(t *testing.T) {
	t.Parallel()
	const intents = 20
	for name, words := range map[string]string{
		"NUL":            `{"title": "no \u0000 way", "detail": "\u0000"}`,
		"lone surrogate": `{"title": "no \ud800 way", "detail": "\udfff"}`,
		"no UTF-8":       "{\"title\": \"no \xff way\", \"detail\": \"\xc3\"}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := harness.New(t, nil)
			garbler := newGarbler(t, rig, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, words)
			})
			rig.Reconfigure(steady)
			rig.Start()
			rig.Enqueue(harness.Keyed, intents)
			rig.AwaitRest()
			fault.Injected(t, 47, garbler.met())
			if recorded := rig.Count(`SELECT count(*) FROM outbox.attempt WHERE http_status = 500 AND problem ->> 'title' LIKE 'no _ way'`); recorded != intents {
				t.Errorf("%d failures are recorded with their words, want %d", recorded, intents)
			}
			rig.Check()
		})
	}
}

// On each wire net/http itself repeats a request that fails on a reused connection.
func TestARequestWhoseReusedConnectionDiesIsSentOnceOnEveryWire(t *testing.T) {
	t.Parallel()
	for _, wire := range dispatchtest.Wires() {
		t.Run(string(wire), func(t *testing.T) {
			t.Parallel()
			reusedConnectionDies(wire).holds(t)
		})
	}
}

// reusedConnectionDies answers one request, and closes the connection after the effect of the next request on it.
func reusedConnectionDies(wire dispatchtest.Wire) scenario {
	const intents = 6
	var firsts atomic.Int64
	plan := func(_ string, request int) dispatchtest.Fault {
		if request == 1 && firsts.Add(1)%2 == 0 {
			return dispatchtest.DropAfter
		}
		return dispatchtest.None
	}
	return scenario{number: 85, plan: plan, play: func(t *testing.T, rig *harness.Rig) int {
		served := wire.Serve(t, rig.Provider)
		t.Cleanup(rig.Provider.Release)
		rig.Reconfigure(func(config string) string {
			config = strings.ReplaceAll(config, rig.BaseURL, served)
			if wire != dispatchtest.Plain {
				trusted := fmt.Sprintf("    adapter: http\n    tls: {ca: %q}\n", dispatchtest.Authority(t))
				config = strings.ReplaceAll(config, "    adapter: http\n", trusted)
			}
			return strings.Replace(config, "path: /v1/once", "path: /v1/once, body: none", 1) // a request with a body is not repeated
		})
		rig.Start()
		for range intents {
			rig.Enqueue(harness.Once, 1)
			rig.AwaitRest()
		}
		return int(firsts.Load()) / 2
	}}
}

// outage fails every request until over is true.
func outage(as dispatchtest.Fault) (plan dispatchtest.Plan, over *atomic.Bool) {
	over = new(atomic.Bool)
	return func(string, int) dispatchtest.Fault {
		if over.Load() {
			return dispatchtest.None
		}
		return as
	}, over
}

// The outage lasts for more requests than the rows have tries.
func TestAnOutageUsesUpNoTries(t *testing.T) {
	t.Parallel()
	const (
		intents = 4
		tries   = 3
	)
	plan, over := outage(dispatchtest.Unavailable)
	rig := harness.New(t, plan)
	rig.Reconfigure(func(config string) string {
		config = strings.ReplaceAll(patient(config), "max_attempts: 50", "max_attempts: 3")
		return strings.ReplaceAll(config, "    adapter: http\n", "    adapter: http\n    circuit_breaker: {cool_down: 1ms}\n")
	})
	rig.Start()
	rig.Enqueue(harness.Keyed, intents)
	drainertest.Eventually(t, "the provider is tried often", func() bool { return rig.Provider.Ledger.Audit().TotalRequests() > intents*tries+5 })
	left := rig.Count(`SELECT count(*) FROM outbox.status WHERE status IN ('pending', 'in_progress')`)
	over.Store(true)
	rig.AwaitRest()

	fault.Injected(t, 51, rig.Provider.Ledger.Audit().Faults[dispatchtest.Unavailable])
	if left != intents {
		t.Errorf("%d of %d intents have a try left", left, intents)
	}
	rig.Check()
}

// The provider tells the daemons to repeat all requests after the same time. It gets no wave of requests then,
// because the retries are spread over the backoff.
func TestWhatFailsAtOnceIsTriedAgainAtManyTimes(t *testing.T) {
	t.Parallel()
	const (
		intents = 1000
		bins    = 20
	)
	rig := harness.New(t, dispatchtest.Always(dispatchtest.ThrottleFor))
	rig.Reconfigure(func(config string) string {
		config = strings.ReplaceAll(steady(config), "base: 20ms, cap: 200ms", "base: 10m, cap: 1h")
		return strings.ReplaceAll(config, "    adapter: http\n", "    adapter: http\n    circuit_breaker: {minimum_intents: 1000, consecutive_failures: 10000}\n")
	})
	rig.Start()
	rig.Start()
	rig.Enqueue(harness.Keyed, intents)
	rig.AwaitCount("all are refused", intents, `SELECT count(*) FROM outbox.attempt`)
	fault.Injected(t, 36, rig.Provider.Ledger.Audit().Faults[dispatchtest.ThrottleFor])

	fullest := rig.Count(`
		SELECT max(retries) FROM (
		  SELECT count(*) AS retries FROM outbox.attempt JOIN history.transition USING (intent_id, attempt) WHERE place = 'attempt' GROUP BY width_bucket(
		    extract(epoch FROM next_attempt_at - at)::float8, 1, 601, $1)) bin`, bins) // the time of the settlement
	if even := intents / bins; fullest > 2*even {
		t.Errorf("%d of %d retries are due in one of %d parts of the backoff, want about %d in each", fullest, intents, bins, even)
	}
	if early := rig.Count(`SELECT count(*) FROM outbox.attempt WHERE next_attempt_at < finished_at + make_interval(secs => retry_after_seconds)`); early > 0 {
		t.Errorf("%d retries are due before their Retry-After is over", early)
	}
}

func TestAnAdapterThatPanicsLeavesDoubtAndALivingDaemon(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{harness.Keyed, harness.Set, harness.Once, harness.Asked, harness.Order} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			panickedAfterSending(tool).holds(t)
		})
	}
}

// panickedAfterSending panics in place of the second reply. The same daemon continues.
func panickedAfterSending(tool string) scenario {
	return scenario{number: 15, play: func(_ *testing.T, rig *harness.Rig) int {
		rig.Enqueue(tool, 3)
		rig.Start(arm("after_reply=panic@2"))
		rig.AwaitRest()
		return rig.Count(`SELECT count(*) FROM outbox.attempt WHERE error = 'panic'`)
	}}
}

// garbler is a proxy of the rig's provider. The first reply under each key is lost, and the client gets another
// text in its place. The effect has happened.
type garbler struct {
	provider http.Handler
	garble   http.HandlerFunc

	mu   sync.Mutex
	keys map[string]bool // keys with a garbled reply
}

// newGarbler makes the rig's daemons use a new garbler, without circuit breakers.
func newGarbler(t *testing.T, rig *harness.Rig, garble http.HandlerFunc) *garbler {
	t.Helper()
	g := &garbler{provider: rig.Provider, garble: garble, keys: map[string]bool{}}
	url := dispatchtest.Serve(t, g)
	rig.Reconfigure(func(config string) string {
		config = strings.ReplaceAll(config, rig.BaseURL, url)
		return strings.ReplaceAll(config, "    adapter: http\n", "    adapter: http\n    circuit_breaker: {consecutive_failures: 10000}\n")
	})
	return g
}

func (g *garbler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.isFirst(r.Header.Get("Idempotency-Key")) {
		g.provider.ServeHTTP(w, r)
		return
	}
	g.provider.ServeHTTP(httptest.NewRecorder(), r)
	g.garble(w, r)
}

func (g *garbler) isFirst(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	met := g.keys[key]
	g.keys[key] = true
	return key != "" && !met
}

func (g *garbler) met() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.keys)
}

// patient is for tests in which no attempt may time out, so that a busy machine does not look like a provider that
// hangs.
func patient(config string) string {
	return strings.ReplaceAll(config, "timeout: 1s", "timeout: 30s")
}

// steady is for tests that check how every attempt ends. If a worker lost its lease on a busy machine, some
// attempts would be lost.
func steady(config string) string { return withPatientLease(patient(config)) }
