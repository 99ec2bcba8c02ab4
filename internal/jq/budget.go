package jq

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"time"

	"github.com/itchyny/gojq"
)

// What one evaluation may use. The first two give the same end on every machine; the
// time is for what neither foresees.
const (
	buildLimit      = 32 << 20 // bytes that it builds in all, what it drops again included
	stepLimit       = 1 << 20  // instructions of the evaluator, each of which keeps some bytes at most
	evaluationLimit = time.Second
)

// Beyond these an evaluation is heavy, and waits until no other heavy one runs.
const (
	heavyBytes = 1 << 20
	heavySteps = 1 << 15
)

// The errors of an evaluation that a limit ended. No try of an expression catches them.
var (
	ErrBuildsTooMuch = errors.New("expression builds more than 32 MiB")
	ErrTooManySteps  = errors.New("expression takes more than 1048576 steps")
)

// heavy has the one place for a heavy evaluation: the process needs the memory of one,
// however many payloads ask for it at a time. heavyApart is that of expressions that must
// not wait behind those of requests and answers.
var heavy, heavyApart = make(chan struct{}, 1), make(chan struct{}, 1)

var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// budget holds the steps, memory and time left to one evaluation. It is the
// context of that evaluation as well: the evaluator asks its context before each
// instruction, and so it counts.
type budget struct {
	context.Context // the caller's
	steps, built    int
	deadline        time.Time
	place           chan struct{} // for this evaluation if it is heavy
	isHeavy         bool
	err             error
	match           *gojq.Code     // with the patterns of this evaluation, which end with it
	patterns        map[string]int // the length of each one's program
}

// Done is called before each instruction.
func (b *budget) Done() <-chan struct{} {
	b.spend(1)
	if b.err != nil {
		return ended
	}
	return nil
}

// Err says why the evaluation ended.
func (b *budget) Err() error { return b.err }

// spend takes steps, and looks at the clock now and then.
func (b *budget) spend(steps int) {
	before := b.steps
	b.steps += steps
	if b.steps>>8 == before>>8 || b.err != nil {
		return
	}
	if b.steps > heavySteps {
		b.waitForHeavySlot()
	}
	switch {
	case b.err != nil:
	case b.Context.Err() != nil:
		b.err = b.Context.Err()
	case time.Now().After(b.deadline):
		b.err = context.DeadlineExceeded
	case b.steps > stepLimit:
		b.err = ErrTooManySteps
	}
}

// charge takes bytes before they are built.
func (b *budget) charge(bytes int) error {
	if b.err == nil && (bytes < 0 || bytes > buildLimit-b.built) {
		b.err = ErrBuildsTooMuch
	}
	if b.err != nil {
		return b.err
	}
	b.built += bytes
	b.spend(bytes >> 10)
	if b.built > heavyBytes {
		b.waitForHeavySlot()
	}
	return b.err
}

// waitForHeavySlot waits for the one place. The wait costs no time of the evaluation's own.
func (b *budget) waitForHeavySlot() {
	if b.isHeavy || b.err != nil {
		return
	}
	select {
	case b.place <- struct{}{}:
		b.isHeavy = true
		b.deadline = time.Now().Add(evaluationLimit)
	case <-b.Context.Done():
		b.err = b.Context.Err()
	}
}

func (b *budget) release() {
	if b.isHeavy {
		<-b.place
	}
}

// tree measures a value as a text of it would be, what it holds twice counted twice.
func (b *budget) tree(value any) (int, error) {
	left := measure(value, buildLimit)
	if left < 0 && b.err == nil {
		b.err = ErrBuildsTooMuch
	}
	b.spend((buildLimit - left) >> 8)
	return buildLimit - left, b.err
}

// shallowSize is the size of a copy of the value that shares its elements.
func shallowSize(value any) int {
	switch value := value.(type) {
	case string:
		return len(value)
	case json.Number:
		return len(value)
	case *big.Int:
		return value.BitLen() / 8
	case []any:
		return 16 * len(value)
	case map[string]any:
		return 64 * len(value)
	}
	return 0
}
