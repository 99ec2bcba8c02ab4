package providerblock

import (
	"cmp"
	"fmt"
	nethttp "net/http"
	"slices"

	"github.com/agentoutbox/drainer/contract/manifest"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/http"
)

// Skipped is an operation that was left out.
type Skipped struct {
	Method, Path string
	Why          string // and what to do
}

// From takes over what an OpenAPI document declares: every operation with the
// extension, and every read that such an operation looks up with. The skipped
// operations come in the order of the document.
func From(document *manifest.Document, name string) (*Block, []Skipped) {
	w := &writer{
		document: document,
		block:    &Block{name: name, settings: http.Settings{BaseURL: baseURL(document)}, tools: map[string]tool{}},
		why:      map[*manifest.Operation]string{},
	}
	operations := w.wanted()
	w.block.settings.IdempotencyKey = w.keyOf(operations)
	for _, operation := range operations {
		if err := w.add(operation); err != nil {
			w.why[operation] = err.Error()
		}
	}
	w.dropOrphans(operations)
	return w.block, w.skipped(operations)
}

// writer fills a block; why holds the reason for each operation left out.
type writer struct {
	document *manifest.Document
	block    *Block
	why      map[*manifest.Operation]string
}

func baseURL(document *manifest.Document) string {
	server := document.Server()
	if server == nil || accepts(http.Settings{BaseURL: server.String()}, nil) != nil {
		return unknownServer
	}
	return server.String()
}

// wanted lists the operations that an agent may call, or that one of them
// needs. A write that declares nothing is among them, to be refused.
func (w *writer) wanted() []*manifest.Operation {
	needed := map[*manifest.Operation]bool{}
	for _, operation := range w.document.Operations {
		if declaration := operation.Declaration; declaration != nil {
			needed[w.document.Find(declaration.Lookup)] = true
		}
	}
	var wanted []*manifest.Operation
	for _, operation := range w.document.Operations {
		if operation.Declaration != nil || operation.Writes() || needed[operation] {
			wanted = append(wanted, operation)
		}
	}
	return wanted
}

// keyOf is where the first operation that has a key sends it: a provider has
// one place for all its tools.
func (w *writer) keyOf(operations []*manifest.Operation) http.KeySettings {
	for _, operation := range operations {
		if len(operation.Violations) > 0 || operation.Declaration == nil || operation.Declaration.Class != dispatch.KeyIdempotent {
			continue
		}
		key := keySettings(operation.Declaration.Key)
		if accepts(http.Settings{BaseURL: unknownServer, IdempotencyKey: key}, nil) == nil {
			return key
		}
	}
	return http.KeySettings{}
}

func keySettings(key manifest.Key) http.KeySettings {
	return http.KeySettings{Header: nethttp.CanonicalHeaderKey(key.Header), Query: key.Query, Field: key.Field}
}

// dropOrphans leaves out what relies on an operation that was left out, until
// nothing does.
func (w *writer) dropOrphans(operations []*manifest.Operation) {
	for dropped := true; dropped; {
		dropped = false
		for _, operation := range operations {
			missing := w.missing(operation)
			if w.why[operation] == "" && missing != "" {
				w.why[operation] = fmt.Sprintf("it relies on the operation %q, which is left out; cure that one", missing)
				delete(w.block.tools, operation.ID)
				dropped = true
			}
		}
	}
}

// missing names an operation that this one needs and the block lacks.
func (w *writer) missing(operation *manifest.Operation) string {
	if operation.Declaration == nil {
		return ""
	}
	for _, id := range []string{operation.Declaration.Reversal, operation.Declaration.Lookup} {
		if _, written := w.block.tools[id]; id != "" && !written {
			return id
		}
	}
	return ""
}

func (w *writer) skipped(operations []*manifest.Operation) []Skipped {
	var skipped []Skipped
	for _, operation := range operations {
		if why := w.why[operation]; why != "" {
			skipped = append(skipped, Skipped{Method: operation.Method, Path: operation.Path, Why: why})
		}
	}
	slices.SortStableFunc(skipped, func(a, b Skipped) int { return cmp.Compare(a.Path, b.Path) })
	return skipped
}
