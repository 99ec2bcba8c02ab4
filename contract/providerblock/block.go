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
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	nethttp "net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/contract/manifest"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/internal/duration"
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
	var wanted []*manifest.Operation
	for _, operation := range w.document.Operations {
		isLookup := slices.ContainsFunc(w.document.Operations, func(other *manifest.Operation) bool {
			return other.Declaration != nil && operation.ID != "" && other.Declaration.Lookup == operation.ID
		})
		if operation.Declaration != nil || operation.Writes() || isLookup {
			wanted = append(wanted, operation)
		}
	}
	return wanted
}

// placeKey takes over where the first operation that has a key sends it: a provider has one
// place for all its tools. So it has one marker of a replay beside the two that are in common use.
func (w *writer) placeKey(operations []*manifest.Operation) {
	for _, operation := range operations {
		if len(operation.Violations) > 0 || operation.Declaration == nil || operation.Declaration.Class != dispatch.KeyIdempotent {
			continue
		}
		settings := w.block.settings
		key := keySettings(operation.Declaration.Key)
		settings.IdempotencyKey = cmp.Or(settings.IdempotencyKey, key)
		settings.ReplayHeader = cmp.Or(settings.ReplayHeader, replayHeader(operation.Declaration.Replay))
		if settings.IdempotencyKey == key && accepts(settings, nil) == nil {
			w.block.settings = settings
		}
	}
}

// seesReplays reports whether the adapter recognises an operation's marker of a replay: it
// understands no other value than true.
func (w *writer) seesReplays(marker manifest.Marker) bool {
	return marker.Header == "" || strings.EqualFold(marker.Value, "true") &&
		slices.Contains([]string{"", w.block.settings.ReplayHeader}, replayHeader(marker))
}

// replayHeader is the marker to look for. The adapter knows two by itself.
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

// add puts an operation into the block, or says why it cannot.
func (w *writer) add(operation *manifest.Operation) error {
	if err := checkOperation(operation); err != nil {
		return err
	}
	if err := w.checkKey(operation); err != nil {
		return err
	}
	request, err := requestOf(operation, w.block.settings.IdempotencyKey)
	if err != nil {
		return err
	}
	request.Response.Rules = rulesOf(operation.Declaration)
	written := w.toolOf(operation, request)
	if err := w.checkTool(operation.ID, written); err != nil {
		return err
	}
	if operation.Declaration != nil && !w.seesReplays(operation.Declaration.Replay) {
		w.block.ask("Replays of %s are not seen: its marker is another header than http.replay_header, or has another value than true.", operation.ID)
	}
	w.block.tools[operation.ID] = written
	return nil
}

func checkOperation(operation *manifest.Operation) error {
	switch {
	case len(operation.Violations) > 0:
		return fmt.Errorf("drainer verify manifest finds violations in it: %d", len(operation.Violations))
	case operation.ID == "":
		return errors.New("it has no operationId, which names the tool; add one")
	case operation.HasServer:
		return errors.New("it has a server of its own, but a provider has one; configure it as a provider by itself")
	case len(operation.Required("cookie")) > 0:
		return errors.New("it requires a cookie, which drainer does not send")
	}
	return nil
}

// checkKey keeps the one key place of the provider from misleading a tool that
// has another, or whose body has no room for it.
func (w *writer) checkKey(operation *manifest.Operation) error {
	place := w.block.settings.IdempotencyKey
	if operation.Declaration != nil && operation.Declaration.Class == dispatch.KeyIdempotent {
		if keySettings(operation.Declaration.Key) != place {
			return errors.New("its key goes elsewhere than that of the others, but a provider has one place; configure it as a provider by itself")
		}
		return nil
	}
	if place.Field != "" && len(operation.MediaTypes()) > 0 && !operation.HasField(place.Field) {
		return errors.New("its body would carry the provider's key field, which it does not document; configure it as a provider by itself")
	}
	return nil
}

// usualRetention is how long a drainer keeps intents that have no
// retention, which must cover the life of their keys.
const usualRetention = 90 * duration.Day

func (w *writer) toolOf(operation *manifest.Operation, request http.Tool) tool {
	written := tool{HTTP: request, Idempotency: idempotency{Class: dispatch.ReadOnly}}
	declaration := operation.Declaration
	if declaration == nil {
		return written
	}
	written.Idempotency.Class = declaration.Class
	if declaration.Class == dispatch.KeyIdempotent {
		written.Idempotency.TTL, written.Idempotency.Scope = duration.Format(declaration.TTL), declaration.Scope
	}
	if declaration.TTL > usualRetention {
		written.Retention = duration.Format(declaration.TTL)
	}
	switch {
	case declaration.Lookup == "":
	case w.answers(declaration.Lookup):
		written.Lookup = &lookup{Tool: declaration.Lookup}
	default:
		w.block.ask("Give %s its lookup: the operation that the document names does not say when nothing was found (absent).", operation.ID)
	}
	if declaration.Reversal != "" {
		written.CompensateWith = &compensation{Tool: w.block.name + "/" + declaration.Reversal}
	}
	if declaration.ReversalWindow != 0 {
		written.ReversalWindow = duration.Format(declaration.ReversalWindow)
	}
	return written
}

// answers reports whether an operation can show that an effect never happened. One
// that cannot is no lookup: an empty list would be taken for the effect.
func (w *writer) answers(id string) bool {
	lookup := w.document.Find(id)
	return lookup != nil && lookup.Declaration != nil && lookup.Declaration.Absent != ""
}

// rulesOf reads the assertions that look beyond the status code.
func rulesOf(declaration *manifest.Declaration) []http.Rule {
	switch {
	case declaration == nil:
		return nil
	case declaration.Absent != "":
		return []http.Rule{{When: declaration.Absent, Outcome: string(dispatch.Absent)}}
	case declaration.InFlightStatus == 0 || declaration.InFlightStatus == declaration.ConflictStatus:
		return nil
	}
	return []http.Rule{{
		When:    fmt.Sprintf(".status == %d", declaration.InFlightStatus),
		Outcome: string(dispatch.InFlight),
		Error:   "key_in_flight",
	}}
}

// checkTool asks the adapter itself whether it can send the tool. A document
// must not make a configuration read a secret, either.
func (w *writer) checkTool(id string, written tool) error {
	text, err := yaml.Marshal(map[string]tool{id: written})
	if err != nil {
		return fmt.Errorf("it cannot be written: %w", err)
	}
	if strings.Contains(string(text), "${") {
		return errors.New("it holds ${, which a configuration reads as a secret; rename what does")
	}
	return accepts(w.block.settings, map[string]dispatch.ToolSpec{id: {Class: written.Idempotency.Class, Settings: value[http.Tool]{written.HTTP}}})
}

// accepts reports what the adapter has against a configuration.
func accepts(settings http.Settings, tools map[string]dispatch.ToolSpec) error {
	if text, err := yaml.Marshal(settings); err != nil || strings.Contains(string(text), "${") {
		return errors.New("it holds ${, which a configuration reads as a secret")
	}
	adapter, err := http.New(dispatch.Spec{Settings: value[http.Settings]{settings}, Tools: tools})
	if err != nil {
		return fmt.Errorf("drainer cannot send it: %w", err)
	}
	return adapter.Close()
}

// value is a block of configuration that was never text.
type value[T any] struct{ it T }

// Decode hands the value over.
func (v value[T]) Decode(into any) error {
	target, ok := into.(*T)
	if !ok {
		return fmt.Errorf("a block of %T is not one of %T", v.it, into)
	}
	*target = v.it
	return nil
}

// requestOf describes the call: the payload holds every required parameter by
// its name, and beside them the fields of the body.
func requestOf(operation *manifest.Operation, key http.KeySettings) (http.Tool, error) {
	body, contentType, err := bodyOf(operation)
	if err != nil {
		return http.Tool{}, err
	}
	query := slices.DeleteFunc(operation.Required("query"), func(name string) bool { return name == key.Query })
	headers := slices.DeleteFunc(operation.Required("header"), func(name string) bool { return isOurs(name, key.Header) })
	request := http.Tool{
		Method:  operation.Method,
		Path:    pathTemplate(operation.Path),
		Query:   templates(query),
		Headers: templates(headers),
		Body:    body,
	}
	if contentType != "" {
		request.Headers["Content-Type"] = contentType
	}
	if body == "json" || body == "form" {
		elsewhere := slices.Concat(pathParameters(operation.Path), query, headers)
		request.Map = withoutFields(slices.DeleteFunc(elsewhere, operation.HasField))
	}
	return request, nil
}

// isOurs reports a header that no payload fills: the key, and those that
// OpenAPI says are described elsewhere.
func isOurs(name, key string) bool {
	return slices.Contains([]string{key, "Accept", "Content-Type", "Authorization"}, nethttp.CanonicalHeaderKey(name))
}

// bodyOf chooses how the body is written, and its Content-Type where that is
// not what drainer sends by itself.
func bodyOf(operation *manifest.Operation) (body, contentType string, err error) {
	types := operation.MediaTypes()
	json := slices.IndexFunc(types, manifest.IsJSON)
	switch {
	case len(types) == 0:
		return "none", "", nil
	case slices.ContainsFunc(types, isPlainJSON):
		return "json", "", nil
	case slices.ContainsFunc(types, manifest.IsForm):
		return "form", "", nil
	case json >= 0:
		return "json", types[json], nil
	}
	return "", "", errors.New("its body is neither JSON nor a form; drainer writes no other")
}

func isPlainJSON(media string) bool {
	return manifest.IsJSON(media) && !strings.Contains(media, "+")
}

var (
	placeholder = regexp.MustCompile(`\{([^{}]*)\}`)
	identifier  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// pathTemplate turns OpenAPI's {id} into the adapter's {.payload.id}.
func pathTemplate(path string) string {
	var template strings.Builder
	end := 0
	for _, at := range placeholder.FindAllStringSubmatchIndex(path, -1) {
		template.WriteString(literal(path[end:at[0]]) + fromPayload(path[at[2]:at[3]]))
		end = at[1]
	}
	return template.String() + literal(path[end:])
}

func literal(text string) string {
	return strings.NewReplacer("{", "{{", "}", "}}").Replace(text)
}

func pathParameters(path string) []string {
	var names []string
	for _, match := range placeholder.FindAllStringSubmatch(path, -1) {
		names = append(names, match[1])
	}
	return names
}

func templates(names []string) map[string]string {
	filled := make(map[string]string, len(names))
	for _, name := range names {
		filled[name] = fromPayload(name)
	}
	return filled
}

func fromPayload(name string) string { return "{.payload" + index(name) + "}" }

// withoutFields is the payload less what goes elsewhere; empty where all of it
// is the body, which is then sent byte for byte.
func withoutFields(names []string) string {
	if len(names) == 0 {
		return ""
	}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = "." + strings.TrimPrefix(index(name), ".")
	}
	return ".payload | del(" + strings.Join(paths, ", ") + ")"
}

// index is jq for a field: .id, or ["charge-id"] for what is no identifier.
func index(name string) string {
	if identifier.MatchString(name) {
		return "." + name
	}
	quoted, err := json.Marshal(name)
	if err != nil {
		return "." // marshalling a string does not fail
	}
	return "[" + string(quoted) + "]"
}
