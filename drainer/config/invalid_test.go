package config

import (
	"errors"
	"slices"
	"strings"
	"testing"

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
		"duplicate key": {"version: 1\nserver: {}\nversion: 1\n", []string{`3:1: mapping key "version" already defined at [1:1]`}},
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
		"field of nobody": {"version: 1\nqueues: []\n", []string{
			`2:1: unknown field "queues"; known here: database, egress, page_repeat, pages, providers, retention, server, version, worker`,
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
		"short lease":       {"version: 1\nworker: {lease: 8s}\n", []string{"2:17: worker.lease: must be at least three times heartbeat, so that one late heartbeat is not death"}},
		"slow heartbeat":    {"version: 1\nworker: {heartbeat: 6s}\n", []string{"2:1: worker.lease: must be at least three times heartbeat, so that one late heartbeat is not death"}},
		"listen on nothing": {"version: 1\nserver: {listen: localhost}\n", []string{"2:18: server.listen: want host:port or :port, such as :9464"}},

		"providers as a list": {"version: 1\nproviders: [a]\n", []string{"2:1: providers: want a block of fields, one `name: value` a line"}},
		"provider left empty": {"version: 1\nproviders:\n  p:\n", []string{
			"3:3: providers.p.tools: declare at least one tool",
			"3:3: providers.p.adapter: choose the adapter that speaks to the provider; registered: fake, other",
		}},
		"provider with a slash": {"version: 1\nproviders:\n  a/b: {adapter: fake, " + wellFormedTool + "}\n", []string{
			`3:3: providers."a/b": a provider's name is what stands before the first slash of a tool name; it is neither empty nor has a slash`,
		}},
		"provider without a name": {"version: 1\nproviders:\n  \"\": {adapter: fake, " + wellFormedTool + "}\n", []string{
			`3:3: providers."": a provider's name is what stands before the first slash of a tool name; it is neither empty nor has a slash`,
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
		"key that lives for ever": {tool("fake: {path: /}\nidempotency: {class: key_idempotent, ttl: 99999h, scope: account}"), []string{
			"8:51: providers.p.tools.t.idempotency.ttl: is longer than ten years; write what the provider promises",
		}},
		"hopeless retries": {tool("fake: {path: /}\nidempotency: {class: read_only}\nretry: {max_attempts: 0, base: 1m, cap: 1s}"), []string{
			"9:31: providers.p.tools.t.retry.max_attempts: must be at least 1",
			"9:49: providers.p.tools.t.retry.cap: must not be shorter than base",
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
