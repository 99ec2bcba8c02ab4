package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/duration"
)

// provider wraps the body of one provider, whose lines start at line 4.
func provider(body string) string {
	return "version: 1\nproviders:\n  p:\n    " + strings.ReplaceAll(strings.TrimSpace(body), "\n", "\n    ") + "\n"
}

// tool wraps the body of one tool, whose lines start at line 7.
func tool(body string) string {
	return provider("adapter: fake\ntools:\n  t:\n    " + strings.ReplaceAll(strings.TrimSpace(body), "\n", "\n    "))
}

// mistakes are files by what is wrong with them.
type mistakes map[string]struct {
	text string
	want []string // without the file's name
}

func (m mistakes) test(t *testing.T) {
	for name, test := range m {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := loadText(t, test.text)
			want := make([]string, len(test.want))
			for i, line := range test.want {
				want[i] = "drainer.yaml:" + line
			}
			if got := lines(err); !slices.Equal(got, want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
			}
		})
	}
}

const wellFormedTool = "tools: {t: {fake: {path: /}, idempotency: {class: read_only}}}"

func TestMistakesAreReportedWhereTheyStand(t *testing.T) {
	t.Parallel()
	mistakes{
		"empty file":    {"", []string{"1:1: version: this drainer reads format 1; write version: 1"}},
		"not a mapping": {"- a\n", []string{"1:1: want a block of fields, one `name: value` a line"}},
		"not YAML":      {"version: 1\nworker: {lease: 15s\n", []string{"2:9: could not find flow mapping end token '}'"}},
		"UTF-16":        {"\xff\xfev\x00e\x00", []string{"1:1: the file is UTF-16; save it as UTF-8"}},
		"bracket bomb":  {"version: 1\nx: " + strings.Repeat("[{a: ", 100_000), []string{"2:254: more than 100 levels are nested here; flatten them"}},
		"list bomb":     {"version: 1\nx:\n" + strings.Repeat("- ", 100_000), []string{"3:201: more than 100 levels are nested here; flatten them"}},
		"duplicate key": {"version: 1\nserver: {}\nversion: 1\n", []string{`3:1: mapping key "version" already defined at [1:1]`}},
		"a log": {"version: 1\nlog: {level: loud, format: xml, completed_every: 0}\n", []string{
			"2:14: log.level: want info, warn or error", "2:28: log.format: want json or text", "2:50: log.completed_every: want 1 or more",
		}},
		"a failover that may lose": {"version: 1\nfailover: asynchronous\n", []string{"2:11: failover: want lossless, or leave it out"}},
		"a proxy": {"version: 1\negress: {proxy: \"socks5://canary@proxy.example\"}\n", []string{
			"2:17: egress.proxy: want http://host:port, https://host:port, or environment",
		}},
		"two documents": {"version: 1\n---\nversion: 1\n", []string{"1:1: the file holds several YAML documents; keep one"}},
		"tag":           {"version: !!int 1\n", []string{"1:10: YAML tags have no meaning here; leave it out"}},
		"dangling alias": {"version: 1\nworker: *w\n", []string{
			"2:9: alias *w has no anchor &w before it",
		}},
		"circular alias": {"version: 1\nworker: &w {lease: *w}\n", []string{
			"2:20: alias *w has no anchor &w before it",
		}},
		"version of the future": {"version: 2\n", []string{"1:10: version: this drainer reads format 1; write version: 1"}},
		"version in quotes":     {"version: \"1\"\n", []string{"1:10: version: want a whole number, without quotes"}},
		"several at once": {"version: 1\nworkr: {}\nserver: {listen: 9464}\n", []string{
			`2:1: unknown field "workr"; did you mean "worker"?`,
			"3:18: server.listen: want text; put the value in quotes",
		}},
		"profiles for everybody": {"version: 1\nserver: {debug: \":6060\"}\n", []string{
			"2:17: server.debug: want a loopback address and a port, such as 127.0.0.1:6060: profiles show memory",
		}},
		"misspelt log": {"version: 1\nlog: {level: warm, format: jsn}\n", []string{
			`2:14: log.level: want info, warn or error; did you mean "warn"?`, `2:28: log.format: want json or text; did you mean "json"?`,
		}},
		"misspelt failover": {"version: 1\nfailover: losless\n", []string{
			`2:11: failover: want lossless, or leave it out; did you mean "lossless"?`,
		}},
		"unknown field": {"version: 1\nqueues: []\n", []string{
			`2:1: unknown field "queues"; known here: console, database, egress, failover, history, log, misconfigured, page_console, page_repeat, pages, providers, retention, server, unconfigured, version, worker`,
		}},
		"another schema": {"version: 1\ndatabase: {schema: public}\n", []string{
			"2:20: database.schema: the schema is always outbox; leave this out",
		}},
		"missing secret": {"version: 1\ndatabase:\n  url: postgres://${env:GONE}@${file:/gone}/db\n", []string{
			"3:8: environment variable GONE is not set; set it before starting drainer",
			"3:8: secret file /gone cannot be read (file does not exist); mount it or correct the path",
		}},
		"missing secret in a block string": {"version: 1\ndatabase:\n  url: |-\n    ${env:GONE}\n", []string{
			"3:8: environment variable GONE is not set; set it before starting drainer",
		}},
		"bad duration":      {"version: 1\nworker: {heartbeat: 3}\n", []string{"2:21: worker.heartbeat: " + duration.Hint}},
		"no heartbeat":      {"version: 1\nworker: {heartbeat: 0s}\n", []string{"2:21: worker.heartbeat: must be longer than 0"}},
		"rare heartbeat":    {"version: 1\nworker: {heartbeat: 31s, lease: 2m}\n", []string{"2:21: worker.heartbeat: must be at most 30s: people are to see within a minute whether a worker lives"}},
		"short lease":       {"version: 1\nworker: {lease: 8s}\n", []string{"2:17: worker.lease: must be at least three times heartbeat, so that one late heartbeat is not death"}},
		"slow heartbeat":    {"version: 1\nworker: {heartbeat: 6s}\n", []string{"2:1: worker.lease: must be at least three times heartbeat, so that one late heartbeat is not death"}},
		"listen on nothing": {"version: 1\nserver: {listen: localhost}\n", []string{"2:18: server.listen: want host:port or :port, such as :9464"}},

		"providers as a list": {"version: 1\nproviders: [a]\n", []string{"2:1: providers: want a block of fields, one `name: value` a line"}},
		"provider left empty": {"version: 1\nproviders:\n  p:\n", []string{
			"3:3: providers.p.tools: declare at least one tool",
			"3:3: providers.p.adapter: choose the adapter that speaks to the provider; registered: fake, other",
		}},
		"provider with a slash": {"version: 1\nproviders:\n  a/b: {adapter: fake, " + wellFormedTool + "}\n", []string{
			`3:3: providers."a/b": a provider's name is the part of a tool name before its first slash; it cannot be empty or hold a slash`,
		}},
		"provider without a name": {"version: 1\nproviders:\n  \"\": {adapter: fake, " + wellFormedTool + "}\n", []string{
			`3:3: providers."": a provider's name is the part of a tool name before its first slash; it cannot be empty or hold a slash`,
		}},
		"unknown adapter": {provider("adapter: smtp\n" + wellFormedTool), []string{
			"4:14: providers.p.adapter: there is no such adapter; known here: fake, other",
		}},
		"misspelt field": {provider("adapter: fake\nconcurency: 3\n" + wellFormedTool), []string{
			`5:5: providers.p: unknown field "concurency"; did you mean "concurrency"?`,
		}},
		"an endless concurrency": {provider("adapter: fake\nconcurrency: 1000000\n" + wellFormedTool), []string{"5:18: providers.p.concurrency: must be at most 10000"}},
		"no concurrency":         {provider("adapter: fake\nconcurrency: 0\n" + wellFormedTool), []string{"5:18: providers.p.concurrency: must be at least 1"}},
		"no timeout":             {provider("adapter: fake\ntimeout: 0s\n" + wellFormedTool), []string{"5:14: providers.p.timeout: must be longer than 0"}},
		"no rate": {provider("adapter: fake\nrate_limit: {}\n" + wellFormedTool), []string{
			"5:5: providers.p.rate_limit.per_second: want requests a second, from 0.00001 (about one a day) to 1000000",
		}},
		"backward rate": {provider("adapter: fake\nrate_limit: {per_second: -1.5, burst: 0}\n" + wellFormedTool), []string{
			"5:30: providers.p.rate_limit.per_second: want requests a second, from 0.00001 (about one a day) to 1000000",
			"5:43: providers.p.rate_limit.burst: must be at least 1",
		}},
		"boundless rate": {provider("adapter: fake\nrate_limit: {per_second: .inf}\n" + wellFormedTool), []string{
			"5:30: providers.p.rate_limit.per_second: want a number, without quotes",
		}},
		"huge rate": {provider("adapter: fake\nrate_limit: {per_second: 1000001}\n" + wellFormedTool), []string{
			"5:30: providers.p.rate_limit.per_second: want requests a second, from 0.00001 (about one a day) to 1000000",
		}},
		"rate with a unit": {provider("adapter: fake\nrate_limit: {per_second: 90/s, burst: many}\n" + wellFormedTool), []string{
			"5:30: providers.p.rate_limit.per_second: want a number, without quotes",
			"5:43: providers.p.rate_limit.burst: want a whole number, without quotes",
		}},
		"breaker that never closes": {provider("adapter: fake\ncircuit_breaker: {consecutive_failures: 0, cool_down: -1s}\n" + wellFormedTool), []string{
			"5:45: providers.p.circuit_breaker.consecutive_failures: must be at least 1",
			"5:59: providers.p.circuit_breaker.cool_down: must be longer than 0",
		}},
		"another adapter's block": {provider("adapter: fake\nother: {token: x}\n" + wellFormedTool), []string{
			"5:5: providers.p.other: the provider's adapter is fake; leave this block out or choose adapter: other",
		}},
		"another adapter's tool block": {tool("other: {path: /}\nfake: {path: /}\nidempotency: {class: read_only}"), []string{
			"7:9: providers.p.tools.t.other: the provider's adapter is fake; leave this block out or choose adapter: other",
		}},
		"adapter's settings": {provider("adapter: fake\nfake:\n  tokn: x\n  wait: soon\n  limit: 300\n  strict: yes please\n  labels: {n: 1}\n  allowed: [a, 2]\n  level: middle\n" + wellFormedTool), []string{
			`6:7: providers.p.fake: unknown field "tokn"; did you mean "token"?`,
			"7:13: providers.p.fake.wait: " + duration.Hint,
			"8:14: providers.p.fake.limit: the number is too large",
			"9:15: providers.p.fake.strict: want true or false",
			"10:19: providers.p.fake.labels.n: want text; put the value in quotes",
			"11:20: providers.p.fake.allowed.1: want text; put the value in quotes",
			"12:14: providers.p.fake.level: unknown level middle",
		}},
		"adapter's complaint": {tool("idempotency: {class: read_only}"), []string{
			"6:7: providers.p.tools.t.fake: path is missing",
		}},
		"secret missing in an adapter's block": {provider("adapter: fake\nfake: {token: \"${env:GONE}\", tokn: x}\n" + wellFormedTool), []string{
			"5:19: environment variable GONE is not set; set it before starting drainer",
			`5:34: providers.p.fake: unknown field "tokn"; did you mean "token"?`,
		}},

		"class left out": {tool("fake: {path: /}"), []string{
			"6:7: providers.p.tools.t.idempotency.class: say what repeating the call does: read_only, naturally_idempotent, key_idempotent, non_idempotent",
		}},
		"unknown class": {tool("fake: {path: /}\nidempotency: {class: idempotent}"), []string{
			"8:30: providers.p.tools.t.idempotency.class: say what repeating the call does: read_only, naturally_idempotent, key_idempotent, non_idempotent",
		}},
		"class of the wrong kind": {tool("fake: {path: /}\nidempotency: {class: 1}"), []string{
			"8:30: providers.p.tools.t.idempotency.class: want text; put the value in quotes",
		}},
		"key without its life": {tool("fake: {path: /}\nidempotency: {class: key_idempotent}"), []string{
			"8:9: providers.p.tools.t.idempotency.ttl: say how long the provider remembers a key, such as 24h",
			"8:9: providers.p.tools.t.idempotency.scope: say within what the provider tells keys apart, such as account",
		}},
		"life without a key": {tool("fake: {path: /}\nidempotency: {class: non_idempotent, ttl: 24h, scope: account}"), []string{
			"8:51: providers.p.tools.t.idempotency.ttl: has a meaning only for key_idempotent; leave it out",
			"8:63: providers.p.tools.t.idempotency.scope: has a meaning only for key_idempotent; leave it out",
		}},
		"key that lives forever": {tool("fake: {path: /}\nidempotency: {class: key_idempotent, ttl: 99999h, scope: account}"), []string{
			"8:51: providers.p.tools.t.idempotency.ttl: is longer than ten years; write what the provider promises",
		}},
		"hopeless retries": {tool("fake: {path: /}\nidempotency: {class: read_only}\nretry: {max_attempts: 0, base: 1m, cap: 1s, max_wait: 0s}"), []string{
			"9:31: providers.p.tools.t.retry.max_attempts: must be at least 1",
			"9:49: providers.p.tools.t.retry.cap: must not be shorter than base",
			"9:63: providers.p.tools.t.retry.max_wait: must be longer than 0",
		}},
	}.test(t)
}

func TestEachMistakeIsAnErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	_, err := loadText(t, "version: 1\nworkr: {}\n")
	var problem *Error
	if !errors.As(err, &problem) || problem.File != "drainer.yaml" || problem.Line != 2 || problem.Column != 1 {
		t.Errorf("got %#v from %v", problem, err)
	}
}

func lines(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

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
			"read: {fake: {path: /}, idempotency: {class: read_only}, on_refused: ignore}",
			"seen: {fake: {path: /}, "+keyed+", on_first_replay: ignore}",
			"once: {fake: {path: /}, idempotency: {class: read_only}, on_first_replay: incident}",
		), []string{
			"6:105: providers.p.tools.act.on_failure: say what follows a failure: compensate or dead_letter",
			"7:76: providers.p.tools.look.on_failure: say what follows a failure: compensate or dead_letter",
			"8:76: providers.p.tools.read.on_refused: say what follows a refusal: dead_letter or compensate",
			"9:111: providers.p.tools.seen.on_first_replay: say what follows a replay for an intent's first attempt: incident or accept",
			"10:81: providers.p.tools.once.on_first_replay: only a key_idempotent tool recognises a key; leave it out",
		}},
	}.test(t)
}

func TestAKeyIsRememberedHereAsLongAsThere(t *testing.T) {
	t.Parallel()
	const long = "fake: {path: /}, idempotency: {class: key_idempotent, ttl: 120d, scope: account}"
	mistakes{
		"nothing kept":      {"retention: 0s\n" + tools("act: {fake: {path: /}, "+keyed+"}"), []string{"1:12: retention.default: must be at least 1h"}},
		"no life of a run":  {"retention: {default: 30d, max_run: 1m}\n" + tools("act: {fake: {path: /}, "+keyed+"}"), []string{"1:36: retention.max_run: must be at least 1h"}},
		"another field":     {"retention: {usual: 30d}\n" + tools("act: {fake: {path: /}, "+keyed+"}"), []string{`1:13: retention: unknown field "usual"; known here: default, max_run`}},
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

func TestOnlyAnEffectThatRepeatsNeedsSafeguards(t *testing.T) {
	t.Parallel()
	lookup := &dispatch.Lookup{Operation: "find"}
	undo := dispatch.Reversal{Tool: "p/undo", Window: time.Hour}
	for _, test := range []struct {
		policy dispatch.Policy
		want   []string
	}{
		{dispatch.Policy{Class: dispatch.ReadOnly}, nil},
		{dispatch.Policy{Class: dispatch.NaturallyIdempotent}, nil},
		{dispatch.Policy{Class: dispatch.KeyIdempotent}, nil},
		{dispatch.Policy{Class: dispatch.NonIdempotent}, []string{"lookup", "compensate_with", "reversal_window"}},
		{dispatch.Policy{Class: dispatch.NonIdempotent, Reversal: undo}, []string{"lookup"}},
		{dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: lookup, Reversal: dispatch.Reversal{Window: time.Hour}}, []string{"compensate_with"}},
		{dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: lookup, Reversal: dispatch.Reversal{Tool: "p/undo"}}, []string{"reversal_window"}},
		{dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: lookup, Reversal: undo}, nil},
	} {
		if got := MissingSafeguards(test.policy); !slices.Equal(got, test.want) {
			t.Errorf("%+v lacks %v, want %v", test.policy, got, test.want)
		}
	}
}

func TestToolsHaveTheirFullNames(t *testing.T) {
	t.Parallel()
	loaded, err := loadText(t, complete)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name, policy := range loaded.Tools() {
		names = append(names, name)
		if policy.Class == "" {
			t.Errorf("%s has no policy", name)
		}
	}
	want := []string{"stripe/create_charge", "stripe/find", "stripe/refund", "spare/create_charge", "spare/find", "spare/refund", "mail/mail"}
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

func TestAToolPromisesNoMoreThanItsAdapterCan(t *testing.T) {
	t.Parallel()
	mistakes{
		"more": {provider("adapter: other\ntools: {t: {other: {path: /}, idempotency: {class: key_idempotent, ttl: 1h, scope: account}}}"), []string{
			"5:56: providers.p.tools.t.idempotency.class: the other adapter cannot promise this; it can: read_only, naturally_idempotent, non_idempotent",
		}},
		"as much": {provider("adapter: other\ntools: {t: {other: {path: /}, idempotency: {class: non_idempotent}}}"), nil},
	}.test(t)
}

func TestAPayloadSchemaIsABlockOrText(t *testing.T) {
	t.Parallel()
	for name, written := range map[string]string{
		"block": "{type: object, required: [amount], properties: {amount: {type: integer, maximum: 9007199254740993}}}",
		"text":  `'{"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer", "maximum": 9007199254740993}}}'`,
	} {
		loaded, err := loadText(t, tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: "+written))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		schema := loaded.Providers[0].Tools["t"].Payload
		for payload, good := range map[string]bool{`{"amount": 9007199254740993}`: true, `{"amount": 9007199254740994}`: false, `{}`: false} {
			if violation := schema.Violation(json.RawMessage(payload)); (violation == nil) != good {
				t.Errorf("%s: %s: %+v", name, payload, violation)
			}
		}
	}
	mistakes{
		"no schema": {tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: {type: number_of_things}"), []string{
			"9:9: providers.p.tools.t.payload_schema: not a valid JSON Schema: look at /type",
		}},
		"no JSON": {tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: /etc/schema.json"), []string{
			"9:25: providers.p.tools.t.payload_schema: not JSON",
		}},
		"on another host": {tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: {$ref: 'https://example.com/s.json'}"), []string{
			"9:9: providers.p.tools.t.payload_schema: a $ref leads out of the schema; put what it stands for under $defs",
		}},
	}.test(t)
}

// A file is loaded, or every mistake in it is listed with its place, the same
// ones every time, and none of its secrets.
func FuzzAFileIsLoadedOrItsMistakesAreListed(f *testing.F) {
	for _, seed := range []string{
		"", complete, "version: 1", "- a", "a: &a {b: *a}", "<<: {a: 1}", "? [a]\n: b", "{", "---\n---\n", "version: 1\nversion: 1",
		"version: 1\nproviders: {p: {adapter: fake, fake: {extra: [&x {a: 1}, *x, !!set {b}]}}}",
		"version: 1\nproviders: {p: {adapter: fake, fake: {token: \"${env:TOKEN}\", level: \"${env:TOKEN}\", wait: \"${env:TOKEN}\"}}}",
		"version: 1\nproviders: {p: {adapter: \"${env:TOKEN}\", fallback: \"${env:TOKEN}\", tools: {a: {fake: {path: x}, lookup: {tool: \"${file:/run/secrets/token}\"}, compensate_with: {tool: \"${env:TOKEN}\", payload: \"${env:TOKEN}\"}, payload_schema: \"${env:TOKEN}\"}}}}",
		"version: 1\nserver: {listen: \"${env:TOKEN}\"}\npages: [{webhook: {url: \"${env:DATABASE_URL}\", secret: \"${file:/run/secrets/token}\"}}]\negress: {allow: [\"${env:TOKEN}\"]}",
		"database: {url: \"${env:GONE} $${ ${file:/x\"}", "version: 0x1", "version: 1_0", "version: .inf", "\xef\xbb\xbfversion: 1", "version: 1\x00", "version: \"\xff\"",
		"a: " + strings.Repeat("[", 2000), strings.Repeat("a: &a\n ", 100), "version: |\n  1\n", "\t- a", "%YAML 1.2\n---\nversion: 1\n...\n", "version: 1 # \u2028\n",
	} {
		f.Add([]byte(seed))
	}
	registry, schema := fakeRegistry(f), publishedSchema(f)
	f.Fuzz(func(t *testing.T, content []byte) {
		config, err := load("drainer.yaml", content, registry, fakeSecrets(), everything)
		if (config == nil) == (err == nil) {
			t.Fatalf("neither or both: %v, %v", config, err)
		}
		if err == nil {
			checkStrict(t, content, registry, schema)
			return
		}
		var invalid *InvalidError
		if !errors.As(err, &invalid) || len(invalid.Problems) == 0 {
			t.Fatalf("not a list of mistakes: %v", err)
		}
		for _, problem := range invalid.Problems {
			if problem.File == "" || problem.Message == "" || (problem.Line < 1) != (problem.Column < 1) {
				t.Errorf("half a mistake: %+v", problem)
			}
		}
		for _, secret := range []string{"hunter2", "leak me", "s3cret"} {
			if strings.Contains(err.Error(), secret) && !bytes.Contains(content, []byte(secret)) {
				t.Errorf("a secret is shown: %v", err)
			}
		}
		if _, again := load("drainer.yaml", content, registry, fakeSecrets(), everything); again == nil || again.Error() != err.Error() {
			t.Errorf("first %v, then %v", err, again)
		}
	})
}

// checkStrict changes a good file into a bad one, and holds it to the schema
// that editors go by.
func checkStrict(t *testing.T, content []byte, registry dispatch.Registry, schema *jsonschema.Schema) {
	t.Helper()
	if _, err := load("drainer.yaml", slices.Concat(content, []byte("\nsurprise: 1\n")), registry, fakeSecrets(), everything); err == nil {
		t.Errorf("an unknown field is let through behind %q", content)
	}
	var file any
	if err := yaml.Unmarshal(bytes.TrimPrefix(content, []byte(byteOrderMark)), &file); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%q is loaded, but its schema says %v", content, err)
	}
}

func publishedSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	text, err := Schema(fakeRegistry(t))
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("drainer.schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("drainer.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}
