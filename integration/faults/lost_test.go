package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/integration/cluster"
)

var ann = operator.Signature{Operator: "ann", Reason: "wrong customer"}

// A rollback or an operator may act before the first heartbeat at the new server.
func TestNothingThatALostCommitMayHaveSentIsCancelledBeforeTheFirstHeartbeat(t *testing.T) {
	t.Parallel()
	steps := func(g *guarded) { cluster.Exec(g.t, g.at, enqueueEach("seen")) }
	undos := func(g *guarded) {
		steps(g)
		g.settles(g.mustClaim("the steps", 1, 1))
		g.rollsBack("seen")
	}
	for name, test := range map[string]struct {
		seen   func(g *guarded)
		cancel func(g *guarded, console *operator.Console)
	}{
		"by a rollback": {steps, func(g *guarded, _ *operator.Console) { g.rollsBack("seen") }},
		"with its run": {steps, func(g *guarded, console *operator.Console) {
			if _, err := console.CancelRun(g.t.Context(), "seen at "+once, false, ann); err != nil {
				g.t.Fatal(err)
			}
		}},
		"alone": {steps, func(g *guarded, console *operator.Console) {
			verdicts, err := console.Change(g.t.Context(), operator.Cancel{}, ann, []int64{1, 2})
			if err != nil || len(verdicts) != 2 || verdicts[0].Refused == "" || verdicts[1].Refused == "" {
				g.t.Errorf("cancelled: %+v, %v", verdicts, err)
			}
		}},
		"an undo, as its rollback is said to be over": {undos, func(g *guarded, console *operator.Console) {
			var refused *operator.SagaError
			if err := console.ResolveSaga(g.t.Context(), "seen at "+once, ann); !errors.As(err, &refused) {
				g.t.Errorf("the operator is told %v", err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := promotedWithout(t, test.seen, func(g *guarded) { g.settles(g.mustClaim("before", 1, 1)) })
			g.mustClaim("before the first heartbeat", 0, 0)
			console := operator.Open(cluster.Connect(t, g.at))
			defer console.Close(context.WithoutCancel(t.Context()))
			test.cancel(g, console)
			if cancelled := cluster.Ask[int](t, g.at, `SELECT count(*)::int FROM outbox.attempt WHERE status = 'cancelled'`); cancelled > 0 {
				t.Errorf("%d are cancelled, and the old server had sent them", cancelled)
			}
			if _, err := g.beat(); !errors.Is(err, drainer.ErrLostCommits) {
				t.Errorf("the worker is told %v", err)
			}
			g.join()
			g.accept(false)
			for _, claimed := range g.mustClaim("accepted", 1, 1) {
				if !claimed[0].MaybeApplied {
					t.Errorf("what may have been sent is in no doubt: %+v", claimed[0])
				}
			}
		})
	}
}

// retry retries intents as an operator who has the configuration of the tools. It returns the refused intents.
func (g *guarded) retry(intents ...int64) (refused []int64) {
	g.t.Helper()
	console := operator.Open(cluster.Connect(g.t, g.at))
	defer console.Close(context.WithoutCancel(g.t.Context()))
	verdicts, err := console.Change(g.t.Context(), operator.Retry{PolicyOf: func(provider, _ string) (dispatch.Policy, bool) {
		return dispatch.Policy{Class: map[string]dispatch.Class{once: dispatch.NonIdempotent, again: dispatch.KeyIdempotent}[provider], KeyTTL: 24 * time.Hour}, true
	}}, ann, intents)
	if err != nil || len(verdicts) != len(intents) {
		g.t.Fatalf("retried: %+v, %v", verdicts, err)
	}
	for _, verdict := range verdicts {
		if verdict.Refused != "" {
			refused = append(refused, verdict.IntentID)
		}
	}
	return refused
}

// A failed intent was retried with the old server, and had its effect. The new server knows neither the retry nor the
// effect.
func TestWhatFailedBeforeCommitsWereLostIsRetriedInDoubt(t *testing.T) {
	t.Parallel()
	for name, isAccepted := range map[string]bool{"before the first heartbeat": false, "once the loss is accepted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := promotedWithout(t, func(g *guarded) {
				cluster.Exec(g.t, g.at, enqueueEach("seen"))
				g.settlesAs(dispatch.Rejected, dispatch.StatusFailed, g.mustClaim("first", 1, 1))
			}, func(g *guarded) {
				if refused := g.retry(1, 2); len(refused) > 0 {
					g.t.Errorf("refused are %v, and nothing was lost yet", refused)
				}
				g.settles(g.mustClaim("the retries", 1, 1))
			})
			g.mustClaim("before the first heartbeat", 0, 0)
			retry := func() {
				if refused := g.retry(1, 2); !slices.Equal(refused, []int64{1}) {
					t.Errorf("refused are %v, want the one that would act twice", refused)
				}
			}
			if !isAccepted {
				retry()
			}
			if _, err := g.beat(); !errors.Is(err, drainer.ErrLostCommits) {
				t.Errorf("the worker is told %v", err)
			}
			g.join()
			g.accept(false)
			if isAccepted {
				retry()
			}
			for _, row := range g.mustClaim("retried", 0, 1)[again] {
				if !row.MaybeApplied || row.FirstAttemptAt == nil {
					t.Errorf("what the old server had sent again is in no doubt: %+v", row)
				}
			}
			cluster.Exec(t, g.at, enqueueEach("new"))
			g.settlesAs(dispatch.Rejected, dispatch.StatusFailed, g.mustClaim("what came since", 1, 1))
			if refused := g.retry(cluster.Ask[int64](t, g.at, `SELECT id FROM outbox.intent WHERE agent_run_id = 'new at once'`)); len(refused) > 0 {
				t.Error("what failed since needs more than a plain retry")
			}
			for _, row := range g.mustClaim("retried, too", 1, 0)[once] {
				if row.MaybeApplied {
					t.Error("what failed since is in doubt")
				}
			}
		})
	}
}

// The new server uses the number of the lost attempt again, before the worker of the lost attempt looks for it.
func TestAnotherWorkersAttemptIsNotTakenForTheOneThatIsLost(t *testing.T) {
	t.Parallel()
	g := promotedWithout(t, func(g *guarded) {
		cluster.Exec(g.t, g.at, fmt.Sprintf(`SELECT outbox.enqueue('run', 'step', '%s/act', 'scope', '{}')`, again))
	}, func(g *guarded) { g.mustClaim("before", 0, 1) })
	other := g.restarted(postgres.Guard{})
	other.settles(other.mustClaim("by another worker", 0, 1))
	if _, err := g.beat(); !errors.Is(err, drainer.ErrLostCommits) {
		t.Errorf("the worker is told %v", err)
	}
	g.stands("after it", "2, not accepted, lost true")
}
