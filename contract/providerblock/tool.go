package providerblock

import (
	"encoding/json"
	"errors"
	"fmt"
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
	query := without(operation.Required("query"), func(name string) bool { return name == key.Query })
	headers := without(operation.Required("header"), func(name string) bool { return isOurs(name, key.Header) })
	request := http.Tool{
		Method:  operation.Method,
		Path:    pathTemplate(operation.Path),
		Query:   templates(query),
		Headers: templates(headers),
		Body:    body,
	}
	if contentType != "" {
		request.Headers = merge(request.Headers, "Content-Type", contentType)
	}
	if body == "json" || body == "form" {
		elsewhere := slices.Concat(pathParameters(operation.Path), query, headers)
		request.Map = withoutFields(without(elsewhere, operation.HasField))
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

func without(names []string, unwanted func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(names), unwanted)
}

func merge(headers map[string]string, name, value string) map[string]string {
	merged := map[string]string{name: value}
	for other, template := range headers {
		merged[other] = template
	}
	return merged
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
