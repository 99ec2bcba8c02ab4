package config

import (
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/duration"
)

func (r *reader) checkTool(at path, block toolBlock) {
	if at[len(at)-1] == "" {
		r.reject(at, "an operation's name is what stands after the first slash of a tool name; it is not empty")
	}
	r.checkIdempotency(at.child("idempotency"), block.Idempotency)
	r.checkRetry(at.child("retry"), block.Retry)
	r.checkFailure(at, block)
	if block.Idempotency.Class == dispatch.ReadOnly {
		r.checkEffectless(at, block)
		return
	}
	r.checkDoubt(at, block)
	r.checkUndo(at, block)
}

// checkDoubt looks at what helps once an effect may have happened.
func (r *reader) checkDoubt(at path, block toolBlock) {
	if block.Lookup != nil && block.Lookup.Margin != nil && *block.Lookup.Margin < 0 {
		r.reject(at.child("lookup").child("margin"), "must not be negative")
	}
}

func (r *reader) checkEffectless(at path, block toolBlock) {
	for name, written := range map[string]bool{
		"lookup":          block.Lookup != nil,
		"compensate_with": block.CompensateWith != nil,
		"compensation":    block.Compensation != "",
		"reversal_window": block.ReversalWindow != nil,
	} {
		if written {
			r.reject(at.child(name), "a read_only tool has no effect to look up or to undo; leave it out")
		}
	}
}

func (r *reader) checkIdempotency(at path, block idempotencyBlock) {
	if !isClass(block.Class) {
		r.reject(at.child("class"), "say what repeating the call does: %s", join(dispatch.Classes()))
		return
	}
	if block.Class == dispatch.KeyIdempotent {
		r.checkKey(at, block)
		return
	}
	if block.TTL != 0 {
		r.reject(at.child("ttl"), "has a meaning only for key_idempotent; leave it out")
	}
	if block.Scope != "" {
		r.reject(at.child("scope"), "has a meaning only for key_idempotent; leave it out")
	}
}

func (r *reader) checkKey(at path, block idempotencyBlock) {
	switch {
	case block.TTL <= 0:
		r.reject(at.child("ttl"), "say how long the provider remembers a key, such as 24h")
	case block.TTL > maxKeyTTL:
		r.reject(at.child("ttl"), "is longer than ten years; write what the provider promises")
	}
	if block.Scope == "" {
		r.reject(at.child("scope"), "say within what the provider tells keys apart, such as account")
	}
}

// maxKeyTTL is where a duration stops being a promise: a typo, or "for ever".
const maxKeyTTL = 3650 * duration.Day

func (r *reader) checkRetry(at path, block retryBlock) {
	r.checkCount(at.child("max_attempts"), block.MaxAttempts)
	r.checkPositive(at.child("base"), block.Base)
	if block.Cap < block.Base {
		r.reject(at.child("cap"), "must not be shorter than base")
	}
}

func isClass(class dispatch.Class) bool {
	return slices.Contains(dispatch.Classes(), class)
}
