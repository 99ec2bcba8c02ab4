package nemesis_test

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/history"
)

// judge checks everything when no work remains.
func (a *arena) judge(gauge *gauge, lasted time.Duration) {
	a.t.Helper()
	a.assertPaged()
	accounts := history.Collect(a.t, a.Clients, a.Provider.Ledger, a.DB)
	drainertest.AssertInvariant(a.t, a.DB)
	violations := history.Check(accounts, harness.Tools)
	for _, violation := range violations[:min(len(violations), 20)] {
		a.t.Errorf("%s (1 of %d)", violation, len(violations))
	}
	gauge.assertBounded(a.t)
	a.watch.assertSilence(a.t)
	for _, replica := range a.fleet {
		replica.assertSound(a.t)
	}
	a.assertFaults(lasted)
	tallyOf(accounts).assertEventful(a.t, lasted)
}

// assertFaults fails a run in which a fault happened too rarely.
func (a *arena) assertFaults(lasted time.Duration) {
	a.t.Helper()
	for _, fault := range a.faults() {
		a.t.Logf("%4d × %s", a.chronicle.count(fault.name), fault.name)
	}
	if missing := a.missing(lasted); len(missing) > 0 {
		a.t.Errorf("too rare in %s: %s: the run shows too little", lasted, strings.Join(missing, ", "))
	}
}

// backlog counts the remaining work, by kind.
const backlog = `
	SELECT (SELECT count(*) FROM outbox.queue) queued, (SELECT count(*) FROM outbox.claim) claims,
	       (SELECT count(*) FROM outbox.saga WHERE state = 'begun') sagas`

type left struct{ Queued, Claims, Sagas int }

func (a *arena) left(ctx context.Context) (left, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rows, err := a.DB.Query(ctx, backlog)
	if err != nil {
		return left{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[left])
}

// patience bounds the time until no work remains.
const patience = 2 * time.Minute

// awaitRest returns once no work remains, within patience.
func (a *arena) awaitRest() {
	a.t.Helper()
	begun := time.Now()
	for {
		remains, err := a.left(context.Background())
		if err == nil && remains == (left{}) {
			a.t.Logf("at rest after %s", time.Since(begun).Round(100*time.Millisecond))
			return
		}
		if time.Since(begun) > patience {
			a.describeLeft()
			a.t.Fatalf("no rest after %s: %+v is left (%v)", patience, remains, err)
		}
		_ = decide(context.Background(), a.Rig)
		time.Sleep(200 * time.Millisecond)
	}
}

// describeLeft logs some of the intents that do not end.
func (a *arena) describeLeft() {
	rows, err := a.DB.Query(context.Background(), `
		SELECT concat_ws(' ', 'intent', s.intent_id, s.agent_run_id, s.step_id, s.tool_name, s.status, s.last_outcome, s.last_error, g.state,
		                 'next', s.next_attempt_at - now(), 'finished', s.finished_at - now())
		FROM outbox.status s LEFT JOIN outbox.saga g USING (agent_run_id)
		WHERE s.status IN ('pending', 'in_progress') OR g.state = 'begun' OR s.next_attempt_at IS NOT NULL ORDER BY s.intent_id LIMIT 20`)
	if err != nil {
		a.t.Log(err)
		return
	}
	described, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, line := range described {
		a.t.Log(line)
	}
	if err != nil {
		a.t.Log(err)
	}
}

var completed = regexp.MustCompile(`(?m)^drainer_settled_total\{.*status="completed".*\} (\d+)$`)

// completions returns how many intents each replica's daemon completed. It
// reports false if one does not answer.
func (a *arena) completions() (counts map[string]int, all bool) {
	counts = map[string]int{}
	for _, replica := range a.fleet {
		metrics, err := replica.metrics()
		if err != nil {
			return nil, false
		}
		for _, found := range completed.FindAllStringSubmatch(metrics, -1) {
			count, _ := strconv.Atoi(found[1])
			counts[replica.name] += count
		}
	}
	return counts, true
}

const fresh = 5 // intents that each replica must complete after the storm

// everyReplicaWorks enqueues new intents until each replica has completed some of them.
func (a *arena) everyReplicaWorks() {
	a.t.Helper()
	var before map[string]int
	drainertest.Eventually(a.t, "each replica reports what it has completed", func() (all bool) {
		before, all = a.completions()
		return all
	})
	drainertest.Eventually(a.t, "each replica completes something new", func() bool {
		for _, tool := range []string{harness.Keyed, harness.Set, harness.Order} {
			a.Enqueue(tool, 10)
		}
		now, all := a.completions()
		if !all {
			return false
		}
		for _, replica := range a.fleet {
			if now[replica.name]-before[replica.name] < fresh {
				return false
			}
		}
		return true
	})
}

func (l left) String() string {
	return fmt.Sprintf("%d queued, %d claims, %d sagas", l.Queued, l.Claims, l.Sagas)
}

// tally counts the events of a run.
type tally struct {
	Intents, Effects, Retries, Unknown, NoAnswer, Sagas, Compensated, Undone int
}

func tallyOf(accounts history.Accounts) tally {
	counts := tally{Intents: len(accounts.Intents), Effects: len(accounts.Effects), Sagas: len(accounts.Sagas)}
	for _, answer := range accounts.Answers {
		if answer == history.NoAnswer {
			counts.NoAnswer++
		}
	}
	for _, state := range accounts.Sagas {
		if state == "compensated" {
			counts.Compensated++
		}
	}
	for _, intent := range accounts.Intents {
		if intent.Undoes != 0 && intent.Status == "completed" {
			counts.Undone++
		}
	}
	unknown := map[int64]bool{}
	for _, transition := range accounts.Transitions {
		switch {
		case transition.Place != "attempt" || strings.HasPrefix(transition.Worker, "operator:"):
		case transition.Status == "unknown":
			unknown[transition.IntentID] = true
		case transition.Status == "pending":
			counts.Retries++
		}
	}
	counts.Unknown = len(unknown)
	return counts
}

// assertEventful fails a run in which too little happened.
func (c tally) assertEventful(t testing.TB, lasted time.Duration) {
	t.Helper()
	t.Logf("%+v", c)
	seconds := int(lasted / time.Second)
	for what, count := range map[string]struct{ is, least int }{
		"effects":           {c.Effects, 2 * seconds},
		"retries":           {c.Retries, seconds},
		"unknown intents":   {c.Unknown, seconds / 20},
		"compensated sagas": {c.Compensated, seconds / 10},
		"undone steps":      {c.Undone, seconds / 20},
	} {
		if count.is < count.least {
			t.Errorf("%d %s in %s, want at least %d: the run shows too little", count.is, what, lasted, count.least)
		}
	}
}

// These secrets must not be in any output.
const (
	canary        = "canary-9f41c7"
	providerToken = canary + "-token"
	pagerSecret   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

// credentials are the environment variables of the configuration.
var credentials = []string{"PROVIDER_TOKEN=" + providerToken, "PAGER_SECRET=" + pagerSecret}

// watch looks for secrets in all output of the daemons.
type watch struct {
	secrets map[string]string // by their description

	mu    sync.Mutex
	leaks map[string]string // the leaked secret, by place
}

func newWatch(t testing.TB, databaseURL string) *watch {
	t.Helper()
	parsed, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := parsed.User.Password()
	return &watch{
		secrets: map[string]string{
			"a payload or a credential": canary,
			"the pager's secret":        strings.TrimPrefix(pagerSecret, "whsec_"),
			"the database's password":   password,
		},
		leaks: map[string]string{},
	}
}

// read looks for secrets in a text from that place.
func (w *watch) read(place, text string) {
	for name, secret := range w.secrets {
		if strings.Contains(text, secret) {
			w.mu.Lock()
			w.leaks[place] = name
			w.mu.Unlock()
		}
	}
}

func (w *watch) assertSilence(t testing.TB) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for place, secret := range w.leaks {
		t.Errorf("%s shows %s", place, secret)
	}
}

const every = 10 * time.Second

// report logs the progress every ten seconds.
func (a *arena) report(ctx context.Context, gauge *gauge) {
	effects := 0
	for ctx.Err() == nil {
		linger(ctx, every)
		before := effects
		effects = a.Provider.Ledger.Audit().TotalEffects()
		left, err := a.left(ctx)
		if ctx.Err() != nil {
			return
		}
		standing := "no answer from the database"
		if err == nil {
			standing = left.String()
		}
		a.t.Logf("%5s: %d effects (%.1f a second), %d faults, %s, at most %d MiB",
			a.chronicle.elapsed(), effects, float64(effects-before)/every.Seconds(), a.chronicle.total(), standing, gauge.mostMiB())
	}
}
