package postgres_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/integration/fault"
)

// opening settles rows as throttled and opens the provider's breaker.
func opening(coolDown time.Duration, rows ...*drainer.Row) drainer.Turn {
	turn := settling(dispatch.Throttled, rows...)
	turn.Settle[0].Breaker = &drainer.BreakerChange{Provider: "sim", Open: true, For: coolDown}
	return turn
}

func probing(leaseFor time.Duration) drainer.Turn {
	return drainer.Turn{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 1, ProbeFor: leaseFor}}}
}

func (o *outbox) probe(worker string, leaseFor time.Duration) []*drainer.Row {
	o.t.Helper()
	return o.turn(worker, probing(leaseFor)).Claimed[0].Rows
}

// verdict settles a probe: completed closes the breaker, all else opens it again.
func (o *outbox) verdict(worker string, probe *drainer.Row, outcome dispatch.Outcome) {
	o.t.Helper()
	turn := settling(outcome, probe)
	turn.Settle[0].Breaker = &drainer.BreakerChange{Provider: "sim", Open: outcome != dispatch.Completed, For: time.Hour, Probe: true}
	o.turn(worker, turn)
}

// cooledDown is an outbox whose breaker may be tried, with due rows.
func cooledDown(t *testing.T, rows int) *outbox {
	t.Helper()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("first", 0, 1)
	o.turn(worker, opening(0, o.claim(worker, 1)...))
	o.enqueue("run", 0, rows)
	return o
}

func (o *outbox) state() string {
	o.t.Helper()
	return stored[string](o, `SELECT state FROM outbox.provider WHERE name = 'sim'`)
}

func TestAnOpenBreakerStopsAllWorkersAndCostsNoTries(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	opener, other := o.join(), o.join()
	o.enqueue("run", 0, 3)
	rows := o.claim(opener, 1)
	turn := opening(time.Hour, rows...)
	turn.Claims = claimOf(10).Claims
	if reply := o.turn(opener, turn); len(reply.Claimed[0].Rows) != 0 {
		t.Error("the turn that opened the breaker claimed rows itself")
	}
	if rows := append(o.claim(other, 10), o.probe(other, time.Hour)...); len(rows) != 0 {
		t.Errorf("another worker claimed intents %v", ids(rows))
	}
	if tries := stored[int](o, `SELECT sum(tries)::int FROM outbox.queue`); tries != 1 {
		t.Errorf("%d tries are used, want the opener's alone", tries)
	}
}

func TestOneWorkerOfTheFleetProbes(t *testing.T) {
	t.Parallel()
	o := cooledDown(t, 20)
	const fleet = 6
	var racing sync.WaitGroup
	probes := make(chan *drainer.Row, fleet)
	for range fleet {
		worker := o.join()
		racing.Go(func() {
			reply, err := o.Turn(t.Context(), worker, probing(time.Hour))
			if err != nil {
				t.Error(err)
				return
			}
			for _, row := range reply.Claimed[0].Rows {
				probes <- row
			}
		})
	}
	racing.Wait()
	close(probes)
	for row := range probes {
		if !row.Probe {
			t.Error("a claimed row is not marked as the probe")
		}
	}
	if claimed := stored[int](o, `SELECT coalesce(sum(cardinality(intent_ids)), 0)::int FROM outbox.claim`); claimed != 1 || o.state() != "half_open" {
		t.Errorf("%d rows are claimed and the breaker is %s, want one, half_open", claimed, o.state())
	}
}

func TestTheProbeDecides(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		outcome dispatch.Outcome
		state   string
		claimed int
	}{
		{dispatch.Completed, "closed", 5},
		{dispatch.Throttled, "open", 0},
	} {
		o := cooledDown(t, 5)
		prober := o.join()
		o.verdict(prober, o.probe(prober, time.Hour)[0], test.outcome)
		if claimed := len(o.claim(o.join(), 10)); o.state() != test.state || claimed != test.claimed {
			t.Errorf("%s: the breaker is %s and %d rows were claimed, want %s and %d", test.outcome, o.state(), claimed, test.state, test.claimed)
		}
	}
}

func TestTheTurnOfAProberThatDiedPassesOn(t *testing.T) {
	t.Parallel()
	o := cooledDown(t, 5)
	late, next := o.join(), o.join()
	first := o.probe(late, time.Microsecond)[0]
	second := o.probe(next, time.Hour)
	if len(second) != 1 {
		t.Fatal("nobody may probe, although the prober's time is over")
	}
	fault.Injected(t, 50, 1)
	o.verdict(late, first, dispatch.Completed)
	if o.state() != "half_open" {
		t.Errorf("the verdict of a prober whose time was over made the breaker %s", o.state())
	}
	o.verdict(next, second[0], dispatch.Completed)
	if o.state() != "closed" {
		t.Errorf("after the next prober's success the breaker is %s", o.state())
	}
}

func TestNoProbeIsWastedNorForced(t *testing.T) {
	t.Parallel()
	for name, prevent := range map[string]string{
		"nothing is due":   `UPDATE outbox.queue SET next_attempt_at = 'infinity'`,
		"paused":           `UPDATE outbox.provider SET paused = true`,
		"still cooling":    `UPDATE outbox.provider SET open_until = now() + interval '1 hour'`,
		"served elsewhere": `UPDATE outbox.queue SET via = 'backup', maybe_applied = true`,
	} {
		o := cooledDown(t, 2)
		o.exec(prevent)
		if rows := o.probe(o.join(), time.Hour); len(rows) != 0 || o.state() != "open" {
			t.Errorf("%s: %d rows were claimed and the breaker is %s", name, len(rows), o.state())
		}
	}
}

func TestEveryWorkerFindsItsPlaceInTheFleet(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	ranks := map[int]bool{}
	workers := []string{o.join(), o.join(), o.join()}
	if err := o.Join(t.Context(), uuid.NewString(), []string{"other"}); err != nil { // which takes no share of this provider
		t.Fatal(err)
	}
	o.exec(`UPDATE outbox.provider SET state = 'open', open_until = now() + interval '1 hour' WHERE name = 'sim'`)
	for _, worker := range workers {
		gates, err := o.Gates(t.Context(), worker)
		if err != nil {
			t.Fatal(err)
		}
		gate := gates[slices.IndexFunc(gates, func(g drainer.Gate) bool { return g.Provider == "sim" })]
		if gate.Workers != len(workers) || gate.Breaker != drainer.BreakerOpen || gate.OpenFor < 59*time.Minute {
			t.Errorf("%+v", gate)
		}
		ranks[gate.Rank] = true
	}
	if len(ranks) != len(workers) {
		t.Errorf("ranks %v are shared", ranks)
	}
}

func TestAProberThatIsBuriedIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	o := cooledDown(t, 5)
	dead := o.join()
	o.probe(dead, time.Hour)
	o.bury(dead)
	if rows := o.probe(o.join(), time.Hour); len(rows) != 1 {
		t.Error("nobody may probe until the dead prober's hour is over")
	}
}

func TestOnlyTheProbeIsHeardWhileItIsUnderWay(t *testing.T) {
	t.Parallel()
	o := cooledDown(t, 5)
	prober := o.join()
	probe := o.probe(prober, time.Hour)[0]
	late := drainer.Turn{Settle: []drainer.Settlement{{
		Row: &drainer.Row{ClaimID: -1}, Breaker: &drainer.BreakerChange{Provider: "sim", Open: true, For: time.Hour},
	}}}
	o.turn(prober, late)
	if o.state() != "half_open" {
		t.Errorf("an older overload of the prober's made the breaker %s", o.state())
	}
	o.verdict(prober, probe, dispatch.Completed)
	if o.state() != "closed" {
		t.Errorf("the probe got its answer, and the breaker is %s", o.state())
	}
}

func TestAProbeOfAHealthyProviderIsNone(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	if rows := o.probe(worker, time.Hour); len(rows) != 0 || o.state() != "closed" {
		t.Errorf("%d rows were claimed and the breaker is %s", len(rows), o.state())
	}
}

func TestALongerWaitIsHeardWhileTheBreakerIsOpen(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	first, second := o.claim(worker, 1), o.claim(worker, 1)
	o.turn(worker, opening(time.Minute, first...))
	o.turn(worker, opening(time.Hour, second...))
	o.turn(worker, opening(time.Second, second...))
	if left := stored[float64](o, `SELECT extract(epoch FROM open_until - now())::float8 FROM outbox.provider WHERE name = 'sim'`); left < 3500 {
		t.Errorf("the breaker stays open for %v seconds, want the hour that was asked for", left)
	}
}
