package providerblock

import (
	"maps"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// dropReversals leaves out what drainer would not undo with: operations that
// may not be repeated, and those that undo each other in a circle.
func (b *Block) dropReversals() {
	for _, name := range slices.Sorted(maps.Keys(b.tools)) {
		if undo := b.undoOf(name); undo != "" && !b.tools[undo].isRepeatable() {
			b.dropReversal(name)
			b.ask("Give %s its compensate_with: the document undoes it with %s, which is not idempotent and has no lookup.", name, undo)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.tools)) {
		if b.isUndoneByItself(name) {
			b.dropReversal(name)
			b.ask("Give %s its compensate_with: the document comes back to it, undo by undo.", name)
		}
	}
}

func (b *Block) undoOf(name string) string {
	if with := b.tools[name].CompensateWith; with != nil {
		return strings.TrimPrefix(with.Tool, b.name+"/")
	}
	return ""
}

func (t tool) isRepeatable() bool {
	return t.Idempotency.Class != dispatch.NonIdempotent || t.Lookup != nil
}

func (b *Block) isUndoneByItself(name string) bool {
	seen := map[string]bool{}
	for undo := b.undoOf(name); undo != "" && !seen[undo]; undo = b.undoOf(undo) {
		if undo == name {
			return true
		}
		seen[undo] = true
	}
	return false
}

func (b *Block) dropReversal(name string) {
	tool := b.tools[name]
	tool.CompensateWith = nil
	b.tools[name] = tool
}
