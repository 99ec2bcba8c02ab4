package config

import (
	"maps"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/spelling"
)

func (r references) checkFallback(at path, provider Provider) {
	if provider.Fallback == "" {
		return
	}
	others := maps.Clone(r.providers)
	delete(others, provider.Name)
	fallback, known := others[provider.Fallback]
	switch {
	case !known:
		r.reject(at, "must name another provider of this file; %s", spelling.Suggest(provider.Fallback, slices.Sorted(maps.Keys(others))))
	case fallback.Fallback != "":
		r.reject(at, "a fallback has no fallback itself; leave out one of the two")
	default:
		for _, operation := range slices.Sorted(maps.Keys(provider.Tools)) {
			r.checkSubstitute(at, operation, provider.Tools[operation], fallback.Tools)
		}
	}
}

// checkSubstitute makes sure that the fallback may be sent what was meant for
// the provider, and that doubts about it are settled where it was sent.
func (r references) checkSubstitute(at path, operation string, own dispatch.Policy, fallback map[string]dispatch.Policy) {
	substitute, declared := fallback[operation]
	switch {
	case !declared:
		r.reject(at, "the fallback has no operation %q, as this provider has", operation)
	case !isClass(own.Class) || !isClass(substitute.Class):
		// Reported where it stands.
	case substitute.Class != own.Class:
		r.reject(at, "the fallback's %q must be %s, as it is here", operation, own.Class)
	case own.Lookup != nil && substitute.Lookup == nil:
		r.reject(at, "the fallback's %q must have a lookup, as it has here: it is asked about what it served", operation)
	case own.Reversal.Tool != "" && substitute.Reversal.Tool == "":
		r.reject(at, "the fallback's %q must have compensate_with, as it has here: what it did is undone there", operation)
	}
}
