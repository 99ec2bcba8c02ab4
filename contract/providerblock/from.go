package providerblock

import (
	"cmp"
	"fmt"
	nethttp "net/http"
	"slices"
	"strings"

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
		lookups:  lookupsOf(document),
		why:      map[*manifest.Operation]string{},
	}
	operations := w.wanted()
	w.placeKey(operations)
	for _, operation := range operations {
		if err := w.add(operation); err != nil {
			w.why[operation] = err.Error()
		}
	}
	w.dropOrphans(operations)
	w.block.dropReversals()
	return w.block, w.skipped(operations)
}

// writer fills a block; why holds the reason for each operation left out.
type writer struct {
	document *manifest.Document
	block    *Block
	lookups  map[*manifest.Operation]bool
	why      map[*manifest.Operation]string
}

// lookupsOf are the operations that others are looked up with.
func lookupsOf(document *manifest.Document) map[*manifest.Operation]bool {
	lookups := map[*manifest.Operation]bool{}
	for _, operation := range document.Operations {
		if operation.Declaration == nil {
			continue
		}
		if lookup := document.Find(operation.Declaration.Lookup); lookup != nil {
			lookups[lookup] = true
		}
	}
	return lookups
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
	var wanted []*manifest.Operation
	for _, operation := range w.document.Operations {
		if operation.Declaration != nil || operation.Writes() || w.lookups[operation] {
			wanted = append(wanted, operation)
		}
	}
	return wanted
}

// placeKey takes over where the first operation that has a key sends it, and
// how that one marks a replay: a provider has one place for all its tools.
func (w *writer) placeKey(operations []*manifest.Operation) {
	for _, operation := range operations {
		if len(operation.Violations) > 0 || operation.Declaration == nil || operation.Declaration.Class != dispatch.KeyIdempotent {
			continue
		}
		settings := w.block.settings
		settings.IdempotencyKey = keySettings(operation.Declaration.Key)
		settings.ReplayHeader = replayHeader(operation.Declaration.Replay)
		if accepts(settings, nil) == nil {
			w.block.settings = settings
			return
		}
	}
}

// replayHeader is the marker to look for. The adapter knows two by itself, and
// understands no other value than true.
func replayHeader(marker manifest.Marker) string {
	name := nethttp.CanonicalHeaderKey(marker.Header)
	if name == "Idempotency-Replay" || name == "Idempotent-Replayed" || !strings.EqualFold(marker.Value, "true") {
		return ""
	}
	return name
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
