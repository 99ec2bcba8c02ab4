package config

import (
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// checkReversal makes sure that a tool is undone by another that acts, may be
// repeated, and does not lead back.
func (r references) checkReversal(at path, own string) {
	policy := r.tools[own]
	undo := policy.Reversal.Tool
	if undo == "" || policy.Class == dispatch.ReadOnly || !r.checkOneOf(at, undo, r.actingBesides(own), "must name another tool of this file that acts, as provider/operation") {
		return
	}
	if policy = r.tools[undo]; policy.Class == dispatch.NonIdempotent && policy.Lookup == nil {
		r.reject(at, "%s is non_idempotent without a lookup, so nothing would settle an undo whose answer got lost; give it a lookup, or another class", undo)
	}
	if circle := r.circleFrom(own); len(circle) > 0 && own == slices.Min(circle) {
		r.reject(at, "tools undo each other in a circle: %s -> %s; end it with compensation: none, because an undo is never undone", strings.Join(circle, " -> "), own)
	}
}

func (r references) actingBesides(own string) []string {
	var acting []string
	for name, policy := range r.tools {
		if name != own && policy.Class != dispatch.ReadOnly {
			acting = append(acting, name)
		}
	}
	return acting
}

// circleFrom follows undo after undo. It is empty unless they come back.
func (r references) circleFrom(own string) []string {
	circle := []string{own}
	for next := r.tools[own].Reversal.Tool; next != own; next = r.tools[next].Reversal.Tool {
		if next == "" || slices.Contains(circle, next) {
			return nil
		}
		circle = append(circle, next)
	}
	return circle
}
