package compensations

import (
	"fmt"

	"github.com/agentoutbox/drainer/dispatch"
)

// Policies are the configured tools, by provider and operation.
type Policies map[string]map[string]dispatch.Policy

// of is the policy of the tool that had the step's effect. Where a fallback
// served it, the fallback undoes it: nobody else knows what was done.
func (p Policies) of(step Step) (dispatch.Policy, bool) {
	tool := dispatch.Tuple{ToolName: step.servedAs()}
	policy, known := p[tool.Provider()][tool.Operation()]
	return policy, known
}

// tools are policies, ready to be used.
type tools struct {
	policies Policies
	mappings map[string]*Mapping // by the expression
}

// mappings compiles every reversal's payload once.
func (p Policies) mappings() (map[string]*Mapping, error) {
	compiled := map[string]*Mapping{}
	for provider, tools := range p {
		for operation, policy := range tools {
			mapping, err := CompileMapping(policy.Reversal.Payload)
			if err != nil {
				return nil, fmt.Errorf("%s/%s: %w", provider, operation, err)
			}
			compiled[policy.Reversal.Payload] = mapping
		}
	}
	return compiled, nil
}
