package config

import "testing"

func TestKeysInEveryNotationAreNamed(t *testing.T) {
	t.Parallel()
	mistakes{
		"a number": {"version: 1\n7: x\n", []string{
			`2:1: unknown field "7"; known here: database, egress, page_repeat, pages, providers, retention, server, version, worker`,
		}},
		"an explicit key": {"version: 1\n? workr\n: {}\n", []string{`2:1: unknown field "workr"; did you mean "worker"?`}},
		"no operation": {provider("adapter: fake\ntools: {\"\": {fake: {path: /}, idempotency: {class: read_only}}}"), []string{
			`5:13: providers.p.tools."": an operation's name is what stands after the first slash of a tool name; it is not empty`,
		}},
	}.test(t)
}

func TestOnlyFieldsCanStandWhereFieldsBelong(t *testing.T) {
	t.Parallel()
	const want = "want a block of fields, one `name: value` a line"
	mistakes{
		"text":          {"version: 1\nproviders: p\n", []string{"2:12: providers: " + want}},
		"a merged text": {"version: 1\nworker: {<<: 5}\n", []string{"2:1: worker: " + want}},
		"a merged list": {"version: 1\nworker: {<<: [{}, 5]}\n", []string{"2:1: worker: " + want}},
		"a schema with what JSON has not": {tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: {a: .nan}"), []string{
			"9:9: providers.p.tools.t.payload_schema: holds something that JSON has not",
		}},
	}.test(t)
}
