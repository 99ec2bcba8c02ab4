package mcp

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// The protocol has no name of its own for an idempotency key, so these stand
// under a prefix of ours, as it asks for.
const (
	namespace           = "io.github.agentoutbox/"
	defaultKeyMeta      = namespace + "idempotency-key"
	defaultReplayedMeta = namespace + "replayed"
	tupleMeta           = namespace + "idempotency-tuple"
)

var (
	metaLabel = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	metaLeaf  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

	// Names without a prefix that the protocol gives a meaning.
	takenMeta = []string{"progressToken", "traceparent", "tracestate", "baggage"}
)

// checkMetaName holds a name against the protocol's grammar
// (https://modelcontextprotocol.io/specification, "_meta").
func checkMetaName(field, name string) error {
	prefix, leaf, prefixed := strings.Cut(name, "/")
	if !prefixed {
		prefix, leaf = "", name
	}
	if !metaLeaf.MatchString(leaf) || (prefixed && !isPrefix(prefix)) {
		return fmt.Errorf("%s: not a name for _meta; write it like com.example/name", field)
	}
	if isReserved(prefix) || slices.Contains(takenMeta, name) {
		return fmt.Errorf("%s: MCP keeps that name for itself", field)
	}
	if name == tupleMeta {
		return fmt.Errorf("%s: that name is the tuple's", field)
	}
	return nil
}

func isPrefix(text string) bool {
	return !slices.ContainsFunc(strings.Split(text, "."), func(label string) bool { return !metaLabel.MatchString(label) })
}

// isReserved goes by both rules that revisions of the protocol have had.
func isReserved(prefix string) bool {
	labels := strings.Split(prefix, ".")
	for i, label := range labels {
		if (label == "mcp" || label == "modelcontextprotocol") && (i == 1 || i < len(labels)-1) {
			return true
		}
	}
	return false
}

// meta is what a call says about itself. The trace context goes by its bare
// names (https://modelcontextprotocol.io/seps/414).
func (p *provider) meta(request dispatch.Request) map[string]any {
	meta := make(map[string]any)
	for name, value := range render.TraceContext(request.Headers) {
		meta[name] = value
	}
	if p.keyMeta != "" {
		meta[p.keyMeta] = request.IdempotencyKey
	}
	if p.tuple {
		meta[tupleMeta] = map[string]any{
			"agent_run_id":   request.Tuple.AgentRunID,
			"step_id":        request.Tuple.StepID,
			"tool_name":      request.Tuple.ToolName,
			"business_scope": request.Tuple.BusinessScope,
		}
	}
	return meta
}
