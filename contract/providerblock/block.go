// Package providerblock writes the configuration of a provider from what its
// OpenAPI document declares.
//
//	manifest.Document ──From──▶ tools that can be sent as declared ──YAML──▶ drainer.yaml
//	                     └────▶ operations that cannot, each with the reason
//
// Nothing is guessed: an operation with a violation, or with something that
// the HTTP adapter cannot send, is left out, and so is whatever needs it.
package providerblock

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	nethttp "net/http"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/contract/manifest"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/http"
)

// unknownServer can never be reached (RFC 2606), so that a forgotten
// placeholder sends nothing.
const unknownServer = "https://base-url.invalid"

// Block is one provider of a configuration file.
type Block struct {
	name     string
	settings http.Settings
	tools    map[string]tool

	unsaid []string // what a person must add, a sentence each
}

// What follows is the shape of the file that drainer/config reads.

type file struct {
	Version   int                 `yaml:"version"`
	Providers map[string]provider `yaml:"providers"`
}

type provider struct {
	Adapter string          `yaml:"adapter"`
	HTTP    http.Settings   `yaml:"http"`
	Tools   map[string]tool `yaml:"tools"`
}

type tool struct {
	HTTP           http.Tool     `yaml:"http"`
	Idempotency    idempotency   `yaml:"idempotency,flow"`
	Lookup         *lookup       `yaml:"lookup,omitempty,flow"`
	CompensateWith *compensation `yaml:"compensate_with,omitempty,flow"`
	ReversalWindow string        `yaml:"reversal_window,omitempty"`
	Retention      string        `yaml:"retention,omitempty"`
}

type idempotency struct {
	Class dispatch.Class `yaml:"class"`
	TTL   string         `yaml:"ttl,omitempty"`
	Scope string         `yaml:"scope,omitempty"`
}

type lookup struct {
	Tool string `yaml:"tool"`
}

type compensation struct {
	Tool string `yaml:"tool"`
}

// Empty reports whether no operation could be taken over.
func (b *Block) Empty() bool { return len(b.tools) == 0 }

// YAML writes a whole configuration file with this one provider.
func (b *Block) YAML() ([]byte, error) {
	content, err := yaml.MarshalWithOptions(file{
		Version:   1,
		Providers: map[string]provider{b.name: {Adapter: "http", HTTP: b.settings, Tools: b.tools}},
	}, yaml.Indent(2))
	if err != nil {
		return nil, fmt.Errorf("writing the provider block: %w", err)
	}
	var text bytes.Buffer
	for _, line := range b.remarks() {
		text.WriteString("# " + line + "\n")
	}
	text.Write(content)
	return text.Bytes(), nil
}

func (b *Block) ask(format string, args ...any) {
	b.unsaid = append(b.unsaid, fmt.Sprintf(format, args...))
}

// remarks say what the document does not.
func (b *Block) remarks() []string {
	remarks := []string{
		"Add the credentials (http.headers), and where a response holds the provider's own",
		"id of the effect (http.response.ref of a tool). No document says either.",
	}
	if b.settings.BaseURL == unknownServer {
		remarks = append(remarks, "Replace base_url: the document names no absolute server.")
	}
	return append(remarks, b.unsaid...)
}

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
