package render

import (
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Input is what every expression of a tool sees: {payload, key, provider_ref,
// agent_run_id, step_id, tool_name, business_scope}. It belongs to one
// dispatch and must not be shared with another.
func Input(request dispatch.Request) (map[string]any, error) {
	var payload any
	if len(request.Payload) > 0 {
		decoded, err := jq.Decode(request.Payload)
		if err != nil {
			return nil, err
		}
		payload = decoded
	}
	var reference any
	if request.ProviderRef != "" {
		reference = request.ProviderRef
	}
	return map[string]any{
		"payload":        payload,
		"key":            request.IdempotencyKey,
		"provider_ref":   reference,
		"agent_run_id":   request.Tuple.AgentRunID,
		"step_id":        request.Tuple.StepID,
		"tool_name":      request.Tuple.ToolName,
		"business_scope": request.Tuple.BusinessScope,
	}, nil
}
