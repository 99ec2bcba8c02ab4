package census

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestOneProcessShowsWhatTheTablesHold(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	first, second := o.process(sim), o.process(sim)
	for range 2 {
		first.count()
		second.count()
	}
	first.assertShows(map[string]float64{"census_leader": 1, "outbox_due_rows sim": 0})
	second.assertShows(map[string]float64{"census_leader": 0})
	if !first.counts() || second.counts() {
		t.Error("the wrong one shows what it counted")
	}
}

func TestADeadLeaderIsReplacedWhenItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	dead, heir := o.process(sim), o.process(sim)
	dead.count()
	heir.count()
	o.expire()
	heir.count()
	dead.count() // it was only asleep
	if dead.counts() || !heir.counts() {
		t.Error("the heir does not count alone")
	}
}

func TestALeaderThatStopsHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	first, second := o.process(sim), o.process(sim)
	stop := first.run()
	drainertest.Eventually(t, "the first one counts", first.counts)
	stop()
	second.count()
	if first.counts() || !second.counts() {
		t.Error("the second one does not count alone")
	}
}

func TestALeaderThatIsKilledIsReplacedWithinSeconds(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	killed, heir := o.process(sim), o.process(sim)
	killed.count() // and is never heard of again
	started := time.Now()
	defer heir.run()()
	drainertest.Eventually(t, "the heir counts", heir.counts)
	if took := time.Since(started); took > lease+2*renewInterval {
		t.Errorf("it took %v, want about %v", took, lease)
	}
}

func TestAnOldSampleIsNotShown(t *testing.T) {
	t.Parallel()
	p := newOutbox(t).process(sim)
	p.count()
	p.board.shownAt = time.Now().Add(-boardLife - time.Second)
	if p.counts() {
		t.Error("it is shown")
	}
}
