// Package providerblock writes the configuration of a provider from the declarations of its
// OpenAPI document.
//
//	manifest.Document ──From──▶ tools that can be sent as declared ──YAML──▶ drainer.yaml
//	                     └────▶ operations that cannot, each with the reason
//
// It guesses nothing. It leaves out an operation with a violation, an operation that the HTTP
// adapter cannot send, and the operations that need such an operation.
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

// unknownServer is a placeholder that can never be reached (RFC 2606), so that a configuration in which it was
// forgotten sends nothing.
const unknownServer = "https://base-url.invalid"

// Block is one provider of a configuration file.
type Block struct {
	name     string
	settings http.Settings
	tools    map[string]tool

	unsaid []string // sentences about settings that a person must add
}

// The following types have the form of the file that drainer/config reads.

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

// Empty reports whether the block has no operation.
func (b *Block) Empty() bool { return len(b.tools) == 0 }

// YAML returns a whole configuration file with only this provider.
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

// remarks returns sentences about settings that the document does not contain.
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
	Why          string // the reason, with a remedy
}

// From makes a block of an OpenAPI document: of each operation with the extension, and of each operation that
// another one names as its lookup. The skipped operations are in the order of the document.
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

// writer fills a block. why holds the reason for each operation that it leaves out.
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

// wanted lists the operations that an agent may call, and those that they name as lookups. It includes writes without
// a declaration, so that they are reported as skipped.
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

// placeKey sets the provider's place for keys to the place of the first operation with a key: a provider has one place
// for all its tools. In the same way it sets the replay marker, of which a provider has one besides the two common ones.
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

// seesReplays reports whether the adapter recognises an operation's replay marker. The adapter accepts only the value
// true.
func (w *writer) seesReplays(marker manifest.Marker) bool {
	return marker.Header == "" || strings.EqualFold(marker.Value, "true") &&
		slices.Contains([]string{"", w.block.settings.ReplayHeader}, replayHeader(marker))
}

// replayHeader returns the setting for a replay marker. It is empty for the two markers that the adapter knows, and for
// a marker that the adapter cannot recognise.
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

// dropOrphans leaves out operations that need an operation that is left out, until there are no more.
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

// missing returns the id of an operation that this one needs and that the block lacks, or "".
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

// dropReversals removes reversals that drainer refuses: operations that cannot be repeated safely, and operations that
// undo each other in a circle.
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

// add adds an operation to the block. Its error says why that is not possible.
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

// checkKey refuses an operation whose key has another place than the provider's, and one whose body does not document the
// provider's key field.
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

// usualRetention is how long drainer keeps intents of a tool without a retention. A retention must not be
// shorter than the TTL of the keys.
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

// answers reports whether an operation can prove that an effect never happened. Without absent it cannot be a lookup,
// since an empty list would be taken for the effect.
func (w *writer) answers(id string) bool {
	lookup := w.document.Find(id)
	return lookup != nil && lookup.Declaration != nil && lookup.Declaration.Absent != ""
}

// rulesOf returns the adapter's rules for absent and for in_flight_status.
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

// checkTool returns an error if the adapter cannot send the tool, or if the document's text would make the configuration
// read a secret.
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

// accepts returns the adapter's error for a configuration.
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

// value is a block of configuration that exists as a value and not as text.
type value[T any] struct{ it T }

// Decode stores the value in into, which must be a pointer to its type.
func (v value[T]) Decode(into any) error {
	target, ok := into.(*T)
	if !ok {
		return fmt.Errorf("a block of %T is not one of %T", v.it, into)
	}
	*target = v.it
	return nil
}

// requestOf returns the adapter's settings for a call. The payload must have each required parameter under its name, and
// the fields of the body beside them.
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

// isOurs reports whether drainer sets a header: the key's header, and those that OpenAPI describes elsewhere than in the
// parameters.
func isOurs(name, key string) bool {
	return slices.Contains([]string{key, "Accept", "Content-Type", "Authorization"}, nethttp.CanonicalHeaderKey(name))
}

// bodyOf chooses the format of the body. contentType is empty if the format's usual Content-Type is right.
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

// withoutFields returns a jq expression for the payload without the fields that are sent elsewhere. It is empty if there
// are none. Then the whole payload is the body and is sent byte for byte.
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

// index returns the jq path of a field: .id, or ["charge-id"] if the name is not an identifier.
func index(name string) string {
	if identifier.MatchString(name) {
		return "." + name
	}
	quoted, err := json.Marshal(name)
	if err != nil {
		return "." // never: marshalling a string does not fail
	}
	return "[" + string(quoted) + "]"
}
