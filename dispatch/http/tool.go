package http

import (
	"bytes"
	"cmp"
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
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/rules"
	"github.com/agentoutbox/drainer/internal/jq"
	"golang.org/x/net/http/httpguts"
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
	readsIntent bool           // an expression needs the decoded intent as its input
	isAddressed bool           // the URL depends on the intent
	address     *url.URL       // the URL of all intents; nil if it depends on the intent or the key
	fixed       http.Header    // the headers that all intents share
	reading     rules.Reading  // how its responses are understood
}

var (
	methods         = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
	bodylessMethods = []string{"GET", "HEAD", "DELETE"}
	noBodyAllowed   = []string{"GET", "HEAD"}
)

// newTool reports every problem of the block, joined. provider is nil if its own block cannot be read.
func newTool(provider *provider, spec dispatch.ToolSpec) (*tool, error) {
	var block Tool
	if err := adapter.Decode(spec.Settings, &block); err != nil {
		return nil, err
	}
	t := &tool{provider: provider, method: cmp.Or(block.Method, http.MethodPost)}
	var problems [4]error
	if t.path, problems[0] = parsePath(block.Path); problems[0] != nil {
		problems[0] = fmt.Errorf("path: %w", problems[0])
	}
	t.query, problems[1] = parseTemplates("query", block.Query)
	t.headers, problems[2] = parseTemplates("headers", block.Headers)
	t.reading, problems[3] = rules.NewReading(block.Response.Ref, ruleSettings(block.Response.Rules), spec, bareAnswers...)
	hasValue := func(templates map[string]render.Template) bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(templates)), render.Template.HasValue)
	}
	t.isAddressed = slices.ContainsFunc(t.path, render.Template.HasValue) || hasValue(t.query)
	err := errors.Join(errors.Join(problems[:3]...), t.compileBody(block, spec.Class), problems[3], t.checkKey(block, spec))
	t.readsIntent = t.mapping != nil || t.isAddressed || hasValue(t.headers)
	return t, err
}

// prepare computes once the headers and the URL that all intents of the tool share. The provider's headers override
// the default ones. The provider must have been checked before.
func (t *tool) prepare() {
	t.fixed = http.Header{"User-Agent": {"drainer"}}
	if t.body.contentType != "" {
		t.fixed.Set("Content-Type", t.body.contentType)
	}
	maps.Copy(t.fixed, t.provider.headers)
	if !t.isAddressed && t.provider.key.query == "" {
		t.address, _ = t.target(context.Background(), nil, "") // after an error, render makes the URL for each intent and fails there
	}
}

func parseTemplates(field string, texts map[string]string) (map[string]render.Template, error) {
	parsed := make(map[string]render.Template, len(texts))
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(texts)) {
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
	mapping, err := render.Expression("map", block.Map)
	t.body, t.mapping = body, mapping
	return errors.Join(append(problems, err)...)
}

// checkKey checks that the provider can keep the tool's promise about the key, and that the tool sets no header or
// parameter that the adapter sets.
func (t *tool) checkKey(block Tool, spec dispatch.ToolSpec) error {
	if t.provider == nil {
		return nil
	}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(block.Headers)) {
		problems = append(problems, t.provider.checkHeaderName(name))
	}
	key := t.provider.key
	if _, taken := block.Query[key.query]; taken && key.query != "" {
		problems = append(problems, errors.New("query: a parameter carries the idempotency key"))
	}
	switch {
	case spec.Class != dispatch.KeyIdempotent:
	case key.header == "" && key.query == "" && key.field == "":
		problems = append(problems, errors.New("the class is key_idempotent, but the provider's profile knows no keys; choose another class, or say with idempotency_key where the key goes"))
	case t.provider.keyTTL > 0 && spec.KeyTTL > t.provider.keyTTL:
		problems = append(problems, fmt.Errorf("idempotency.ttl is longer than the %s for which the provider's profile vouches; a retry after that could act twice", t.provider.keyTTL))
	}
	return errors.Join(problems...)
}

// render makes the request. Every attempt of an intent sends the same request, except for a signature.
func (t *tool) render(ctx context.Context, request dispatch.Request) (*http.Request, error) {
	var input any
	var err error
	if t.readsIntent { // most tools have no expressions
		if input, err = render.Input(request); err != nil {
			return nil, err
		}
	}
	key := t.provider.key.format(request.IdempotencyKey)
	target := t.address
	if target == nil {
		if target, err = t.target(ctx, input, key); err != nil {
			return nil, err
		}
	}
	header, err := t.header(ctx, input, request, key)
	if err != nil {
		return nil, err
	}
	var mapped *any
	if t.mapping != nil {
		value, err := render.Value(ctx, "map", t.mapping, input)
		if err != nil {
			return nil, err
		}
		mapped = &value
	}
	body, err := t.body.encode(request.Payload, mapped, field{t.provider.key.field, key})
	if err != nil {
		return nil, render.Because("body", err)
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

func (t *tool) target(ctx context.Context, input any, key string) (*url.URL, error) {
	target, err := t.path.below(ctx, t.provider.base, input)
	if err != nil {
		return nil, err
	}
	query := url.Values{}
	for name, template := range t.query {
		value, err := template.Render(ctx, input, render.AsIs)
		if err != nil {
			return nil, render.In("query."+name, err)
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
		value, err := template.Render(ctx, input, render.AsIs)
		if err != nil {
			return nil, render.In("headers."+name, err)
		}
		if !httpguts.ValidHeaderFieldValue(value) {
			return nil, render.Because("headers."+name, errors.New("a header value holds a control character"))
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
