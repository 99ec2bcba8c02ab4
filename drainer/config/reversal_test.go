package config

import (
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/duration"
)

const keyed = "idempotency: {class: key_idempotent, ttl: 1d, scope: account}"

func TestAnUndoMustBePossible(t *testing.T) {
	t.Parallel()
	mistakes{
		"undo that cannot be repeated": {tools(
			"act: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/undo}}",
			"undo: {fake: {path: /}, idempotency: {class: non_idempotent}}",
		), []string{
			"6:117: providers.p.tools.act.compensate_with.tool: p/undo is non_idempotent without a lookup, so nothing would settle an undo whose answer got lost; give it a lookup, or another class",
		}},
		"undo for what has no effect": {tools(
			"look: {fake: {path: /}, idempotency: {class: read_only}, compensate_with: {tool: p/undo}, compensation: none}",
			"undo: {fake: {path: /}, idempotency: {class: non_idempotent}}",
		), []string{
			"6:64: providers.p.tools.look.compensate_with: a read_only tool has no effect to look up or to undo; leave it out",
			"6:111: providers.p.tools.look.compensation: a read_only tool has no effect to look up or to undo; leave it out",
		}},
		"two tools in a circle": {tools(
			"b: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/a}}",
			"a: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/b}}",
		), []string{
			"7:115: providers.p.tools.a.compensate_with.tool: tools undo each other in a circle: p/a -> p/b -> p/a; end it with compensation: none, because an undo is never undone",
		}},
		"a circle over providers, and what leads into it": {providers(
			"p: {adapter: fake, tools: {a: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/b}}, b: {fake: {path: /}, "+keyed+", compensate_with: {tool: q/c}}}}",
			"q: {adapter: fake, tools: {c: {fake: {path: /}, "+keyed+", compensate_with: {tool: q/d}}, d: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/b}}}}",
		), []string{
			"3:253: providers.p.tools.b.compensate_with.tool: tools undo each other in a circle: p/b -> q/c -> q/d -> p/b; end it with compensation: none, because an undo is never undone",
		}},
		"two circles": {tools(
			"a: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/b}}",
			"b: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/a}}",
			"c: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/d}}",
			"d: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/c}}",
		), []string{
			"6:115: providers.p.tools.a.compensate_with.tool: tools undo each other in a circle: p/a -> p/b -> p/a; end it with compensation: none, because an undo is never undone",
			"8:115: providers.p.tools.c.compensate_with.tool: tools undo each other in a circle: p/c -> p/d -> p/c; end it with compensation: none, because an undo is never undone",
		}},
		"payload that does not compile": {tools(
			"act: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/undo, payload: '{charge: .response.id'}}",
			"undo: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/end, payload: '{at: now}'}}",
			"end: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/act, payload: 5}}",
		), []string{
			"6:117: providers.p.tools.act.compensate_with.tool: tools undo each other in a circle: p/act -> p/undo -> p/end -> p/act; end it with compensation: none, because an undo is never undone",
			"6:134: providers.p.tools.act.compensate_with.payload: jq does not parse at offset 21",
			"7:134: providers.p.tools.undo.compensate_with.payload: jq calls now: its result would depend on the clock",
			"8:133: providers.p.tools.end.compensate_with.payload: want text; put the value in quotes",
		}},
		"payload of what is not there": {tools(
			"act: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/undo, payload: '{wire: .providr_ref, by: .payload.user}'}}",
			"undo: {fake: {path: /}, "+keyed+", compensation: none}",
		), []string{
			"6:134: providers.p.tools.act.compensate_with.payload: there is no .providr_ref; known here: " +
				".payload, .response, .provider_ref, .key, .agent_run_id, .step_id, .tool_name, .business_scope",
		}},
		"a payload's secret": {tools(
			"act: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/undo, payload: '${file:/run/secrets/token}'}}",
			"undo: {fake: {path: /}, "+keyed+"}",
		), []string{
			"6:134: providers.p.tools.act.compensate_with.payload: compiling jq: function not defined: [secret]/0",
		}},
		"both undone and not": {tools(
			"act: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/undo}, compensation: none}",
			"undo: {fake: {path: /}, "+keyed+", compensation: none, reversal_window: 1h}",
		), []string{
			"6:140: providers.p.tools.act.compensation: says that there is nothing to undo, but compensate_with says how it is undone; leave out one of the two",
			"7:131: providers.p.tools.undo.reversal_window: has no meaning where there is nothing to undo; leave it out",
		}},
		"another word than none": {tools("act: {fake: {path: /}, " + keyed + ", compensation: p/undo}"), []string{
			"6:107: providers.p.tools.act.compensation: can only be none: there is nothing to undo; what undoes the effect stands in compensate_with",
		}},
		"unheard-of consequence": {tools(
			"act: {fake: {path: /}, "+keyed+", on_failure: ignore}",
			"look: {fake: {path: /}, idempotency: {class: read_only}, on_failure: ''}",
		), []string{
			"6:105: providers.p.tools.act.on_failure: say what follows a failure: compensate or dead_letter",
			"7:76: providers.p.tools.look.on_failure: say what follows a failure: compensate or dead_letter",
		}},
	}.test(t)
}

func TestAKeyIsRememberedHereAsLongAsThere(t *testing.T) {
	t.Parallel()
	const long = "fake: {path: /}, idempotency: {class: key_idempotent, ttl: 120d, scope: account}"
	mistakes{
		"nothing kept":      {"retention: 0s\n" + tools("act: {fake: {path: /}, "+keyed+"}"), []string{"1:12: retention: must be at least 1h"}},
		"kept for a number": {"version: 1\nretention: 90\n", []string{"2:12: retention: " + duration.Hint}},
		"nothing kept of a tool": {tools("act: {fake: {path: /}, " + keyed + ", retention: -1h}"), []string{
			"6:104: providers.p.tools.act.retention: must be at least 1h",
		}},
		"forgotten before the provider does": {tools(
			"act: {"+long+", retention: 119d}",
			"look: {fake: {path: /}, idempotency: {class: read_only}, retention: 1h}",
		), []string{
			"6:106: providers.p.tools.act.retention: is shorter than idempotency.ttl; write at least 120d",
		}},
		"forgotten by default": {tools("act: {"+long+"}", "other: {"+long+", retention: 120d}"), []string{
			"6:72: providers.p.tools.act.idempotency.ttl: is longer than the retention of 90d; give this tool a retention of at least 120d",
		}},
	}.test(t)
}

func TestARetentionOfAllHoldsForEachTool(t *testing.T) {
	t.Parallel()
	loaded, err := loadText(t, "retention: 120d\n"+tools("act: {fake: {path: /}, idempotency: {class: key_idempotent, ttl: 120d, scope: account}}"))
	if err != nil || loaded.Retention.Default != 120*duration.Day || len(loaded.Retention.Tools) > 0 {
		t.Errorf("got %+v, %v", loaded, err)
	}
}

func TestAChainOfUndosIsNoCircle(t *testing.T) {
	t.Parallel()
	loaded, err := loadText(t, tools(
		"act: {fake: {path: /}, "+keyed+", compensate_with: {tool: p/undo, payload: '{id: .response.id, sum: \"\\(.payload.sum)\"}'}}",
		"undo: {fake: {path: /}, idempotency: {class: non_idempotent}, lookup: {tool: look}, compensate_with: {tool: p/end}, reversal_window: 2h}",
		"end: {fake: {path: /}, idempotency: {class: naturally_idempotent}, compensation: none, on_failure: dead_letter}",
		"look: {fake: {path: /}, idempotency: {class: read_only}}",
	))
	if err != nil {
		t.Fatal(err)
	}
	got := loaded.Providers[0].Tools
	for operation, want := range map[string]dispatch.Reversal{
		"act":  {Tool: "p/undo", Payload: `{id: .response.id, sum: "\(.payload.sum)"}`},
		"undo": {Tool: "p/end", Window: 2 * time.Hour},
		"end":  {None: true},
		"look": {},
	} {
		if got[operation].Reversal != want {
			t.Errorf("%s: got %+v, want %+v", operation, got[operation].Reversal, want)
		}
	}
	if !got["act"].BeginsSaga || !got["look"].BeginsSaga || got["end"].BeginsSaga {
		t.Errorf("got %+v; want all but end to begin a saga", got)
	}
}

func TestAToolThatActsSaysHowItIsUndone(t *testing.T) {
	t.Parallel()
	const silent = "silent: {fake: {path: /}, " + keyed
	others := []string{
		"act: {fake: {path: /}, " + keyed + ", on_failure: dead_letter, compensate_with: {tool: p/end}}",
		"end: {fake: {path: /}, " + keyed + ", on_failure: dead_letter, compensation: none}",
		"look: {fake: {path: /}, idempotency: {class: read_only}, on_failure: dead_letter}",
	}
	for tool, want := range map[string][]string{
		silent + "}":                                 {"p/silent"},
		silent + ", reversal_window: 1h}":            {"p/silent"},
		silent + ", compensation: none}":             nil,
		silent + ", compensate_with: {tool: p/end}}": nil,
		silent + ", on_failure: dead_letter}":        nil, // no run is ever compensated
	} {
		loaded, err := loadText(t, tools(append(others, tool)...))
		if err != nil {
			t.Fatal(err)
		}
		if got := loaded.Uncompensated(); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", tool, got, want)
		}
	}
}
