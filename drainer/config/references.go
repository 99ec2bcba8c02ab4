package config

import (
	"maps"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// references are what one part of the file may say of another. They can be
// checked only once all of it is read.
type references struct {
	*reader
	providers map[string]Provider
	tools     map[string]dispatch.Policy // by full name
}

func (r *reader) checkReferences(providers []Provider) {
	refs := references{reader: r, providers: make(map[string]Provider, len(providers)), tools: map[string]dispatch.Policy{}}
	for _, provider := range providers {
		refs.providers[provider.Name] = provider
		for operation, policy := range provider.Tools {
			refs.tools[fullName(provider.Name, operation)] = policy
		}
	}
	for _, provider := range providers {
		at := path{"providers", provider.Name}
		refs.checkFallback(at.child("fallback"), provider)
		for _, operation := range slices.Sorted(maps.Keys(provider.Tools)) {
			at, policy := at.child("tools").child(operation), provider.Tools[operation]
			refs.checkLookup(at.child("lookup").child("tool"), provider, policy.Lookup)
			refs.checkReversal(at.child("compensate_with").child("tool"), fullName(provider.Name, operation))
		}
	}
}

func (r references) checkLookup(at path, provider Provider, lookup *dispatch.Lookup) {
	if lookup == nil {
		return
	}
	var readOnly []string
	for operation, policy := range provider.Tools {
		if policy.Class == dispatch.ReadOnly {
			readOnly = append(readOnly, operation)
		}
	}
	r.checkOneOf(at, lookup.Operation, readOnly, "must name a read_only operation of this provider")
}

func (r references) checkOneOf(at path, name string, allowed []string, rule string) bool {
	if slices.Contains(allowed, name) {
		return true
	}
	slices.Sort(allowed)
	r.reject(at, "%s; %s", rule, spelling.Suggest(name, allowed))
	return false
}
