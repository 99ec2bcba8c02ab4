package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// provider reads one provider and builds its adapter, so that the adapter's
// own complaints are found as early as everybody else's.
func (r *reader) provider(f field, registry dispatch.Registry, root rootBlock, retention Retention) (Provider, dispatch.Network) {
	block := defaultProvider()
	block.Egress = root.Egress
	blocks := r.decodeStruct(f, reflect.ValueOf(&block).Elem(), registry.Names()...)
	r.checkProvider(f.path, block)

	provider := Provider{
		Name:        f.name(),
		Concurrency: block.Concurrency,
		Timeout:     block.Timeout,
		RateLimit:   block.RateLimit.limit(),
		Breaker:     dispatch.BreakerPolicy(block.CircuitBreaker),
		Fallback:    block.Fallback,
		Tools:       make(map[string]dispatch.Policy, len(block.Tools)),
	}
	spec := dispatch.Spec{
		Provider: f.name(),
		Timeout:  block.Timeout,
		Network:  r.network(f.path, block),
		Settings: r.ownBlock(f, blocks, block.Adapter, registry),
		Tools:    make(map[string]dispatch.ToolSpec, len(block.Tools)),
	}
	for _, child := range block.Tools {
		operation := child.name()
		tool, blocks := r.tool(child, registry)
		r.checkPromise(child.path, block.Adapter, tool.Idempotency.Class, registry)
		r.retain(child.path, fullName(provider.Name, operation), tool, retention)
		provider.Tools[operation] = tool.policy(block.Timeout)
		spec.Tools[operation] = dispatch.ToolSpec{
			Class:    tool.Idempotency.Class,
			KeyTTL:   tool.Idempotency.TTL,
			Settings: r.ownBlock(child, blocks, block.Adapter, registry),
		}
	}
	for _, policy := range provider.Tools {
		markAnswering(spec.Tools, policy.Lookup)
	}
	provider.Adapter = r.adapter(f.path, block.Adapter, spec, registry)
	return provider, spec.Network
}

func (r *reader) network(at path, block providerBlock) dispatch.Network {
	rules, _ := r.egress(at.child("egress"), block.Egress)
	return dispatch.NewNetwork(rules.Dial, r.tls(at.child("tls"), block.TLS))
}

// checkPromise keeps a tool from promising what its adapter's protocol cannot.
func (r *reader) checkPromise(at path, adapter string, class dispatch.Class, registry dispatch.Registry) {
	classes := registry[adapter].Classes
	if classes == nil || !isClass(class) || slices.Contains(classes, class) {
		return
	}
	r.reject(at.child("idempotency").child("class"), "the %s adapter cannot promise this; it can: %s", adapter, join(classes))
}

// fullName is the name that agents call a tool by.
func fullName(provider, operation string) string { return provider + "/" + operation }

func markAnswering(tools map[string]dispatch.ToolSpec, lookup *dispatch.Lookup) {
	if lookup == nil {
		return
	}
	if tool, declared := tools[lookup.Operation]; declared {
		tool.AnswersLookups = true
		tools[lookup.Operation] = tool
	}
}

func (r *reader) tool(f field, registry dispatch.Registry) (toolBlock, map[string]field) {
	block := defaultTool()
	blocks := r.decodeStruct(f, reflect.ValueOf(&block).Elem(), registry.Names()...)
	r.checkTool(f.path, block)
	return block, blocks
}

// ownBlock picks the block that the provider's adapter decodes; a block for
// another adapter would silently do nothing, so it is a mistake.
func (r *reader) ownBlock(parent field, blocks map[string]field, adapter string, registry dispatch.Registry) dispatch.Block {
	if _, known := registry[adapter]; known {
		for name, other := range blocks {
			if name != adapter {
				r.report(other.key, describe(other.path, "the provider's adapter is "+adapter+"; leave this block out or choose adapter: "+name))
			}
		}
	}
	own, written := blocks[adapter]
	if !written {
		own = field{path: parent.path.child(adapter), key: parent.key}
	}
	return adapterBlock{reader: r, field: own}
}

func (r *reader) adapter(at path, name string, spec dispatch.Spec, registry dispatch.Registry) dispatch.Adapter {
	kind, known := registry[name]
	switch {
	case name == "":
		r.reject(at.child("adapter"), "choose the adapter that speaks to the provider; registered: %s", strings.Join(registry.Names(), ", "))
		return nil
	case !known:
		r.reject(at.child("adapter"), "there is no such adapter; %s", spelling.Suggest(name, registry.Names()))
		return nil
	}
	adapter, err := kind.New(spec)
	for _, complaint := range complaints(err) {
		about := at
		if complaint.tool != "" {
			about = at.child("tools").child(complaint.tool)
		}
		r.reject(about.child(name), "%s", r.secrets.redact(complaint.text))
	}
	return adapter
}
