package row_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/real"
	"github.com/agentoutbox/drainer/model/row"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// A step of every kind is taken in the model and in a real outbox. After each,
// the tables must show what the model says, and whatever the model has no step
// for must be refused.
func TestARealOutboxTakesTheStepsOfTheModel(t *testing.T) {
	t.Parallel()
	var stored real.Outcomes
	t.Run("of a tool that is", func(t *testing.T) {
		for name, model := range map[string]row.Model{
			"key_idempotent, with a lookup": {Class: dispatch.KeyIdempotent, Lookup: true},
			"non_idempotent":                {Class: dispatch.NonIdempotent, Batched: true},
			"non_idempotent, with a lookup": {Class: dispatch.NonIdempotent, Lookup: true, Batched: true},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				o := newOutbox(t, model)
				for number, walk := range explore.Tour(undivided(model.Explored()), kindOf) {
					if o.follow(fmt.Sprintf("provider-%d", number), walk); t.Failed() {
						return
					}
				}
				stored.Add(o.Outbox)
			})
		}
	})
	known := []string{"retried", "retried_may_duplicate", "resolved", "cancelled"} // what operators append
	for _, outcome := range dispatch.Outcomes() {
		known = append(known, string(outcome))
	}
	stored.AssertAre(t, known...)
}

// follow takes the steps of a walk, and compares after each.
func (o *outbox) follow(provider string, walk []explore.Step[row.State]) {
	o.T.Helper()
	i := o.enqueue(provider)
	at, taken := o.model.Explored().Start, 0
	defer func() {
		if o.T.Failed() {
			o.T.Logf("in the last of\n%s", explore.Told(walk[:taken]))
		}
	}()
	for _, step := range walk {
		taken++
		i.take(at, step)
		if isSeen(at, step) {
			i.assertShows(step.To)
			i.assertRefusesTheRest(step.To)
		}
		if o.T.Failed() {
			return
		}
		at = step.To
	}
}

func (i *intent) assertShows(s row.State) {
	i.T.Helper()
	if shown, want := i.see(), visibleOf(s); shown != want {
		i.T.Errorf("the outbox shows\n%+v, want\n%+v", shown, want)
	}
}

// kind tells steps apart that the outbox takes differently.
type kind struct {
	what    string
	outcome dispatch.Outcome // that is settled
	past    row.Past         // its tries are not told apart
	stale   bool             // a claim that the intent has left is still there
	from    row.Status       // of what was settled
	to      row.Status
	ends    bool
}

// kindOf leaves out what no outbox sees.
func kindOf(from row.State, step explore.Step[row.State]) (kind, bool) {
	switch step.What {
	case "crashes", "freezes, and is buried", "settles the other row":
		return kind{what: step.What}, isSeen(from, step)
	case "settles, and the reply is lost":
		step.What = "settles"
	}
	k := kind{what: step.What, outcome: outcomeOf(from, step), past: from.Queue.Past, to: step.To.Newest, ends: step.To.Settled}
	if from.Settled {
		k.from = from.Newest
	}
	for _, claim := range from.Claims {
		if claim.Owner != row.Nobody && !claim.Settled {
			k.past = claim.Past
		}
		k.stale = k.stale || claim.Settled
	}
	k.past.Tries = 0
	return k, isSeen(from, step)
}

func outcomeOf(from row.State, step explore.Step[row.State]) (outcome dispatch.Outcome) {
	if w := workerOf(step); from.Workers[w].Phase == row.Done && strings.HasPrefix(step.What, "settles") {
		outcome = from.Workers[w].Outcome.Is()
	}
	return outcome
}

func isSeen(from row.State, step explore.Step[row.State]) bool {
	return visibleOf(from) != visibleOf(step.To) || strings.HasPrefix(step.What, "settles")
}

// undivided takes a transaction of several steps at once: nothing comes in
// between, as nothing can that meets it at a lock.
func undivided(m explore.Model[row.State]) explore.Model[row.State] {
	every := m.Steps
	m.Steps = func(s row.State) []explore.Step[row.State] {
		steps := every(s)
		goesOn := func(step explore.Step[row.State]) bool { return goesOn(s, step) }
		if slices.ContainsFunc(steps, goesOn) {
			steps = slices.DeleteFunc(steps, func(step explore.Step[row.State]) bool { return !goesOn(step) })
		}
		return steps
	}
	return m
}

// goesOn reports whether a step belongs to the transaction that is under way.
func goesOn(s row.State, step explore.Step[row.State]) bool {
	if s.Operator.Plan != row.None {
		return step.Who == "the operator"
	}
	return step.Who == "a reaper" && (s.Claims[0].Locked || s.Claims[1].Locked) && step.What != "locks the claim of a buried worker"
}
