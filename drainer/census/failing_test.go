package census

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestACensusThatFailsSaysSoAndItsGaugesEnd(t *testing.T) {
	t.Parallel()
	for fails, breaks := range map[string]string{
		"lead the census": `ALTER TABLE outbox.census RENAME TO away`,
		"outbox.queue":    `ALTER TABLE outbox.queue RENAME TO away`,
	} {
		o := newOutbox(t)
		p := o.process(sim)
		p.count()
		o.exec(breaks)
		p.sampled = time.Time{}
		p.turn(t.Context())
		if said := p.said.String(); !strings.Contains(said, "cannot count what the tables hold") || !strings.Contains(said, fails) {
			t.Errorf("%s: it says %q", fails, said)
		}
		p.board.shownAt = p.board.shownAt.Add(-boardLife) // time passes
		if p.counts() {
			t.Errorf("%s: it still shows what it counted", fails)
		}
	}
}

func TestALeaderThatCannotResignSaysWhoTakesOver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	p := o.process(sim)
	p.count()
	o.exec(`ALTER TABLE outbox.census RENAME TO away`)
	p.resign(context.WithoutCancel(t.Context()))
	if said := p.said.String(); !strings.Contains(said, "another process takes it when the lease is over") || p.counts() {
		t.Errorf("it says %q, and shows what it counted: %v", said, p.counts())
	}
}

func TestAnUnusableURLIsRefusedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	if _, err := OpenPool(t.Context(), "postgres://ann:canary@h:no-port/db"); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("it says %v", err)
	}
}

// Agents may leave out the slash where provider and operation have one name.
func TestAToolOfItsProvidersNameIsLookedForUnderBothNames(t *testing.T) {
	t.Parallel()
	windows := map[string]time.Duration{"sim/sim": time.Hour}
	tools, seconds := (&configuration{windows: windows}).nearEnds()
	if len(tools) != 2 || tools[0] != "sim/sim" || tools[1] != "sim" || seconds[0] != seconds[1] {
		t.Errorf("%v with %v", tools, seconds)
	}
}

func TestWhatIsNoNumberOfSecondsIsNotTakenForOne(t *testing.T) {
	t.Parallel()
	var d time.Duration
	for value, want := range map[any]time.Duration{1.5: 1500 * time.Millisecond, "1.5": 0, nil: 0} {
		d = 0
		err := seconds{&d}.Scan(value)
		if _, is := value.(float64); (err == nil) != is || d != want {
			t.Errorf("%v: %s, %v", value, d, err)
		}
	}
}
