// Package blocks reads the blocks of an adapter's configuration: its provider's
// and each tool's.
package blocks

import (
	"errors"
	"maps"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// Decode reads a block. One that is not there leaves the defaults as they are.
func Decode(block dispatch.Block, into any) error {
	if block == nil {
		return nil
	}
	return block.Decode(into)
}

// Tools reads the tools, in order of their names, and reports what is wrong
// with any of them as a [dispatch.ToolError], joined.
func Tools[T any](specs map[string]dispatch.ToolSpec, read func(operation string, spec dispatch.ToolSpec) (T, error)) (map[string]T, error) {
	tools := make(map[string]T, len(specs))
	var problems []error
	for _, operation := range slices.Sorted(maps.Keys(specs)) {
		tool, err := read(operation, specs[operation])
		if err != nil {
			problems = append(problems, &dispatch.ToolError{Operation: operation, Err: err})
		}
		tools[operation] = tool
	}
	return tools, errors.Join(problems...)
}
