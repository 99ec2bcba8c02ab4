package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/jq"
)

// tool is Tool, checked and compiled.
type tool struct {
	provider    *provider
	method      string
	path        path
	query       map[string]render.Template
	headers     map[string]render.Template
	body        encoding
	mapping     *jq.Expression // nil sends the payload as it is
	readsIntent bool           // for any of the four above
	address     *url.URL       // where all intents go; nil where each has a place of its own
	fixed       http.Header    // what all intents have, before their own
	reference   *jq.Expression // nil finds no reference
	rules       rules          // the operator's
	isAsked     bool           // whether an effect happened
}

var (
	methods         = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
	bodylessMethods = []string{"GET", "HEAD", "DELETE"}
	noBodyAllowed   = []string{"GET", "HEAD"}
)

// newTool reports every problem of the block, joined. provider is nil where
// its own block was wrong.
func newTool(provider *provider, spec dispatch.ToolSpec) (*tool, error) {
	var block Tool
	if err := blocks.Decode(spec.Settings, &block); err != nil {
		return nil, err
	}
	t := &tool{provider: provider, method: block.Method, isAsked: spec.AnswersLookups}
	if t.method == "" {
		t.method = http.MethodPost
	}
	err := errors.Join(
		t.compilePath(block.Path),
		t.compileTemplates(block),
		t.compileBody(block, spec.Class),
		t.compileResponse(block.Response, spec.Class),
		t.checkKey(spec),
	)
	t.readsIntent = t.mapping != nil || t.isAddressed() || hasValue(slices.Collect(maps.Values(t.headers)))
	return t, err
}

func hasValue(templates []render.Template) bool {
	return slices.ContainsFunc(templates, render.Template.HasValue)
}

func (t *tool) compilePath(text string) (err error) {
	if t.path, err = parsePath(text); err != nil {
		return fmt.Errorf("path: %w", err)
	}
	return nil
}

func (t *tool) compileTemplates(block Tool) error {
	var problems []error
	if t.provider != nil {
		for _, name := range sortedKeys(block.Headers) {
			problems = append(problems, t.provider.checkHeaderName(name))
		}
		if _, taken := block.Query[t.provider.key.query]; taken && t.provider.key.query != "" {
			problems = append(problems, errors.New("query: a parameter carries the idempotency key"))
		}
	}
	query, queryErr := parseTemplates("query", block.Query)
	headers, headersErr := parseTemplates("headers", block.Headers)
	t.query, t.headers = query, headers
	return errors.Join(append(problems, queryErr, headersErr)...)
}

func parseTemplates(field string, texts map[string]string) (map[string]render.Template, error) {
	parsed := make(map[string]render.Template, len(texts))
	var problems []error
	for _, name := range sortedKeys(texts) {
		template, err := render.ParseTemplate(texts[name])
		if err != nil {
			problems = append(problems, fmt.Errorf("%s.%s: %w", field, name, err))
		}
		parsed[name] = template
	}
	return parsed, errors.Join(problems...)
}

func (t *tool) compileBody(block Tool, class dispatch.Class) error {
	var problems []error
	if !slices.Contains(methods, t.method) {
		problems = append(problems, fmt.Errorf("method is none of %s", strings.Join(methods, ", ")))
	}
	name := block.Body
	if name == "" {
		name = "json"
		if slices.Contains(bodylessMethods, t.method) {
			name = "none"
		}
	}
	body, known := encodings[name]
	switch {
	case !known:
		problems = append(problems, errors.New("body is none of json, form and none"))
	case name != "none" && slices.Contains(noBodyAllowed, t.method):
		problems = append(problems, fmt.Errorf("body: a %s request has none", t.method))
	case name == "none" && block.Map != "":
		problems = append(problems, errors.New("map makes a body, but body is none"))
	case name == "none" && class == dispatch.KeyIdempotent && t.provider != nil && t.provider.key.field != "":
		problems = append(problems, errors.New("body is none, but idempotency_key.field puts the key into the body"))
	}
	mapping, err := optional("map", block.Map)
	t.body, t.mapping = body, mapping
	return errors.Join(append(problems, err)...)
}

func optional(field, source string) (*jq.Expression, error) {
	if source == "" {
		return nil, nil
	}
	compiled, err := jq.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return compiled, nil
}

func (t *tool) compileResponse(block Response, class dispatch.Class) error {
	reference, refErr := optional("response.ref", block.Ref)
	rules, rulesErr := compileRules(block.Rules, class)
	t.reference, t.rules = reference, rules
	return errors.Join(refErr, rulesErr, t.checkAnswers())
}

// checkAnswers keeps a lookup from taking an empty list for an effect.
func (t *tool) checkAnswers() error {
	if t.isAsked && !slices.ContainsFunc(t.rules, func(r rule) bool { return r.outcome == dispatch.Absent }) {
		return errors.New("response.rules: this tool answers lookups, so it must say what finding nothing looks like; add a rule with outcome: absent")
	}
	return nil
}

// checkKey holds what the tool promises of its key against what is known of
// the provider.
func (t *tool) checkKey(spec dispatch.ToolSpec) error {
	switch {
	case t.provider == nil || spec.Class != dispatch.KeyIdempotent:
		return nil
	case !t.provider.key.isSent():
		return errors.New("the class is key_idempotent, but the provider's profile knows no keys; choose another class, or say with idempotency_key where the key goes")
	case t.provider.keyTTL > 0 && spec.KeyTTL > t.provider.keyTTL:
		return fmt.Errorf("idempotency.ttl is longer than the %s for which the provider's profile vouches; a retry after that could act twice", t.provider.keyTTL)
	}
	return nil
}

// render makes the request that every attempt of the intent sends alike, but
// for a signature.
func (t *tool) render(ctx context.Context, request dispatch.Request) (*http.Request, error) {
	input, err := t.input(request)
	if err != nil {
		return nil, err
	}
	key := t.provider.key.format(request.IdempotencyKey)
	target, err := t.target(ctx, input, key)
	if err != nil {
		return nil, err
	}
	header, err := t.header(ctx, input, request, key)
	if err != nil {
		return nil, err
	}
	body, err := t.write(ctx, input, request.Payload, key)
	if err != nil {
		return nil, err
	}
	if t.provider.sign != nil {
		t.provider.sign(header, body)
	}
	rendered := (&http.Request{Method: t.method, URL: target, Host: target.Host, Header: header}).WithContext(ctx)
	if len(body) > 0 {
		// No GetBody: without it the transport cannot send the body twice.
		rendered.Body = io.NopCloser(bytes.NewReader(body))
		rendered.ContentLength = int64(len(body))
	}
	return rendered, nil
}

// input is decoded for expressions alone: most tools have none.
func (t *tool) input(request dispatch.Request) (any, error) {
	if !t.readsIntent {
		return nil, nil
	}
	return render.Input(request)
}

func (t *tool) target(ctx context.Context, input any, key string) (*url.URL, error) {
	if t.address != nil {
		return t.address, nil
	}
	target, err := t.path.below(ctx, t.provider.base, input)
	if err != nil {
		return nil, err
	}
	query := url.Values{}
	for name, template := range t.query {
		value, err := template.Render(ctx, input, render.AsIs)
		if err != nil {
			return nil, err
		}
		query.Set(name, value)
	}
	if t.provider.key.query != "" {
		query.Set(t.provider.key.query, key)
	}
	target.RawQuery = query.Encode()
	return target, nil
}

func (t *tool) header(ctx context.Context, input any, request dispatch.Request, key string) (http.Header, error) {
	header := maps.Clone(t.fixed)
	for name, value := range render.TraceContext(request.Headers) {
		if header.Values(name) == nil {
			header.Set(name, value)
		}
	}
	for name, template := range t.headers {
		value, err := template.Render(ctx, input, headerValue)
		if err != nil {
			return nil, err
		}
		header.Set(name, value)
	}
	if t.provider.key.header != "" {
		header.Set(t.provider.key.header, key)
	}
	if t.provider.key.tuple {
		header.Set(tupleHeader, tupleOf(request.Tuple))
	}
	return header, nil
}

func headerValue(text string) (string, error) {
	if !validHeaderValue(text) {
		return "", errors.New("a header value holds a control character")
	}
	return text, nil
}

func (t *tool) write(ctx context.Context, input any, payload []byte, key string) ([]byte, error) {
	var mapped *any
	if t.mapping != nil {
		value, err := t.mapping.Eval(ctx, input)
		if err != nil {
			return nil, err
		}
		mapped = &value
	}
	return t.body.encode(payload, mapped, field{t.provider.key.field, key})
}
