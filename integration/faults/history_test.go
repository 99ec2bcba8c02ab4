package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/internal/pgpool"
	"github.com/agentoutbox/drainer/internal/throwaway"
)

// guarded is a worker that reaches different servers, one after another, through the same address.
type guarded struct {
	*postgres.Store
	t      *testing.T
	line   *pgproxy.Proxy
	url    string // leads through line
	at     *throwaway.Server
	worker string
}

// The tool of the provider once is non-idempotent, and never acts again by itself. The tool of again has keys.
const once, again = "once", "again"

func newGuarded(t *testing.T, at *throwaway.Server, guard postgres.Guard) *guarded {
	t.Helper()
	line := pgproxy.New(t, at.URL)
	g := &guarded{t: t, line: line, url: line.Behind(t, at.URL), at: at}
	g.Store = openGuarded(t, g.url, guard)
	g.join()
	return g
}

func openGuarded(t *testing.T, url string, guard postgres.Guard) *postgres.Store {
	t.Helper()
	store, err := postgres.Open(t.Context(), pgpool.At(url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	guard.Log = slog.New(slog.DiscardHandler)
	store.Guard(guard)
	return store
}

func (g *guarded) join() {
	g.t.Helper()
	g.worker = uuid.NewString()
	drainertest.Eventually(g.t, "the worker joins", func() bool {
		return g.Join(g.t.Context(), g.worker, []string{once, again}, nil) == nil
	})
}

// restarted returns a worker in a new process, which remembers nothing.
func (g *guarded) restarted(guard postgres.Guard) *guarded {
	g.t.Helper()
	next := *g
	next.Store = openGuarded(g.t, g.url, guard)
	next.join()
	return &next
}

// moveTo makes the same address lead to another server. Open connections end.
func (g *guarded) moveTo(server *throwaway.Server) {
	g.t.Helper()
	g.line.TakeDown()
	g.line.LeadTo(g.t, server.URL)
	g.line.BringUp()
	g.at = server
}

func (g *guarded) enqueue(run string) {
	g.t.Helper()
	for _, provider := range []string{once, again} {
		cluster.Exec(g.t, g.at, fmt.Sprintf(`SELECT outbox.enqueue('%s', 'step', '%s/act', 'scope', '{}')`, run, provider))
	}
}

func (g *guarded) claim() (rows map[string][]*drainer.Row, err error) {
	reply, err := g.Commit(g.t.Context(), g.worker, drainer.Batch{Claims: []drainer.Claim{
		{Provider: once, Server: once, Limit: 10, ActsOnce: true}, {Provider: again, Server: again, Limit: 10},
	}})
	if err != nil {
		return nil, err
	}
	return map[string][]*drainer.Row{once: reply.Claimed[0].Rows, again: reply.Claimed[1].Rows}, nil
}

func (g *guarded) mustClaim(what string, wantOnce, wantAgain int) map[string][]*drainer.Row {
	g.t.Helper()
	var rows map[string][]*drainer.Row
	drainertest.Eventually(g.t, "the server answers", func() (ok bool) {
		var err error
		rows, err = g.claim()
		return err == nil
	})
	if len(rows[once]) != wantOnce || len(rows[again]) != wantAgain {
		g.t.Errorf("%s: %d rows that act once and %d that have keys are claimed, want %d and %d", what, len(rows[once]), len(rows[again]), wantOnce, wantAgain)
	}
	return rows
}

// beat repeats the heartbeat until the database answers.
func (g *guarded) beat() (alive bool, err error) {
	g.t.Helper()
	drainertest.Eventually(g.t, "the database answers", func() bool {
		alive, err = g.Beat(g.t.Context(), g.worker)
		return err == nil || errors.Is(err, drainer.ErrLostCommits)
	})
	return alive, err
}

// stands checks the newest history: its number, whether it is accepted, and whether commits were lost.
func (g *guarded) stands(what string, want string) {
	g.t.Helper()
	if got := cluster.Ask[string](g.t, g.at, `SELECT format('%s, %s, lost %s', id, coalesce(accepted_by, 'not accepted'), lost::text) FROM outbox.history ORDER BY id DESC LIMIT 1`); got != want {
		g.t.Errorf("%s: the history is %q, want %q", what, got, want)
	}
	paged := cluster.Ask[int](g.t, g.at, `SELECT count(*)::int FROM outbox.incident WHERE kind = 'history_changed' AND resolved_at IS NULL`)
	isOpen := cluster.Ask[bool](g.t, g.at, `SELECT accepted_by IS NULL FROM outbox.history ORDER BY id DESC LIMIT 1`)
	if (paged == 1) != isOpen {
		g.t.Errorf("%s: %d incidents are open", what, paged)
	}
}

func (g *guarded) accept(lossless bool) {
	g.t.Helper()
	conn := cluster.Connect(g.t, g.at)
	console := operator.Open(conn)
	defer console.Close(context.WithoutCancel(g.t.Context()))
	histories, err := console.Histories(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	if accepted, err := console.AcceptHistory(g.t.Context(), histories[0].History, lossless, operator.Signature{Operator: "ann", Reason: "compared"}); err != nil || !accepted {
		g.t.Fatalf("accepted: %t, %v", accepted, err)
	}
}

func promote(t *testing.T, standby *throwaway.Server) {
	t.Helper()
	cluster.Exec(t, standby, `SELECT pg_promote()`)
}

var rewindable = throwaway.WithSettings(map[string]string{"wal_log_hints": "on", "full_page_writes": "on", "wal_keep_size": "64MB"})

// pair returns a primary and a standby that has caught up.
func pair(t *testing.T) (primary, standby *throwaway.Server) {
	t.Helper()
	primary = cluster.Start(t, rewindable)
	return primary, cluster.Standby(t, primary)
}

// promotedWithoutItsClaim returns a worker at a new primary, which misses the worker's last committed claim.
func promotedWithoutItsClaim(t *testing.T) *guarded {
	t.Helper()
	return promotedWithout(t, func(g *guarded) { g.enqueue("seen") }, func(g *guarded) { g.mustClaim("before", 1, 1) })
}

// promotedWithout returns a worker at a new primary, which has the commits of seen and misses those of lost.
func promotedWithout(t *testing.T, seen, lost func(g *guarded)) *guarded {
	t.Helper()
	primary, standby := pair(t)
	g := newGuarded(t, primary, postgres.Guard{})
	seen(g)
	cluster.AwaitCaughtUp(t, primary, standby)
	cluster.Kill(t, standby)
	lost(g)
	cluster.Kill(t, primary)
	cluster.Restart(t, standby)
	promote(t, standby)
	g.moveTo(standby)
	return g
}

// The standby misses the commits after it was stopped. The worker knows this, and starts over.
func TestAPromotedStandbyThatMissesCommitsSendsNothingTwice(t *testing.T) {
	t.Parallel()
	g := promotedWithoutItsClaim(t)

	g.mustClaim("before the first heartbeat", 0, 0)
	if _, err := g.beat(); !errors.Is(err, drainer.ErrLostCommits) {
		t.Errorf("the worker is told %v", err)
	}
	g.stands("after it", "2, not accepted, lost true")
	g.join()
	rows := g.mustClaim("once it started over", 0, 1)
	for _, row := range rows[again] {
		if !row.MaybeApplied || row.Lookup || row.FirstAttemptAt == nil {
			t.Errorf("what was due is in no doubt, or is looked up before its last send can have arrived: %+v", row)
		}
	}
	g.enqueue("new")
	for _, row := range g.mustClaim("what came since", 0, 1)[again] {
		if row.MaybeApplied {
			t.Error("what came since is in doubt")
		}
	}
	if _, err := g.beat(); err != nil {
		t.Fatal(err)
	}
	g.stands("with no word of an operator", "2, not accepted, lost true")
	g.accept(false)
	for _, row := range g.mustClaim("accepted", 2, 0)[once] {
		if !row.MaybeApplied || row.Lookup {
			t.Error("an operator accepted the loss, and what may have been sent is in no doubt, or is looked up at once")
		}
	}
	g.enqueue("later")
	for _, row := range g.mustClaim("after that", 1, 1)[once] {
		if row.MaybeApplied {
			t.Error("what came after the acceptance is in doubt")
		}
	}
}

// A row that the old server's worker sent may become due later on the new server. The claim is lost, and so is the
// change that made the row due.
func TestWhatIsDueAfterAFailoverIsInDoubtToo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		due              string // an SQL expression, for the old server
		makeDue, passage func(t *testing.T, at *throwaway.Server, clock *cluster.Clock)
	}{
		"an operator brought it forward":   {"now() + interval '1 hour'", bringForward, bringForward},
		"the new server's clock is behind": {"now()", func(*testing.T, *throwaway.Server, *cluster.Clock) {}, func(_ *testing.T, _ *throwaway.Server, clock *cluster.Clock) { clock.SetOff(0) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := cluster.NewClock(t)
			primary := cluster.Start(t)
			clock.SetOff(-30 * time.Minute)
			standby := cluster.Standby(t, primary, clock.Of())
			g := newGuarded(t, primary, postgres.Guard{})
			for _, provider := range []string{once, again} {
				cluster.Exec(t, primary, fmt.Sprintf(`SELECT outbox.enqueue('run', 'step', '%s/act', 'scope', '{}', not_before => %s)`, provider, test.due))
			}
			cluster.AwaitCaughtUp(t, primary, standby)
			cluster.Kill(t, standby)
			test.makeDue(t, primary, clock)
			g.mustClaim("before", 1, 1)
			cluster.Kill(t, primary)
			cluster.Restart(t, standby)
			promote(t, standby)
			g.moveTo(standby)
			if _, err := g.beat(); !errors.Is(err, drainer.ErrLostCommits) {
				t.Errorf("the worker is told %v", err)
			}
			g.join()
			g.mustClaim("before it is due again", 0, 0)
			g.accept(false)
			test.passage(t, standby, clock)
			for provider, rows := range g.mustClaim("due again", 1, 1) {
				for _, row := range rows {
					if !row.MaybeApplied || row.FirstAttemptAt == nil {
						t.Errorf("what %s had sent would be sent again without a doubt: %+v", provider, row)
					}
				}
			}
		})
	}
}

func bringForward(t *testing.T, at *throwaway.Server, _ *cluster.Clock) {
	t.Helper()
	console := operator.Open(cluster.Connect(t, at))
	defer console.Close(context.WithoutCancel(t.Context()))
	intents := []int64{1, 2}
	verdicts, err := console.Change(t.Context(), operator.BringForward{Scheduled: true}, operator.Signature{Operator: "ann", Reason: "urgent"}, intents)
	if err != nil || len(verdicts) != len(intents) || verdicts[0].Refused != "" || verdicts[1].Refused != "" {
		t.Fatalf("brought forward: %+v, %v", verdicts, err)
	}
}

// An operator was wrong: a worker that connects later misses its own commit.
func TestALossThatIsFoundAfterAnOperatorDeniedItIsPaged(t *testing.T) {
	t.Parallel()
	g := promotedWithoutItsClaim(t)
	fresh := g.restarted(postgres.Guard{})
	fresh.accept(true)
	fresh.stands("by what the operator knows", "2, operator:ann, lost false")
	if _, err := g.beat(); !errors.Is(err, drainer.ErrLostCommits) {
		t.Errorf("the worker is told %v", err)
	}
	g.stands("by what the worker knows", "2, not accepted, lost true")
	fresh.accept(false)
	fresh.stands("accepted as it is", "2, operator:ann, lost true")
	for _, rows := range fresh.mustClaim("accepted", 1, 1) {
		if !rows[0].MaybeApplied {
			t.Error("it may have been sent, and is in no doubt")
		}
	}
	if _, err := fresh.beat(); err != nil {
		t.Error(err)
	}
	fresh.stands("from then on", "2, operator:ann, lost true")
}

// The new server has every commit that the worker knows of. The worker resumes without an operator, and keeps its
// claims.
func TestAFailoverThatLostNothingResumesByItself(t *testing.T) {
	t.Parallel()
	for name, configured := range map[string]bool{"by what the worker remembers": false, "by the configuration": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, standby := pair(t)
			cluster.Exec(t, primary, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
			cluster.Exec(t, primary, `SELECT pg_reload_conf()`)
			drainertest.Eventually(t, "the standby is synchronous", func() bool {
				return cluster.Ask[int](t, primary, `SELECT count(*)::int FROM pg_stat_replication WHERE sync_state = 'sync'`) == 1
			})
			g := newGuarded(t, primary, postgres.Guard{Lossless: configured})
			g.enqueue("claimed")
			g.mustClaim("before", 1, 1)
			g.enqueue("waiting")
			cluster.Kill(t, primary)
			promote(t, standby)
			g.moveTo(standby)
			if alive, err := g.beat(); err != nil || !alive {
				t.Fatalf("the worker lives: %t, %v", alive, err)
			}
			if configured {
				g.stands("at once", "2, failover: lossless, lost false")
			} else {
				g.stands("until every worker has looked", "2, not accepted, lost false")
				g.mustClaim("meanwhile", 0, 1)
				g.enqueue("more")
				if _, err := g.beat(); err != nil {
					t.Fatal(err)
				}
				g.stands("then", "2, drainer, lost false")
			}
			for _, rows := range g.mustClaim("resumed", map[bool]int{true: 1, false: 2}[configured], 1) {
				for _, row := range rows {
					if row.MaybeApplied {
						t.Error("nothing was lost, and a row is in doubt")
					}
				}
			}
		})
	}
}

// A worker that never answers may have sent a row whose claim is lost.
func TestAWorkerThatEndedWithTheOldServerKeepsTheHistoryFromBeingAccepted(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	g := newGuarded(t, primary, postgres.Guard{})
	other := openGuarded(t, g.url, postgres.Guard{})
	if err := other.Join(t.Context(), uuid.NewString(), []string{once}, nil); err != nil {
		t.Fatal(err)
	}
	cluster.AwaitCaughtUp(t, primary, standby)
	cluster.Kill(t, primary)
	promote(t, standby)
	g.moveTo(standby)
	for range 3 {
		if _, err := g.beat(); err != nil {
			t.Fatal(err)
		}
	}
	g.stands("one of two has answered", "2, not accepted, lost false")
	g.accept(true)
	g.stands("an operator knows more", "2, operator:ann, lost false")
}

func TestTheHistoryIsAcceptedOnceBothOfTwoWorkersFoundTheirClaims(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	g := newGuarded(t, primary, postgres.Guard{})
	other := g.restarted(postgres.Guard{})
	for _, worker := range []*guarded{g, other} {
		worker.enqueue("of " + worker.worker)
		worker.mustClaim("before", 1, 1)
	}
	g.enqueue("waiting")
	cluster.AwaitCaughtUp(t, primary, standby)
	cluster.Kill(t, primary)
	promote(t, standby)
	g.moveTo(standby)
	other.at = standby
	beats := func(worker *guarded) {
		t.Helper()
		if alive, err := worker.beat(); err != nil || !alive {
			t.Fatalf("the worker lives: %t, %v", alive, err)
		}
	}
	for range 3 {
		beats(g)
	}
	g.stands("one of two has found its claims", "2, not accepted, lost false")
	g.mustClaim("meanwhile", 0, 1)
	for range 2 { // the first heartbeat answers, and the second finds that all have answered
		beats(other)
	}
	g.stands("both have", "2, drainer, lost false")
	for _, row := range g.mustClaim("resumed", 1, 0)[once] {
		if row.MaybeApplied {
			t.Error("nothing was lost, and a row is in doubt")
		}
	}
}

// A row whose settlement was lost must not be given back as unsent.
func TestASettlementThatWasLostIsNotGivenBackAsUnsent(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	g := newGuarded(t, primary, postgres.Guard{})
	g.enqueue("run")
	rows := g.mustClaim("before", 1, 1)
	if _, err := g.beat(); err != nil {
		t.Fatal(err)
	}
	cluster.AwaitCaughtUp(t, primary, standby)
	cluster.Kill(t, standby)
	sent := rows[once][0]
	settled := drainer.Settlement{Row: sent, StartedAt: time.Now(), FinishedAt: time.Now()}
	settled.Result.Outcome, settled.Decision.Status = "completed", "completed"
	if _, err := g.Commit(t.Context(), g.worker, drainer.Batch{Settle: []drainer.Settlement{settled}, Finish: []int64{sent.ClaimID}}); err != nil {
		t.Fatal(err)
	}
	cluster.Kill(t, primary)
	cluster.Restart(t, standby)
	promote(t, standby)
	g.moveTo(standby)
	released := func(row *drainer.Row) (drainer.Settlement, bool) {
		t.Error("it would be sent again")
		return drainer.Settlement{}, false
	}
	for range 2 {
		drainertest.Eventually(t, "the server answers", func() bool {
			_, err := g.Reclaim(t.Context(), g.worker, once, once, nil, released)
			return err == nil
		})
		if _, err := g.beat(); !errors.Is(err, drainer.ErrLostCommits) {
			t.Errorf("the worker is told %v", err)
		}
	}
}

// A step was undone with the old server, and the new server does not know it. A pass enqueues the undo again, before
// or after the loss is accepted.
func TestAnUndoThatAPromotedStandbyForgotIsInDoubt(t *testing.T) {
	t.Parallel()
	for name, isAccepted := range map[string]bool{"rolled back at once": false, "rolled back once it is accepted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, standby := pair(t)
			g := newGuarded(t, primary, postgres.Guard{})
			cluster.Exec(t, primary, enqueueEach("old"))
			g.settles(g.mustClaim("before", 1, 1))
			cluster.AwaitCaughtUp(t, primary, standby)
			cluster.Kill(t, standby)
			g.rollsBack("old")
			g.settles(g.mustClaim("the undos", 1, 1))
			cluster.Kill(t, primary)
			cluster.Restart(t, standby)
			promote(t, standby)
			g.moveTo(standby)
			if _, err := g.beat(); !errors.Is(err, drainer.ErrLostCommits) {
				t.Errorf("the worker is told %v", err)
			}
			g.join()

			var rows []*drainer.Row
			if isAccepted {
				g.accept(false)
			}
			g.rollsBack("old")
			if !isAccepted {
				rows = g.mustClaim("the undo that has a key", 0, 1)[again]
				g.accept(false)
			}
			for _, claimed := range g.mustClaim("the undos, again", 1, 1-len(rows)) {
				rows = append(rows, claimed...)
			}
			for _, row := range rows {
				sinceStep := cluster.Ask[bool](t, standby, fmt.Sprintf(`SELECT created_at = '%s' FROM outbox.intent WHERE id = %d`, timeOf(row), *row.Undoes))
				if !row.MaybeApplied || row.Lookup || !sinceStep {
					t.Errorf("what undoes a step at %s may have been applied since that was enqueued, and is in no doubt: %+v", row.Tuple.ToolName, row)
				}
			}
			cluster.Exec(t, standby, enqueueEach("new"))
			g.settles(g.mustClaim("a run that came since", 1, 1))
			g.rollsBack("new")
			for _, claimed := range g.mustClaim("its undos", 1, 1) {
				if claimed[0].MaybeApplied {
					t.Error("the undo of a step that came since is in doubt")
				}
			}
		})
	}
}

func timeOf(row *drainer.Row) string {
	if row.FirstAttemptAt == nil {
		return "infinity"
	}
	return row.FirstAttemptAt.Format(time.RFC3339Nano)
}

// enqueueEach returns SQL that begins a run at each provider.
func enqueueEach(run string) string {
	return fmt.Sprintf(`SELECT outbox.enqueue('%s at ' || provider, 'step', provider || '/act', 'scope', '{}') FROM unnest(ARRAY['%s', '%s']) provider`, run, once, again)
}

// settles settles all rows as completed, and finishes their claims.
func (g *guarded) settles(claimed map[string][]*drainer.Row) {
	g.t.Helper()
	g.settlesAs(dispatch.Completed, dispatch.StatusCompleted, claimed)
}

func (g *guarded) settlesAs(outcome dispatch.Outcome, status dispatch.Status, claimed map[string][]*drainer.Row) {
	g.t.Helper()
	var batch drainer.Batch
	for _, rows := range claimed {
		for _, row := range rows {
			settled := drainer.Settlement{Row: row, StartedAt: time.Now(), FinishedAt: time.Now(), Acts: true}
			settled.Result.Outcome, settled.Decision.Status = outcome, status
			batch.Settle, batch.Finish = append(batch.Settle, settled), append(batch.Finish, row.ClaimID)
		}
	}
	if reply, err := g.Commit(g.t.Context(), g.worker, batch); err != nil || len(reply.Refused) > 0 {
		g.t.Fatalf("settles: %v, %v", reply.Refused, err)
	}
}

// rollsBack compensates the run as an operator, and runs the pass that enqueues the undo.
func (g *guarded) rollsBack(run string) {
	g.t.Helper()
	pool := drainertest.Connect(g.t, g.at.URL)
	defer pool.Close()
	reversible := func(class dispatch.Class, provider string) map[string]dispatch.Policy {
		tool := dispatch.Policy{Class: class, KeyTTL: 24 * time.Hour, MaxAttempts: 2, Timeout: time.Minute}
		undo := tool
		tool.Reversal.Tool, undo.Reversal.None = provider+"/undo", true
		return map[string]dispatch.Policy{"act": tool, "undo": undo}
	}
	saga, err := compensations.New(pool, compensations.Policies{
		once: reversible(dispatch.NonIdempotent, once), again: reversible(dispatch.KeyIdempotent, again),
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		g.t.Fatal(err)
	}
	console := operator.Open(cluster.Connect(g.t, g.at))
	defer console.Close(context.WithoutCancel(g.t.Context()))
	for _, provider := range []string{once, again} {
		of := run + " at " + provider
		if err := console.Compensate(g.t.Context(), of, ann); err != nil {
			g.t.Fatal(err)
		}
		if err := saga.Advance(g.t.Context(), of); err != nil {
			g.t.Fatal(err)
		}
	}
}

func TestARestartOfTheSamePrimaryIsNoChange(t *testing.T) {
	t.Parallel()
	primary := cluster.Start(t)
	g := newGuarded(t, primary, postgres.Guard{Witness: filepath.Join(t.TempDir(), "witness")})
	for range 3 {
		g.enqueue(uuid.NewString())
		g.mustClaim("before the crash", 1, 1)
		cluster.Restart(t, primary)
		if alive, err := g.beat(); err != nil || !alive {
			t.Fatalf("the worker lives: %t, %v", alive, err)
		}
		g.enqueue(uuid.NewString())
		g.mustClaim("after it", 1, 1)
		g.stands("after it", "1, drainer, lost false")
	}
	g.restarted(postgres.Guard{}).stands("for a process that remembers nothing", "1, drainer, lost false")
}

// A copy has another history than its source. Three workers meet each copy: one that ran before, a fresh one, and a
// fresh one with a witness.
func TestEveryKindOfCopyIsNoticed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		copied func(t *testing.T, g *guarded) func() *throwaway.Server // makes the copy, and returns a function that brings it up
		misses []string
	}{
		"a standby, promoted": {copied: func(t *testing.T, g *guarded) func() *throwaway.Server {
			standby := cluster.Standby(t, g.at)
			cluster.AwaitCaughtUp(t, g.at, standby)
			cluster.Kill(t, standby)
			return func() *throwaway.Server {
				cluster.Kill(t, g.at)
				cluster.Restart(t, standby)
				promote(t, standby)
				return standby
			}
		}},
		"another standby of an earlier primary, on the same timeline": {
			copied: func(t *testing.T, g *guarded) func() *throwaway.Server {
				first, second := cluster.Standby(t, g.at), cluster.Standby(t, g.at)
				old := g.at
				for _, standby := range []*throwaway.Server{first, second} {
					cluster.AwaitCaughtUp(t, old, standby)
				}
				cluster.Kill(t, second)
				promote(t, first)
				g.moveTo(first)
				if _, err := g.beat(); err != nil {
					t.Fatal(err)
				}
				g.accept(true)
				return func() *throwaway.Server {
					cluster.Kill(t, old)
					cluster.Restart(t, second)
					promote(t, second)
					return second
				}
			},
			misses: []string{}, // the second standby has recorded the first timeline
		},
		"a primary that was rewound to its standby, and promoted": {copied: func(t *testing.T, g *guarded) func() *throwaway.Server {
			old, standby := g.at, cluster.Standby(t, g.at, rewindable)
			cluster.AwaitCaughtUp(t, old, standby)
			promote(t, standby)
			return func() *throwaway.Server {
				if err := old.Rewind(t.Context(), standby); err != nil {
					t.Fatal(err)
				}
				cluster.Restart(t, old)
				promote(t, old)
				return old
			}
		}},
		"a base backup": {
			copied: func(t *testing.T, g *guarded) func() *throwaway.Server {
				copied := cluster.Copy(t, g.at)
				return func() *throwaway.Server { return copied }
			},
			misses: []string{"fresh"},
		},
		"a point-in-time recovery": {copied: func(t *testing.T, g *guarded) func() *throwaway.Server {
			restored := cluster.Standby(t, g.at, throwaway.WithSettings(map[string]string{"recovery_target_name": "wanted", "recovery_target_action": "promote"}))
			cluster.Exec(t, g.at, `SELECT pg_create_restore_point('wanted')`)
			return func() *throwaway.Server {
				drainertest.Eventually(t, "the recovery ends at its target", func() bool { return !cluster.Ask[bool](t, restored, `SELECT pg_is_in_recovery()`) })
				return restored
			}
		}},
		"a logical dump": {copied: func(t *testing.T, g *guarded) func() *throwaway.Server {
			restored := cluster.Dumped(t, g.at)
			return func() *throwaway.Server { return restored }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			witness := filepath.Join(t.TempDir(), "witness")
			g := newGuarded(t, cluster.Start(t, rewindable), postgres.Guard{Witness: witness})
			if _, err := g.beat(); err != nil {
				t.Fatal(err)
			}
			g.enqueue("run")
			meet := test.copied(t, g)
			g.mustClaim("on the server that is copied", 1, 1)
			for range 2 {
				if _, err := g.beat(); err != nil {
					t.Fatal(err)
				}
			}
			remembered, err := os.ReadFile(witness)
			if err != nil {
				t.Fatal(err)
			}
			copied := meet()
			for _, who := range []string{"running", "witness", "fresh"} {
				t.Run(who, func(t *testing.T) {
					next := *g
					next.t = t
					switch who {
					case "running":
						next.moveTo(copied)
						next.mustClaim("before the first heartbeat", 0, 0)
						if _, err := next.beat(); !errors.Is(err, drainer.ErrLostCommits) {
							t.Errorf("the worker is told %v", err)
						}
						next.join()
					case "fresh":
						cluster.Exec(t, copied, forgetful)
						next.restarted(postgres.Guard{})
					case "witness":
						cluster.Exec(t, copied, forgetful)
						if err := os.WriteFile(witness, remembered, 0o600); err != nil {
							t.Fatal(err)
						}
						next.Close() // only one process at a time can have the witness
						next.Store = openGuarded(t, g.url, postgres.Guard{Witness: witness})
						next.join()
					}
					isOpen := cluster.Ask[bool](t, copied, `SELECT accepted_by IS NULL FROM outbox.history ORDER BY id DESC LIMIT 1`)
					if want := !slices.Contains(test.misses, who); isOpen != want {
						t.Errorf("the change is noticed: %t, want %t", isOpen, want)
					}
				})
			}
		})
	}
}

// forgetful removes the marks that an earlier worker of the test left in the copy.
const forgetful = `UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'test' WHERE kind = 'history_changed';
	DELETE FROM outbox.history WHERE change IS NOT NULL AND accepted_by IS NULL`

// If the wait for the standby is cancelled, the commit is only on this server.
func TestACommitThatIsNotOnTheSynchronousStandbyIsNotCommitted(t *testing.T) {
	t.Parallel()
	primary := cluster.Start(t)
	cluster.Exec(t, primary, `ALTER ROLE ALL SET client_min_messages = error`) // a cancelled wait is reported only by a warning
	g := newGuarded(t, primary, postgres.Guard{})
	g.enqueue("run")
	cluster.Exec(t, primary, `ALTER SYSTEM SET synchronous_standby_names = 'absent'`)
	cluster.Exec(t, primary, `SELECT pg_reload_conf()`)
	claimed := make(chan error, 1)
	go func() {
		_, err := g.claim()
		claimed <- err
	}()
	drainertest.Eventually(t, "the claim waits for its standby, and its wait is cancelled", func() bool {
		return cluster.Ask[bool](t, primary, `SELECT coalesce(bool_or(pg_cancel_backend(pid)), false) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
	})
	if err := <-claimed; err == nil {
		t.Error("the rows of the claim would be sent")
	}
}

// The server hides its timeline from the daemon's login. A daemon that runs still notices that its own heartbeat is
// lost.
func TestATimelineThatIsHiddenLeavesTheHeartbeats(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	cluster.Exec(t, primary, `REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC`)
	g := newGuarded(t, primary, postgres.Guard{})
	g.Store = openGuarded(t, drainertest.Login(t, g.url, "outbox_drainer"), postgres.Guard{})
	cluster.Exec(t, primary, `TRUNCATE outbox.history`)
	g.join()
	if hidden := cluster.Ask[bool](t, primary, `SELECT timeline IS NULL AND lsn IS NOT NULL FROM outbox.history`); !hidden {
		t.Error("the timeline is not hidden, or more than that is")
	}
	cluster.AwaitCaughtUp(t, primary, standby)
	cluster.Kill(t, standby)
	if _, err := g.beat(); err != nil {
		t.Fatal(err)
	}
	cluster.Kill(t, primary)
	cluster.Restart(t, standby)
	promote(t, standby)
	g.moveTo(standby)
	if _, err := g.beat(); err != nil && !errors.Is(err, drainer.ErrLostCommits) {
		t.Fatal(err)
	}
	g.stands("by the heartbeat that is gone", "2, not accepted, lost true")
}

// The server hides its system identifier from the daemon's login.
func TestAnIdentifierThatIsHiddenStopsNothing(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	cluster.Exec(t, primary, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`)
	g := newGuarded(t, primary, postgres.Guard{})
	g.Store = openGuarded(t, drainertest.Login(t, g.url, "outbox_drainer"), postgres.Guard{})
	cluster.Exec(t, primary, `TRUNCATE outbox.history`)
	g.join()
	g.enqueue("run")
	g.mustClaim("with what is granted", 1, 1)
	g.stands("with what is granted", "1, drainer, lost false")
	if hidden := cluster.Ask[bool](t, primary, `SELECT system_identifier IS NULL AND timeline IS NOT NULL AND lsn IS NOT NULL FROM outbox.history`); !hidden {
		t.Error("the identifier is not hidden, or more than that is")
	}
	cluster.AwaitCaughtUp(t, primary, standby)
	cluster.Kill(t, primary)
	promote(t, standby)
	g.moveTo(standby)
	if _, err := g.beat(); err != nil {
		t.Fatal(err)
	}
	g.stands("by the timeline", "2, not accepted, lost false")
}
