package config

import (
	"iter"
	"maps"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// Tools are all tools by their full names, in the order of the file's
// providers and of their names.
func (c *Config) Tools() iter.Seq2[string, dispatch.Policy] {
	return func(yield func(string, dispatch.Policy) bool) {
		for _, provider := range c.Providers {
			for _, operation := range slices.Sorted(maps.Keys(provider.Tools)) {
				if !yield(fullName(provider.Name, operation), provider.Tools[operation]) {
					return
				}
			}
		}
	}
}

// MissingSafeguards names the fields that a tool lacks before agents may use
// it without a human: none if repeating a call does no harm. An effect that a
// repetition would double must be possible to look up and, for a known time,
// to undo.
func MissingSafeguards(policy dispatch.Policy) []string {
	if policy.Class != dispatch.NonIdempotent {
		return nil
	}
	var missing []string
	if policy.Lookup == nil {
		missing = append(missing, "lookup")
	}
	if policy.Reversal.Tool == "" {
		missing = append(missing, "compensate_with")
	}
	if policy.Reversal.Window == 0 {
		missing = append(missing, "reversal_window")
	}
	return missing
}
