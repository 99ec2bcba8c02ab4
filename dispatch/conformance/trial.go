package conformance

import (
	"cmp"
	"context"
	"time"
)

// Trial is one thing to find out about an adapter.
type Trial struct {
	Name      string
	situation Situation     // that it cannot do without; empty if it needs none
	timeout   time.Duration // the adapter's own; patience where it is not what is tried
	unbuilt   bool          // it builds adapters itself
	run       func(*bench) []Check
}

// Trials lists what there is to find out about the subject.
func (s Subject) Trials() []Trial {
	trials := []Trial{
		{Name: "building", run: building, unbuilt: true},
		{Name: "key stability", run: keyStability},
		{Name: "exact numbers", run: exactNumbers},
		{Name: "at once", run: atOnce},
		{Name: "strange requests", run: strangeRequests},
		{Name: "cancelled before", run: cancelledBefore},
		{Name: "cancelled meanwhile", run: cancelledMeanwhile, situation: Silent},
		{Name: "own timeout", run: ownTimeout, situation: Silent, timeout: s.moment()},
	}
	for _, situation := range []Situation{Unreachable, Severing, Silent, Babbling} {
		trials = append(trials, Trial{Name: string(situation) + " from the start", run: fromTheStart(situation), situation: situation})
	}
	for _, situation := range Situations() {
		trials = append(trials, Trial{Name: string(situation), run: classification(situation), situation: situation})
	}
	return trials
}

// Excuses judges the situations that the subject leaves out.
func (s Subject) Excuses() Check { return checkExcuses(s.Cannot) }

// Run makes the trial on a fresh bench.
func (s Subject) Run(trial Trial) []Check {
	if why := s.Cannot[trial.situation]; why != "" {
		return []Check{skipped(trial.Name, "the counterpart "+string(trial.situation), why)}
	}
	bench := s.set()
	if problem := bench.problem(); problem != "" {
		return []Check{found("counterpart", false, problem, "Payload, Received and Enter", "fill in what the kit cannot do without")}
	}
	if trial.unbuilt {
		return trial.run(bench)
	}
	if err := bench.build(cmp.Or(trial.timeout, s.patience())); err != nil {
		return []Check{found("built", false, err.Error(), "an adapter", "the counterpart's Settings and Tool are what the adapter must accept")}
	}
	return append(trial.run(bench), bench.manners()...)
}

// Warm uses an adapter once, for nothing. What a library starts once in a
// process, and keeps, starts here and is nobody's leak.
func (s Subject) Warm() {
	bench := s.set()
	if bench.problem() != "" || bench.build(s.patience()) != nil {
		return
	}
	bench.dispatch(context.Background(), bench.intent())
	_ = bench.close()
}
