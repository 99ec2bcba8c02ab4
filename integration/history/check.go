package history

import (
	"fmt"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// Invariant must hold after every test, for all faults.
type Invariant string

// The safety properties of an outbox.
const (
	Accounted     Invariant = "every committed intent ends, and no other is ever sent"
	OneEffect     Invariant = "one effect a key, one request of what cannot be repeated"
	True          Invariant = "the outbox and the provider agree on every effect"
	ForGood       Invariant = "what is settled stays settled, unless an operator says otherwise"
	BackToNothing Invariant = "a run that was rolled back left nothing, was undone newest first, and took no further step"
)

// Violation is an invariant that did not hold, with its place.
type Violation struct {
	Invariant Invariant
	What      string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s", v.Invariant, v.What) }

// Tool holds the configuration's promises about a tool.
type Tool struct {
	Class dispatch.Class
	Stays bool // its effect remains when its run is rolled back: compensation is none
}

// Check compares the accounts. Call it once no work remains. tools has all tools that were called, by their full
// names.
func Check(accounts Accounts, tools map[string]Tool) []Violation {
	c := newChecker(accounts, tools)
	c.accounted()
	c.oneEffect()
	c.trueToTheLedger()
	c.forGood()
	c.backToNothing()
	return c.violations
}

// checker finds accounts by key.
type checker struct {
	Accounts

	tools      map[string]Tool
	byKey      map[string]Intent
	byRun      map[string][]Intent
	effects    map[string][]int // positions in the ledger, by key
	resendable map[int64]int    // attempts that permit one more request, for a tool of any class
	violations []Violation
}

func newChecker(accounts Accounts, tools map[string]Tool) *checker {
	c := &checker{
		Accounts: accounts, tools: tools,
		byKey: map[string]Intent{}, byRun: map[string][]Intent{}, effects: map[string][]int{}, resendable: map[int64]int{},
	}
	for _, intent := range accounts.Intents {
		c.byKey[intent.Key] = intent
		c.byRun[intent.Run] = append(c.byRun[intent.Run], intent)
	}
	for position, key := range accounts.Effects {
		c.effects[key] = append(c.effects[key], position)
	}
	for _, transition := range accounts.Transitions {
		if transition.allowsAnother() {
			c.resendable[transition.IntentID]++
		}
	}
	return c
}

func (c *checker) violated(invariant Invariant, format string, args ...any) {
	c.violations = append(c.violations, Violation{invariant, fmt.Sprintf(format, args...)})
}

// accounted does not judge intents whose commit got no answer: they may exist or not. If they exist, they count
// like any other.
func (c *checker) accounted() {
	for key, answer := range c.Answers {
		_, there := c.byKey[key]
		switch {
		case answer == Committed && !there:
			c.violated(Accounted, "%s was committed and is gone", key)
		case answer == Refused && there:
			c.violated(Accounted, "%s was refused and is there", key)
		}
	}
	for key := range c.Requests {
		if _, there := c.byKey[key]; !there {
			c.violated(Accounted, "%s was sent and is no intent", key)
		}
	}
	for _, intent := range c.Intents {
		if intent.Status == "pending" || intent.Status == "in_progress" {
			c.violated(Accounted, "intent %d is still %s", intent.ID, intent.Status)
		}
	}
}

// oneEffect permits another request only if the provider said that it did nothing, or an operator asked for it.
func (c *checker) oneEffect() {
	for _, intent := range c.Intents {
		effects, requests := len(c.effects[intent.Key]), c.Requests[intent.Key]
		if effects > 1 {
			c.violated(OneEffect, "intent %d had %d effects", intent.ID, effects)
		}
		if c.tools[intent.Tool].Class == dispatch.NonIdempotent && requests > 1+c.resendable[intent.ID] {
			c.violated(OneEffect, "intent %d of a tool that cannot be repeated was sent %d times", intent.ID, requests)
		}
	}
}

func (c *checker) trueToTheLedger() {
	for _, intent := range c.Intents {
		had := len(c.effects[intent.Key]) > 0
		switch intent.Status {
		case "completed", "compensated", "compensation_failed":
			if !had && c.tools[intent.Tool].Class != dispatch.ReadOnly {
				c.violated(True, "intent %d is %s and had no effect", intent.ID, intent.Status)
			}
		case "failed", "cancelled":
			if had {
				c.violated(True, "intent %d is %s and had an effect", intent.ID, intent.Status)
			}
		}
	}
}

// forGood follows each row through its transitions.
func (c *checker) forGood() {
	journeys := map[int64]*journey{}
	for _, transition := range c.Transitions {
		if transition.IntentID == 0 {
			continue
		}
		row, known := journeys[transition.IntentID]
		if !known {
			row = &journey{claimed: map[int]bool{}}
			journeys[transition.IntentID] = row
		}
		if wrong := row.follow(transition); wrong != "" {
			c.violated(ForGood, "intent %d %s", transition.IntentID, wrong)
		}
	}
	for intent, row := range journeys {
		if row.revived {
			c.violated(ForGood, "intent %d was settled and came back to be sent", intent)
		}
	}
}

// journey is the state of a row after some of its transitions.
type journey struct {
	settled bool
	revived bool         // it was settled and is queued or claimed again; an operator's entry may still follow
	claimed map[int]bool // attempts that were claimed
}

// follow returns the fault of the next transition, or "".
func (j *journey) follow(t Transition) string {
	switch {
	case t.Place == "intent" && t.Change == "UPDATE":
		return "was changed after its commit"
	case t.Place == "attempt" && t.Change != "INSERT":
		return "had its history changed"
	case t.Place == "attempt":
		return j.attempted(t)
	case t.Change != "INSERT":
		return ""
	case t.Place == "claim" && j.claimed[t.Attempt]:
		return "was claimed twice under one number"
	case t.Place == "claim" && j.settled:
		return "was settled and claimed to be sent again" // an operator's entry must come before the claim
	case t.Place == "claim":
		j.claimed[t.Attempt] = true
	}
	if t.Place == "queue" || t.Place == "claim" {
		j.revived = j.revived || j.settled
	}
	return ""
}

// attempted permits three entries after the end: an operator's, the result of the undo, and late evidence of the
// effect.
func (j *journey) attempted(t Transition) string {
	switch {
	case t.isOperators():
		j.revived = false
	case j.settled && t.Worker != "saga" && !t.Late:
		return "was settled twice, the second time as " + t.Status
	}
	j.settled = t.Settled
	return ""
}

// backToNothing checks sagas in the state compensated. Other sagas have an incident for the effects that remain.
func (c *checker) backToNothing() {
	for _, transition := range c.Transitions {
		if transition.Closed {
			c.violated(BackToNothing, "intent %d was claimed to be sent although its run was rolled back", transition.IntentID)
		}
	}
	for run, state := range c.Sagas {
		if state == "compensated" {
			c.wentBack(run)
		}
	}
}

func (c *checker) wentBack(run string) {
	undos := c.undosOf(run)
	later := len(c.Effects) // the position of the undo of the next step
	steps := slices.SortedStableFunc(slices.Values(c.byRun[run]), func(a, b Intent) int { return a.Completed.Compare(b.Completed) })
	for _, step := range steps {
		if step.Undoes != 0 || len(c.effects[step.Key]) == 0 || c.tools[step.Tool].Stays {
			continue
		}
		undo, undone := undos[step.ID]
		if !undone || len(c.effects[undo.Key]) == 0 {
			c.violated(BackToNothing, "intent %d had an effect that was not undone", step.ID)
			continue
		}
		position := c.effects[undo.Key][0]
		if position < c.effects[step.Key][0] {
			c.violated(BackToNothing, "intent %d was undone before it had its effect", step.ID)
		}
		if position > later {
			c.violated(BackToNothing, "intent %d was undone after one that completed later", step.ID)
		}
		later = position
	}
}

func (c *checker) undosOf(run string) map[int64]Intent {
	undos := map[int64]Intent{}
	for _, intent := range c.byRun[run] {
		if intent.Undoes != 0 {
			undos[intent.Undoes] = intent
		}
	}
	return undos
}
