package explore_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/model/explore"
)

// jugs hold up to three and five litres. They are filled, emptied and poured
// into one another.
type jugs struct{ three, five int }

func pouring(properties ...explore.Property[jugs]) explore.Model[jugs] {
	return explore.Model[jugs]{
		Steps: func(j jugs) []explore.Step[jugs] {
			over, back := min(j.three, 5-j.five), min(j.five, 3-j.three)
			return []explore.Step[jugs]{
				{Who: "you", What: "fill the small one", To: jugs{3, j.five}},
				{Who: "you", What: "fill the large one", To: jugs{j.three, 5}},
				{Who: "you", What: "empty the small one", To: jugs{0, j.five}},
				{Who: "you", What: "empty the large one", To: jugs{j.three, 0}},
				{Who: "you", What: "pour the small one over", To: jugs{j.three - over, j.five + over}},
				{Who: "you", What: "pour the large one over", To: jugs{j.three + back, j.five - back}},
			}
		},
		Properties: properties,
		Rests:      func(j jugs) bool { return j == jugs{} },
	}
}

func TestEveryStateIsVisitedOnce(t *testing.T) {
	t.Parallel()
	report := explore.Explore(pouring())
	if report.Counterexample != nil || report.States != 16 || report.Steps != 6*16 {
		t.Errorf("%+v, want 16 states and 96 steps", report)
	}
}

func TestTheCounterexampleIsAShortestOne(t *testing.T) {
	t.Parallel()
	noFourLitres := explore.Always("four litres cannot be measured", func(j *jugs) bool { return j.five != 4 })
	broken := explore.Explore(pouring(noFourLitres)).Counterexample
	if broken == nil || broken.Property != noFourLitres.Name || len(broken.Trace) != 6 {
		t.Fatalf("%v, want the six steps", broken)
	}
	if told := broken.String(); !strings.Contains(told, "  1. you fill the large one\n  2. you pour the large one over\n") {
		t.Error(told)
	}
}

func TestAPropertyMayLookAtSteps(t *testing.T) {
	t.Parallel()
	nothingIsLost := explore.Property[jugs]{Name: "no water is lost", Holds: func(from jugs, step explore.Step[jugs]) bool {
		return step.To.three+step.To.five >= from.three+from.five
	}}
	broken := explore.Explore(pouring(nothingIsLost)).Counterexample
	if broken == nil || !strings.Contains(broken.Trace[len(broken.Trace)-1].What, "empty") {
		t.Errorf("%v, want an emptied jug", broken)
	}
}

// stairs returns a model whose states lead from 0 upwards.
func stairs(rests func(int) bool, next func(int) []explore.Step[int]) explore.Model[int] {
	return explore.Model[int]{Rests: rests, Steps: next}
}

func TestAStateThatNothingLeavesIsADeadlock(t *testing.T) {
	t.Parallel()
	report := explore.Explore(stairs(
		func(at int) bool { return at == 9 },
		func(at int) []explore.Step[int] {
			if at == 3 {
				return nil
			}
			return []explore.Step[int]{{To: at + 1}}
		}))
	if broken := report.Counterexample; broken == nil || broken.Property != explore.NoDeadlock || len(broken.Trace) != 3 {
		t.Errorf("%v, want the deadlock after three steps", broken)
	}
}

func TestAStateFromWhichOnlyChanceLeadsToRestIsFound(t *testing.T) {
	t.Parallel()
	for _, chance := range []bool{false, true} {
		report := explore.Explore(stairs(
			func(at int) bool { return at == 0 || at == 3 },
			func(at int) []explore.Step[int] {
				switch at {
				case 2:
					return []explore.Step[int]{{To: 1}, {To: 3, Chance: chance}}
				case 3:
					return nil
				}
				return []explore.Step[int]{{To: at + 1}}
			}))
		broken := report.Counterexample
		if stuck := broken != nil && broken.Property == explore.ComesToRest && len(broken.Trace) == 1; stuck != chance {
			t.Errorf("left to chance: %v; %v", chance, broken)
		}
	}
}

func TestATourTakesAStepOfEachKind(t *testing.T) {
	t.Parallel()
	model := pouring()
	type kind struct {
		what string
		to   int
	}
	kindOf := func(_ jugs, step explore.Step[jugs]) (kind, bool) {
		return kind{step.What, step.To.five}, strings.HasPrefix(step.What, "pour")
	}
	every := map[kind]bool{}
	for three := range 4 {
		for five := range 6 {
			if three%3 != 0 && five%5 != 0 {
				continue // out of reach
			}
			for _, step := range model.Steps(jugs{three, five}) {
				if k, counts := kindOf(jugs{}, step); counts {
					every[k] = true
				}
			}
		}
	}
	for _, walk := range explore.Tour(model, kindOf) {
		at := model.Start
		for _, step := range walk {
			if !slices.Contains(model.Steps(at), step) {
				t.Fatalf("%v cannot happen in %v", step, at)
			}
			k, _ := kindOf(at, step)
			delete(every, k)
			at = step.To
		}
	}
	if len(every) != 0 {
		t.Errorf("never shown: %v", every)
	}
}
