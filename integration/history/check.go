package history

import (
	"fmt"

	"github.com/agentoutbox/drainer/dispatch"
)

// Invariant is what must hold of every run, whatever was broken in it.
type Invariant string

// The safety of an outbox.
const (
	Accounted     Invariant = "every committed intent ends, and no other is ever sent"
	OneEffect     Invariant = "one effect a key, one request of what cannot be repeated"
	True          Invariant = "what the outbox says is what the provider did"
	ForGood       Invariant = "what is settled stays settled, unless an operator says otherwise"
	BackToNothing Invariant = "a run that went back left nothing, was undone newest first, and took no further step"
)

// Violation is an invariant that did not hold, and where.
type Violation struct {
	Invariant Invariant
	What      string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s", v.Invariant, v.What) }

// Tool is what a configuration promises of one.
type Tool struct {
	Class dispatch.Class
	Stays bool // its effect stays when its run goes back: compensation is none
}

// Check holds the accounts against each other once everything has come to rest.
// tools are all that were called, by their full names.
func Check(accounts Accounts, tools map[string]Tool) []Violation {
	c := newChecker(accounts, tools)
	c.accounted()
	c.oneEffect()
	c.trueToTheLedger()
	c.forGood()
	c.backToNothing()
	return c.violations
}

// checker looks accounts up by key.
type checker struct {
	Accounts

	tools      map[string]Tool
	byKey      map[string]Intent
	byRun      map[string][]Intent
	effects    map[string][]int // positions in the ledger, by key
	resendable map[int64]int    // attempts after which an intent may be sent once more whatever its class
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

// accounted needs no word about intents whose commit nobody heard of: they may
// be there or not, but what is there counts like any other.
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

// oneEffect forgives a second request only where the provider said that the
// first did nothing, or an operator asked for it.
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
