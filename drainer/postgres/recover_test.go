package postgres_test

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestTwoReapersShareTheDead(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	for round := range 20 {
		o.enqueue("run", round*6, round*6+6)
		for range 3 {
			dead := o.join()
			o.claim(dead, 2)
			o.declareDead(dead)
		}
		var one, other []drainer.Settlement
		both(func() { one = o.reap() }, func() { other = o.reap() })
		seen := map[int64]bool{}
		for _, settlement := range append(one, other...) {
			if seen[settlement.Row.IntentID] {
				t.Fatalf("intent %d was reaped twice", settlement.Row.IntentID)
			}
			seen[settlement.Row.IntentID] = true
		}
		if len(seen) != 6 {
			t.Fatalf("%d rows reaped, want 6", len(seen))
		}
		o.settle(o.successor(), dispatch.Completed, o.claim(o.successor(), 6)...)
	}
}

func TestAReaperPassesOverWhatAnotherHolds(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 2)
	dead := o.join()
	held, free := o.claim(dead, 1), o.claim(dead, 1)
	o.declareDead(dead)
	tx := drainertest.Begin(t, o.db)
	drainertest.Exec(t, tx, `SELECT FROM outbox.claim WHERE claim_id = $1 FOR UPDATE`, held[0].ClaimID)
	if lost := o.reap(); len(lost) != 1 || lost[0].Row.IntentID != free[0].IntentID {
		t.Errorf("%d rows reaped, want the one that nobody holds", len(lost))
	}
}

// A worker counts its lease from the call to join that succeeded. An earlier call may have been committed, and its reply
// was lost.
func TestJoiningAgainIsASignOfLife(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	seen := o.beats()
	if err := o.Join(t.Context(), worker, []string{"sim"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := o.DeclareDead(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if alive, err := o.Beat(t.Context(), worker); !alive || err != nil {
		t.Error("it was declared dead as if it had not joined again", err)
	}
}

func TestOnlyWorkersThatStoodStillAreDeclaredDead(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	silent, beating := o.join(), o.join()
	seen := o.beats()
	if alive, err := o.Beat(t.Context(), beating); !alive || err != nil {
		t.Fatal(alive, err)
	}
	joined := o.join()
	if err := o.DeclareDead(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	for worker, want := range map[string]bool{silent: false, beating: true, joined: true} {
		if alive, err := o.Beat(t.Context(), worker); alive != want || err != nil {
			t.Errorf("it lives: %v, want %v (%v)", alive, want, err)
		}
	}
}

// A worker that drains once waits for overdue workers only.
func TestAWorkerIsOverdueIfItHoldsRowsAndIsSilentByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	holder, idler, beating := o.join(), o.join(), o.join()
	o.enqueue("run", 0, 2)
	o.claim(holder, 1)
	o.claim(beating, 1)
	o.exec(`UPDATE outbox.worker SET beat_at = now() - interval '10 minutes' WHERE worker_id = ANY ($1)`, []string{holder, idler})
	for _, beat := range o.beats() {
		if beat.Overdue != (beat.Worker == holder) {
			t.Errorf("%+v", beat)
		}
	}
}

func (o *outbox) beats() []drainer.Heartbeat {
	o.t.Helper()
	beats, err := o.Beats(o.t.Context(), time.Minute)
	if err != nil {
		o.t.Fatal(err)
	}
	return beats
}

func TestALivingWorkersClaimIsNotReaped(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	o.claim(o.join(), 1)
	if lost := o.reap(); len(lost) != 0 {
		t.Errorf("reaped %d rows of a living worker", len(lost))
	}
}

func TestAReaperLeavesWhatItCannotJudge(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	dead, rows := o.halfReaped(as(dispatch.Lost))
	o.assertStatuses(map[string]int{"pending": 2, "in_progress": 2})
	if refused := o.settle(dead, dispatch.Rejected, rows...).Refused; !slices.Equal(refused, []int{0, 2}) {
		t.Errorf("the late outcomes were refused for %v, want the two that were taken away", refused)
	}
	o.assertStatuses(map[string]int{"pending": 2, "failed": 2})
}

func TestReapingLeavesOtherProvidersToOthers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	dead := o.join()
	o.enqueue("run", 0, 1)
	o.claim(dead, 1)
	o.declareDead(dead)
	if settled, err := o.Reap(t.Context(), []string{"other"}, as(dispatch.Lost)); err != nil || len(settled) != 0 {
		t.Errorf("%d rows settled, %v; want none", len(settled), err)
	}
}

func TestManyDeadClaimsAreReapedInOneGo(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	dead := o.join()
	o.enqueue("run", 0, 250)
	for range 250 {
		if _, err := o.Commit(t.Context(), dead, claimOf(1)); err != nil {
			t.Fatal(err)
		}
	}
	o.declareDead(dead)
	if lost := o.reap(); len(lost) != 250 {
		t.Errorf("%d rows reaped, want 250", len(lost))
	}
	o.assertStatuses(map[string]int{"pending": 250})
}

func TestReclaimGivesBackOnlyWhatIsForgotten(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 3)
	remembered, forgotten := o.claim(worker, 1), o.claim(worker, 1)
	other := o.join()
	others := o.claim(other, 1)
	given, err := o.Reclaim(t.Context(), worker, "sim", "sim", []int64{remembered[0].ClaimID}, as(dispatch.Released))
	if err != nil || len(given) != 1 || given[0].Row.IntentID != forgotten[0].IntentID {
		t.Fatalf("gave back %+v, %v; want the forgotten row", given, err)
	}
	o.assertStatuses(map[string]int{"pending": 1, "in_progress": 2})
	o.settle(worker, dispatch.Completed, remembered...)
	if refused := o.settle(other, dispatch.Completed, others...).Refused; len(refused) != 0 {
		t.Error("another worker's claim was touched")
	}
}

// The claims are in the other order than the gates. A batch of another lane locks its gates meanwhile.
func TestReclaimLocksTheGatesOfSeveralClaimsInOneOrder(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.tool (name) VALUES ('sim/act'), ('sim/a'), ('sim/b')`)
	worker := o.join()
	o.exec(`UPDATE outbox.tool SET state = 'half_open', prober = $1 WHERE name IN ('sim/a', 'sim/b')`, worker)
	o.enqueue("run", 0, 2)
	first := o.claim(worker, 1)[0]
	o.claim(worker, 1)
	other := drainertest.Begin(t, o.db)
	drainertest.Exec(t, other, `SELECT FROM outbox.tool WHERE name = 'sim/a' FOR UPDATE`)
	reclaimed := make(chan error, 1)
	go func() {
		_, err := o.Reclaim(t.Context(), worker, "sim", "sim", nil, func(row *drainer.Row) (drainer.Settlement, bool) {
			settlement, gate := ended(row, dispatch.Released), "sim/a"
			if row.IntentID == first.IntentID {
				gate = "sim/b"
			}
			settlement.Breakers = []drainer.BreakerChange{{Gate: gate, Open: true, Probe: true}}
			return settlement, true
		})
		reclaimed <- err
	}()
	drainertest.AwaitBlocked(t, o.db)
	drainertest.Exec(t, other, `SELECT FROM outbox.tool WHERE name = 'sim/b' FOR UPDATE NOWAIT`)
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-reclaimed; err != nil {
		t.Error(err)
	}
}

func TestAWorkerThatRemembersNothingGivesAllBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	o.claim(worker, 2)
	if given, err := o.Reclaim(t.Context(), worker, "sim", "sim", nil, as(dispatch.Released)); err != nil || len(given) != 2 {
		t.Errorf("gave back %d rows, %v; want both", len(given), err)
	}
	o.assertStatuses(map[string]int{"pending": 2})
}

func TestLeavingOrphansWhatIsLeftAtOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.claim(worker, 1)
	if err := o.Leave(t.Context(), worker); err != nil {
		t.Fatal(err)
	}
	if lost := o.reap(); len(lost) != 1 {
		t.Errorf("%d rows reaped, want 1", len(lost))
	}
}

func TestARetiredWorkerKeepsItsClaimsAndTakesNoShare(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	retired, stays := o.join(), o.join()
	rows := o.claim(retired, 1)
	if err := o.Retire(t.Context(), retired); err != nil {
		t.Fatal(err)
	}
	gates, err := o.Gates(t.Context(), stays)
	if err != nil || len(gates) != 1 || gates[0].Workers != 1 || gates[0].Rank != 0 {
		t.Errorf("%v: the one that stays shares with others: %+v", err, gates)
	}
	if lost := o.reap(); len(lost) != 0 {
		t.Errorf("%d of its rows were taken for lost", len(lost))
	}
	if alive, err := o.Beat(t.Context(), retired); err != nil || !alive {
		t.Errorf("it cannot beat any more: %v", err)
	}
	if reply := o.settle(retired, dispatch.Completed, rows...); len(reply.Refused) != 0 {
		t.Error("it cannot settle any more")
	}
	o.assertStatuses(map[string]int{"completed": 1})
}

// opening returns a batch that settles rows as throttled and opens the provider's breaker.
func opening(coolDown time.Duration, rows ...*drainer.Row) drainer.Batch {
	batch := settling(dispatch.Throttled, rows...)
	batch.Settle[0].Breakers = []drainer.BreakerChange{{Gate: "sim", Open: true, Reason: drainer.Overloaded, For: coolDown}}
	return batch
}

func probing(leaseFor time.Duration) drainer.Batch {
	return drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 1, ProbeFor: leaseFor}}}
}

func (o *outbox) probe(worker string, leaseFor time.Duration) []*drainer.Row {
	o.t.Helper()
	return o.batch(worker, probing(leaseFor)).Claimed[0].Rows
}

// verdict settles a probe: completed closes the breaker, and any other outcome opens it again.
func (o *outbox) verdict(worker string, probe *drainer.Row, outcome dispatch.Outcome) {
	o.t.Helper()
	batch := settling(outcome, probe)
	batch.Settle[0].Breakers = []drainer.BreakerChange{{Gate: "sim", Open: outcome != dispatch.Completed, For: time.Hour, Probe: true}}
	o.batch(worker, batch)
}

// cooledDown returns an outbox with due rows. Its breaker is open and may be probed.
func cooledDown(t *testing.T, rows int) *outbox {
	t.Helper()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("first", 0, 1)
	o.batch(worker, opening(0, o.claim(worker, 1)...))
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
	batch := opening(time.Hour, rows...)
	batch.Claims = claimOf(10).Claims
	if reply := o.batch(opener, batch); len(reply.Claimed[0].Rows) != 0 {
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
			reply, err := o.Commit(t.Context(), worker, probing(time.Hour))
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
		if row.Probe != "sim" {
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
	if err := o.Join(t.Context(), uuid.NewString(), []string{"other"}, nil); err != nil { // it takes no share of sim
		t.Fatal(err)
	}
	o.exec(`UPDATE outbox.provider SET state = 'open', open_until = now() + interval '1 hour' WHERE name = 'sim'`)
	for _, worker := range workers {
		gates, err := o.Gates(t.Context(), worker)
		if err != nil {
			t.Fatal(err)
		}
		gate := gates[slices.IndexFunc(gates, func(g drainer.Gate) bool { return g.Name == "sim" })]
		if gate.Workers != len(workers) || gate.Breaker != drainer.BreakerOpen || gate.OpenFor < 59*time.Minute {
			t.Errorf("%+v", gate)
		}
		ranks[gate.Rank] = true
	}
	if len(ranks) != len(workers) {
		t.Errorf("ranks %v are shared", ranks)
	}
}

func TestAProberThatWasDeclaredDeadIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	o := cooledDown(t, 5)
	dead := o.join()
	o.probe(dead, time.Hour)
	o.declareDead(dead)
	if rows := o.probe(o.join(), time.Hour); len(rows) != 1 {
		t.Error("nobody may probe until the dead prober's hour is over")
	}
}

func TestOnlyTheProbeIsHeardWhileItIsUnderWay(t *testing.T) {
	t.Parallel()
	o := cooledDown(t, 5)
	prober := o.join()
	probe := o.probe(prober, time.Hour)[0]
	late := drainer.Batch{Settle: []drainer.Settlement{{
		Row: &drainer.Row{ClaimID: -1}, Breakers: []drainer.BreakerChange{{Gate: "sim", Open: true, For: time.Hour}},
	}}}
	o.batch(prober, late)
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
	o.batch(worker, opening(time.Minute, first...))
	o.batch(worker, opening(time.Hour, second...))
	o.batch(worker, opening(time.Second, second...))
	if left := stored[float64](o, `SELECT extract(epoch FROM open_until - now())::float8 FROM outbox.provider WHERE name = 'sim'`); left < 3500 {
		t.Errorf("the breaker stays open for %v seconds, want the hour that was asked for", left)
	}
}

func TestToolsAreKnownByTheirDaemonsAndForgottenAfterThem(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	join := func(tools ...string) (worker string) {
		t.Helper()
		worker = uuid.NewString()
		if err := o.Join(t.Context(), worker, []string{"shop"}, tools); err != nil {
			t.Fatal(err)
		}
		return worker
	}
	known := func(want ...string) {
		t.Helper()
		if got := drainertest.Column[string](t, o.db, `SELECT name FROM outbox.tool WHERE provider = 'shop' ORDER BY name`); !slices.Equal(got, want) {
			t.Errorf("known are %v, want %v", got, want)
		}
	}
	ages := func() { o.exec(`UPDATE outbox.tool SET seen_at = now() - interval '2 hours'`) }
	older := join("shop/a", "shop/b")
	join("shop/a", "shop/c")
	known("shop/a", "shop/b", "shop/c")
	ages()
	join("shop/a", "shop/c")
	known("shop/a", "shop/b", "shop/c") // the older worker knows it
	if err := o.Leave(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	known("shop/a", "shop/b", "shop/c")
	join("shop/a")
	known("shop/a", "shop/c")
	o.exec(`INSERT INTO outbox.tool (name) VALUES ('shop/new')`) // a worker that joins at this moment writes it
	join("shop/a")
	known("shop/a", "shop/c", "shop/new")
}

// A short token in the configuration is hashed with the rest of the file, so an auditor could try all possible tokens.
// Each store stands for a replica, or for one that was restarted.
func TestAFingerprintIsTheSameInEveryReplicaAndCannotBeGuessed(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	short, other := sha256.Sum256([]byte("token: k3y")), sha256.Sum256([]byte("token: k4y"))
	workers := [3]string{}
	for i, digest := range [][]byte{short[:], short[:], other[:]} {
		store, err := postgres.Open(t.Context(), pgpool.At(drainertest.Login(t, url, "outbox_drainer")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		workers[i] = uuid.NewString()
		if err := store.Join(t.Context(), workers[i], []string{"sim", "bare"}, nil, digest, nil, other[:]); err != nil {
			t.Fatal(err)
		}
	}
	auditor, err := pgx.Connect(t.Context(), drainertest.Login(t, url, "outbox_auditor"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = auditor.Close(t.Context()) })
	var shown, wholes [3]string
	for i, worker := range workers {
		var seen []string
		var whole string
		if err := auditor.QueryRow(t.Context(), `SELECT fingerprints, configuration FROM outbox.worker WHERE worker_id = $1`, worker).Scan(&seen, &whole); err != nil {
			t.Fatal(err)
		}
		if shown[i] = seen[0]; len(seen) != 2 || len(seen[0]) != 12 || seen[1] != "" {
			t.Errorf("the fingerprints are %q", seen)
		}
		wholes[i] = whole
	}
	if wholes[0] != wholes[1] || wholes[0] != shown[2] {
		t.Errorf("of the same whole configuration: %q", wholes)
	}
	if shown[0] != shown[1] || shown[0] == shown[2] {
		t.Errorf("of two that are the same and another: %q", shown)
	}
	twice := sha256.Sum256(short[:])
	for _, guess := range [][]byte{short[:], twice[:]} {
		if strings.HasPrefix(hex.EncodeToString(guess), shown[0]) {
			t.Errorf("a guess of the configuration finds %s", shown[0])
		}
	}
	key := drainertest.Value[[]byte](t, drainertest.Connect(t, url), `SELECT key FROM outbox.fingerprint_key`)
	keyed := hmac.New(sha256.New, key)
	keyed.Write(short[:])
	if want := hex.EncodeToString(keyed.Sum(nil)); !strings.HasPrefix(want, shown[0]) {
		t.Errorf("%s is not by the key: %s", shown[0], want)
	}
}

func TestWorkersThatAreTheFirstOfADatabaseJoinAtOnce(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	var joins errgroup.Group
	start := make(chan struct{})
	for range 8 {
		store, err := postgres.Open(t.Context(), pgpool.At(url))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		joins.Go(func() error {
			<-start
			return store.Join(t.Context(), uuid.NewString(), []string{"sim"}, nil)
		})
	}
	close(start)
	if err := joins.Wait(); err != nil {
		t.Error(err)
	}
}

func TestAWitnessThatIsNoneIsNamed(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"not JSON": "canary", "empty": "", "another file": `{"name": "canary"}`, "no log position": `{"history": 1, "lsn": "canary"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			witness := filepath.Join(t.TempDir(), "witness")
			if err := os.WriteFile(witness, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			o.Guard(postgres.Guard{Witness: witness, Log: slog.New(slog.DiscardHandler)})
			err := o.Join(t.Context(), uuid.NewString(), nil, nil)
			if err == nil || !strings.Contains(err.Error(), witness) || strings.Contains(err.Error(), "canary") {
				t.Errorf("joining gives %v", err)
			}
			if kept, err := os.ReadFile(witness); err != nil || string(kept) != content {
				t.Errorf("the file became %q, %v", kept, err)
			}
		})
	}
}

// witnessing is the environment variable of a process with a witness. It names the witness and the database. The test
// starts itself again as that process.
const witnessing = "DRAINER_TEST_WITNESS"

func TestTwoProcessesShareNoWitness(t *testing.T) {
	t.Parallel()
	if witness, url, is := strings.Cut(os.Getenv(witnessing), "|"); is {
		store, err := postgres.Open(t.Context(), pgpool.At(url))
		if err != nil {
			t.Fatal(err)
		}
		store.Guard(postgres.Guard{Witness: witness, Log: slog.New(slog.DiscardHandler)})
		fmt.Println("joined:", store.Join(t.Context(), uuid.NewString(), []string{"sim"}, nil))
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is closed, or killed
		return
	}
	witness, url := filepath.Join(t.TempDir(), "witness"), drainertest.Database(t)
	join := func() (said string, end func()) {
		t.Helper()
		process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTwoProcessesShareNoWitness$")
		process.Env = append(os.Environ(), witnessing+"="+witness+"|"+url)
		_, err := process.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		output, err := process.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		end = func() {
			_ = process.Process.Kill()
			_ = process.Wait()
		}
		t.Cleanup(end)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "joined:") {
				return lines.Text(), end
			}
		}
		t.Fatal("the process ended")
		return "", nil
	}
	said, end := join()
	if said != "joined: <nil>" {
		t.Fatal(said)
	}
	for range 2 {
		if said, _ := join(); !strings.Contains(said, witness+" is in use by another process") || !strings.Contains(said, "give each daemon a file of its own") {
			t.Error(said)
		}
	}
	end()
	if said, _ := join(); said != "joined: <nil>" {
		t.Error("after a kill of the first process: ", said)
	}
}

// A witness that cannot be read may remember commits that are lost now, so no worker begins.
func TestAWitnessThatCannotBeReadLetsNoWorkerJoin(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	witness, worker := t.TempDir(), uuid.NewString() // no user can read a folder as a file
	o.Guard(postgres.Guard{Witness: witness, Log: slog.New(slog.DiscardHandler)})
	err := o.Join(t.Context(), worker, []string{"sim"}, nil)
	if err == nil || !strings.Contains(err.Error(), "history.witness cannot be read") || !strings.Contains(err.Error(), witness) || !strings.Contains(err.Error(), "correct its name") {
		t.Errorf("joining gives %v", err)
	}
	if rows := o.claim(worker, 1); len(rows) != 0 {
		t.Error("a row is claimed by a worker that does not know the history")
	}
}

// A daemon that cannot write its witness continues without it, and logs that once.
func TestAWitnessThatCannotBeWrittenStopsNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	var log bytes.Buffer
	folder := filepath.Join(t.TempDir(), "later")
	witness := filepath.Join(folder, "witness")
	o.Guard(postgres.Guard{Witness: witness, Log: slog.New(slog.NewTextHandler(&log, nil))})
	worker := o.join()
	for range 2 {
		if alive, err := o.Beat(t.Context(), worker); err != nil || !alive {
			t.Errorf("a heartbeat gives %t, %v", alive, err)
		}
	}
	if told := strings.Count(log.String(), "history.witness"); told != 1 {
		t.Errorf("it was said %d times:\n%s", told, log.String())
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Beat(t.Context(), worker); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(witness); err != nil {
		t.Errorf("there is room for a witness, and none was written: %v", err)
	}
}

// A wait for a lease uses the process's clock, because the database's clock may leap.
func TestALeapOfTheDatabasesClockShortensNoWaitForWorkers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lease    time.Duration
		accepted bool
	}{"within the lease": {time.Hour, false}, "after it": {0, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			o.Guard(postgres.Guard{Lease: test.lease, Log: slog.New(slog.DiscardHandler)})
			worker := o.join()
			o.exec(`UPDATE outbox.history SET table_oid = 0`) // as in a copy of the database
			for range 2 {
				if _, err := o.Beat(t.Context(), worker); err != nil {
					t.Fatal(err)
				}
				o.exec(`UPDATE outbox.history SET began_at = began_at - interval '2 hours'`)
			}
			if accepted := drainertest.Value[bool](t, o.db, `SELECT accepted_by IS NOT NULL FROM outbox.history ORDER BY id DESC LIMIT 1`); accepted != test.accepted {
				t.Errorf("the history is accepted: %t", accepted)
			}
		})
	}
}
