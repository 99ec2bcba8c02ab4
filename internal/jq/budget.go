package jq

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"time"

	"github.com/itchyny/gojq"
)

// The limits of one evaluation. Bytes and steps end it at the same point on every machine. The time limit is for
// costs that they do not measure.
const (
	buildLimit      = 32 << 20 // bytes that it builds in all, also those that it drops again
	stepLimit       = 1 << 20  // instructions of the evaluator, each of which keeps a few bytes at most
	evaluationLimit = time.Second
)

// Beyond these an evaluation is heavy. It then waits until no other heavy one runs.
const (
	heavyBytes = 1 << 20
	heavySteps = 1 << 15
)

// The errors of an evaluation that a limit ended. No try in an expression catches them.
var (
	ErrBuildsTooMuch = errors.New("expression builds more than 32 MiB")
	ErrTooManySteps  = errors.New("expression takes more than 1048576 steps")
)

// heavy holds the only place for a heavy evaluation, so that the process needs the memory of one, even if many
// payloads need it at a time. heavyApart is the place for expressions that must not wait behind those of requests
// and responses.
var heavy, heavyApart = make(chan struct{}, 1), make(chan struct{}, 1)

var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// budget holds the steps, bytes and time left to one evaluation. It is also the context of that evaluation: the
// evaluator calls Done before each instruction, and so Done counts the steps.
type budget struct {
	context.Context // the caller's
	steps, built    int
	deadline        time.Time
	place           chan struct{} // the place for this evaluation if it becomes heavy
	isHeavy         bool
	err             error
	match           *gojq.Code     // caches the patterns of this evaluation only
	patterns        map[string]int // the length of each pattern's program
}

// Done is called before each instruction.
func (b *budget) Done() <-chan struct{} {
	b.spend(1)
	if b.err != nil {
		return ended
	}
	return nil
}

// Err returns why the evaluation ended.
func (b *budget) Err() error { return b.err }

// spend takes steps, and checks the limits every 256 steps.
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

// charge takes bytes, before they are built.
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

// waitForHeavySlot waits for the place of heavy evaluations. After the wait, the time limit starts again.
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

// tree returns the size of a value as text. Parts that the value holds twice count twice.
func (b *budget) tree(value any) (int, error) {
	left := measure(value, buildLimit)
	if left < 0 && b.err == nil {
		b.err = ErrBuildsTooMuch
	}
	b.spend((buildLimit - left) >> 8)
	return buildLimit - left, b.err
}

// shallowSize returns the bytes of a copy that shares its elements with the value.
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
