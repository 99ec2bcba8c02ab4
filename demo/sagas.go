package demo

import (
	"path"
	"slices"
	"strings"
)

// Sagas is the audit of the runs that went back. Fields count.
type Sagas struct {
	Compensated int `json:"compensated"`         // runs
	UndoEffects int `json:"undo_effects"`        // in the provider's ledger
	NetEffects  int `json:"net_effects"`         // of compensated runs: effects not undone exactly once
	OutOfOrder  int `json:"out_of_order"`        // runs not undone newest step first
	Failed      int `json:"compensation_failed"` // runs
	Astray      int `json:"astray"`              // runs that ended otherwise than they should
	Pages       int `json:"pages"`               // received
	Unpaged     int `json:"unpaged"`             // failed runs without exactly one page
	FalseAlarms int `json:"false_alarms"`        // pages and incidents about anything else
}

// saga is a run that goes back, as the outbox says.
type saga struct {
	Run   string
	State string
}

// journey is a run as the provider's ledger knows it: ids of effects.
type journey struct {
	made   []string // in the order of the run's steps
	undone []string // in the ledger's order
}

func judgeSagas(f facts) (s Sagas) {
	states := map[string]string{}
	for _, saga := range f.sagas {
		states[saga.Run] = saga.State
		if _, planned := f.trips[saga.Run]; !planned {
			s.Astray++
		}
	}
	journeys := f.journeys()
	for run, trip := range f.trips {
		s.add(trip, states[run], journeys[run])
	}
	s.judgePages(f)
	return s
}

func (s *Sagas) add(t trip, state string, j journey) {
	s.UndoEffects += len(j.undone)
	if state != t.saga() {
		s.Astray++
	}
	if !slices.Equal(j.undone, t.toUndo(j.made)) {
		s.OutOfOrder++
	}
	switch state {
	case compensated:
		s.Compensated++
		s.NetEffects += j.net()
	case compensationFailed:
		s.Failed++
	}
}

// toUndo lists what must be undone of what was made, in this order: down to what
// cannot be undone.
func (t trip) toUndo(made []string) []string {
	if t.saga() == "" {
		return nil
	}
	kept := slices.Index(t.kinds, ferry) + 1
	undone := slices.Clone(made[min(kept, len(made)):])
	slices.Reverse(undone)
	return undone
}

// net counts what stands, and what was undone more than once.
func (j journey) net() (effects int) {
	for _, id := range j.made {
		times := 0
		for _, undone := range j.undone {
			if undone == id {
				times++
			}
		}
		if times != 1 {
			effects++
		}
	}
	return effects
}

// journeys reads what was undone from the ledger alone: the path of a
// cancellation names the effect.
func (f facts) journeys() map[string]journey {
	journeys, runs := f.made()
	for _, effect := range f.effects {
		if booking, cancels := strings.CutSuffix(effect.Path, "/cancel"); cancels {
			id := path.Base(booking)
			j := journeys[runs[id]]
			j.undone = append(j.undone, id)
			journeys[runs[id]] = j
		}
	}
	return journeys
}

// made also tells the run of each effect.
func (f facts) made() (journeys map[string]journey, runs map[string]string) {
	ids := map[string][]string{} // by key
	for _, effect := range f.effects {
		ids[effect.Key] = append(ids[effect.Key], effect.ID)
	}
	journeys, runs = map[string]journey{}, map[string]string{}
	for _, intent := range f.intents {
		if intent.Undoes != 0 {
			continue
		}
		j := journeys[intent.Run]
		j.made = append(j.made, ids[intent.Key]...)
		journeys[intent.Run] = j
		for _, id := range ids[intent.Key] {
			runs[id] = intent.Run
		}
	}
	return journeys, runs
}

// judgePages expects one page about each step that cannot be undone.
func (s *Sagas) judgePages(f facts) {
	stuck := map[page]int{} // pages by what they should be about
	for _, intent := range f.intents {
		if f.trips[intent.Run].ending(intent.Step) == compensationFailed {
			stuck[page{Kind: compensationFailed, IntentID: intent.ID}] = 0
		}
	}
	for _, incident := range f.incidents {
		if _, due := stuck[incident]; !due {
			s.FalseAlarms++
		}
	}
	for _, received := range f.pages {
		s.Pages++
		if _, due := stuck[received]; due {
			stuck[received]++
		} else {
			s.FalseAlarms++
		}
	}
	for _, times := range stuck {
		if times != 1 {
			s.Unpaged++
		}
	}
}
