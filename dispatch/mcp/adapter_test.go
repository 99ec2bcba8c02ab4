package mcp_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/mcp"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/docblock"
)

func TestBadConfigurationIsRefusedByFieldName(t *testing.T) {
	t.Parallel()
	const url = "{url: 'https://mcp.example.com'}"
	dispatchtest.Refuses(t, mcp.Kind(), dispatchtest.Mistakes{
		"neither":                {"{}", "{}", "set url or command"},
		"both":                   {"{url: 'https://h', command: [x]}", "{}", "set one of"},
		"ftp":                    {"{url: 'ftp://canary'}", "{}", "neither http nor https"},
		"no host":                {"{url: 'https:///canary'}", "{}", "no host"},
		"userinfo":               {"{url: 'https://u:canary@h'}", "{}", "credentials"},
		"fragment":               {"{url: 'https://h/#canary'}", "{}", "fragment"},
		"unparsable":             {"{url: 'https://h:canary'}", "{}", "not a URL"},
		"env of a url":           {"{url: 'https://h', env: {A: canary}}", "{}", "env"},
		"headers of a command":   {"{command: [x], headers: {A: canary}}", "{}", "headers"},
		"empty program":          {"{command: ['']}", "{}", "command"},
		"env name":               {"{command: [x], env: {'A=B': canary}}", "{}", "env"},
		"header newline":         {"{url: 'https://h', headers: {A: \"canary\\n\"}}", "{}", "value of A"},
		"protocol header":        {"{url: 'https://h', headers: {mcp-session-id: canary}}", "{}", "Mcp-Session-Id"},
		"host header":            {"{url: 'https://h', headers: {host: canary}}", "{}", "Host"},
		"reserved meta":          {"{url: 'https://h', idempotency_key: {meta: io.modelcontextprotocol/key}}", "{}", "idempotency_key.meta"},
		"reserved meta, older":   {"{url: 'https://h', idempotency_key: {meta: mcp.dev/key}}", "{}", "idempotency_key.meta"},
		"trace meta":             {"{url: 'https://h', idempotency_key: {meta: traceparent}}", "{}", "idempotency_key.meta"},
		"no meta name":           {"{url: 'https://h', replayed_meta: 'a b/c'}", "{}", "replayed_meta"},
		"negative limit":         {"{url: 'https://h', max_response_body: -1}", "{}", "max_response_body"},
		"no key anywhere":        {"{url: 'https://h', idempotency_key: {meta: none}}", "{}", "key_idempotent"},
		"jq":                     {url, "{arguments: '.canary['}", "arguments"},
		"ref":                    {url, "{response: {ref: '.['}}", "response.ref"},
		"is_error":               {url, "{response: {is_error: completed}}", "is_error"},
		"rule without when":      {url, "{response: {rules: [{outcome: rejected}]}}", "when is missing"},
		"rule outcome":           {url, "{response: {rules: [{when: .is_error, outcome: lost}]}}", "outcome is none of"},
		"rule of a lookup":       {url, "{response: {rules: [{when: .is_error, outcome: absent}]}}", "read_only"},
		"rule matches anything":  {url, "{response: {rules: [{when: '.structured.error == null', outcome: completed}]}}", "every answer"},
		"completed has no error": {url, "{response: {rules: [{when: .is_error, outcome: completed, error: x}]}}", "error"},
		"error is no name":       {url, "{response: {rules: [{when: .is_error, outcome: rejected, error: 'Canary!'}]}}", "error"},
	})
}

func TestARuleMustFitItsTool(t *testing.T) {
	t.Parallel()
	spec := specFor("{url: 'https://h'}", "{response: {rules: [{when: .is_error, outcome: in_flight}]}}", dispatch.NonIdempotent)
	var wrong *dispatch.ToolError
	if _, err := mcp.New(spec); !errors.As(err, &wrong) || wrong.Operation != "act" {
		t.Errorf("in_flight for a non_idempotent tool: %v", err)
	}
	spec = specFor("{url: 'https://h'}", "{}", dispatch.ReadOnly)
	lookup := spec.Tools["act"]
	lookup.AnswersLookups = true
	spec.Tools["act"] = lookup
	if _, err := mcp.New(spec); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a lookup without an absent rule: %v", err)
	}
}

func TestAKeyArgumentIsEnoughForAKey(t *testing.T) {
	t.Parallel()
	spec := specFor("{url: 'https://h', idempotency_key: {meta: none}}", "{key_argument: request_id}", dispatch.KeyIdempotent)
	if _, err := mcp.New(spec); err != nil {
		t.Error(err)
	}
}

func TestNamesForMeta(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{
		"com.example/key": true, "com.example.mcp/key": true, "idempotencyKey": true, "a-b.c-d/e_f.g": true,
		"/key": false, "com..example/key": false, "1com/key": false, "com.example/-key": false, "a/b/c": false, "com.example/": false,
		"com.mcp.tools/key": false, "dev.mcp/key": false, "modelcontextprotocol.io/key": false, "progressToken": false,
	} {
		_, err := mcp.New(specFor("{url: 'https://h', idempotency_key: {meta: '"+name+"'}}", "{}", dispatch.KeyIdempotent))
		if (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	dispatchtest.ConnectsTo(t, mcp.Kind(), map[string][]dispatch.Destination{
		"url: https://mcp.example/rpc":           {{Network: "tcp", Address: "mcp.example:443", TLS: dispatch.ImplicitTLS}},
		"command: [server, --stdio]":             {{Network: "program", Address: "server"}},
		"{command: [./server], directory: /opt}": {{Network: "program", Address: "/opt/server"}},
	})
}

// This test runs the server that the documentation shows.
func TestTheServerOfTheDocumentationChargesOnceAKey(t *testing.T) {
	t.Parallel()
	db := drainertest.Connect(t, drainertest.EmptyDatabase(t))
	drainertest.Exec(t, db, docblock.First(t, "docs/adapters/mcp.md", "sql"))
	e := startEndpoint(t, endpointOptions{})
	e.server = newServer(charge(db))
	adapter := e.adapter(t, "{response: {ref: .structured.id}}", dispatch.KeyIdempotent)
	first, second := adapter.Dispatch(t.Context(), intent("1")), adapter.Dispatch(t.Context(), intent("1"))
	if first.Outcome != dispatch.Completed || first.ProviderRef != "1" || first.Replayed {
		t.Errorf("first %+v", first)
	}
	if second.Outcome != dispatch.Completed || second.ProviderRef != "1" || !second.Replayed {
		t.Errorf("second %+v", second)
	}
	other := intent("1")
	other.Payload = json.RawMessage(`{"amount":2}`)
	if got := adapter.Dispatch(t.Context(), other); got.Outcome != dispatch.Rejected {
		t.Errorf("other arguments %+v", got)
	}
	if charges := drainertest.Value[int](t, db, "SELECT count(*) FROM charge"); charges != 1 {
		t.Errorf("%d charges", charges)
	}
}
