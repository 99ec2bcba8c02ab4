package saga

import (
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore"
)

// Model is a run of one tool, and what its way back goes without.
type Model struct {
	Class        dispatch.Class // of the tool and of its undo
	Lookup       bool           // both have one
	Irreversible bool           // nobody declared how the first step is undone
	Unattended   bool           // no operator touches the saga
	Without      Guards

	policies compensations.Policies
}

const (
	shop        = "shop"
	maxAttempts = 2
)

// Tries of a lookup are counted no further than decisions depend on them: any
// may be the last, and that one is so late that nothing goes on after it.
const (
	LookupTries = maxAttempts + 1
	LastTry     = 100
)

// Explored is what package explore searches.
func (m Model) Explored() explore.Model[State] {
	m.policies = m.Policies(shop)
	return explore.Model[State]{
		Steps:      m.steps,
		Properties: properties,
		Rests:      State.rests,
	}
}

func (m Model) keeps(guard Guards) bool { return m.Without&guard == 0 }

// Policies are what the engine believes of a provider's tools.
func (m Model) Policies(provider string) compensations.Policies {
	tool := dispatch.Policy{Class: m.Class, KeyTTL: 24 * time.Hour, MaxAttempts: maxAttempts, Timeout: time.Minute}
	if m.Lookup {
		tool.Lookup = &dispatch.Lookup{Operation: "find"}
	}
	undo := tool
	undo.Reversal.None = true
	tools := map[string]dispatch.Policy{"undo": undo}
	tool.BeginsSaga = true
	for step := range Steps {
		if !m.Irreversible || step > 0 {
			tool.Reversal.Tool = provider + "/undo"
		}
		tools[Operation(step)] = tool
	}
	return compensations.Policies{provider: tools}
}

// Operation is what a step calls.
func Operation(step int) string { return fmt.Sprintf("act-%d", step+1) }

func (m Model) forward(step int) dispatch.Policy { return m.policies[shop][Operation(step)] }

func (m Model) undo() dispatch.Policy { return m.policies[shop]["undo"] }

func (s State) rests() bool {
	doubt := false
	for _, step := range s.Steps {
		if step.isOpen() || step.Undo.isOpen() {
			return false
		}
		doubt = doubt || step.Place == Settled && step.Status == unknown
	}
	return s.Saga != Begun || doubt // which is a human's
}

// isOpen reports whether an intent is on its way.
func (r Row) isOpen() bool { return r.Place != Absent && r.Place != Settled }
