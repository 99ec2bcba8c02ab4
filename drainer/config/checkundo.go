package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/jq"
)

const (
	compensate = "compensate"
	deadLetter = "dead_letter"

	nothingToUndo = "none"
)

// checkFailure looks at what follows when an intent fails for good.
func (r *reader) checkFailure(at path, block toolBlock) {
	if block.OnFailure != compensate && block.OnFailure != deadLetter {
		r.reject(at.child("on_failure"), "say what follows a failure: %s or %s", compensate, deadLetter)
	}
}

// checkUndo looks at how an effect is taken back.
func (r *reader) checkUndo(at path, block toolBlock) {
	if block.CompensateWith != nil {
		r.checkCompensation(at.child("compensate_with"), *block.CompensateWith)
	}
	if block.ReversalWindow != nil {
		r.checkPositive(at.child("reversal_window"), *block.ReversalWindow)
	}
	switch {
	case block.Compensation == "":
	case block.Compensation != nothingToUndo:
		r.reject(at.child("compensation"), "can only be none: there is nothing to undo; what undoes the effect stands in compensate_with")
	case block.CompensateWith != nil:
		r.reject(at.child("compensation"), "says that there is nothing to undo, but compensate_with says how it is undone; leave out one of the two")
	case block.ReversalWindow != nil:
		r.reject(at.child("reversal_window"), "has no meaning where there is nothing to undo; leave it out")
	}
}

func (r *reader) checkCompensation(at path, block compensationBlock) {
	if block.Tool == "" {
		r.reject(at.child("tool"), "say which tool undoes this one, as provider/operation")
	}
	if block.Payload == "" {
		return
	}
	r.checkUndoPayload(at.child("payload"), block.Payload)
}

// checkUndoPayload also finds names that are always null.
func (r *reader) checkUndoPayload(at path, source string) {
	expression, err := jq.Compile(source)
	if err != nil {
		r.reject(at, "%s", r.secrets.redact(err.Error()))
		return
	}
	for _, name := range expression.Reads() {
		if !slices.Contains(dispatch.ReversalInput, name) {
			r.reject(at, "%s", r.secrets.redact(fmt.Sprintf("there is no .%s; known here: .%s", name, strings.Join(dispatch.ReversalInput, ", ."))))
			return
		}
	}
}
