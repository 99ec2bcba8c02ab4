package config

import (
	"slices"
	"strings"
	"testing"
)

// tools wraps tools, whose lines start at line 6.
func tools(lines ...string) string {
	return provider("adapter: fake\ntools:\n  " + strings.Join(lines, "\n  "))
}

// providers wraps providers, whose lines start at line 3.
func providers(lines ...string) string {
	return "version: 1\nproviders:\n  " + strings.Join(lines, "\n  ") + "\n"
}

func TestWhatSettlesDoubtMustBeThere(t *testing.T) {
	t.Parallel()
	mistakes{
		"margin before the deadline": {tools(
			"act: {fake: {path: /}, idempotency: {class: non_idempotent}, lookup: {tool: look, margin: -1s}}",
			"look: {fake: {path: /}, idempotency: {class: read_only}}",
		), []string{
			"6:97: providers.p.tools.act.lookup.margin: must not be negative",
		}},
		"lookup with nothing to ask": {tools("act: {fake: {path: /}, idempotency: {class: non_idempotent}, lookup: {}}"), []string{
			"6:68: providers.p.tools.act.lookup.tool: must name a read_only operation of this provider; there is none",
		}},
		"lookup that acts": {tools(
			"act: {fake: {path: /}, idempotency: {class: non_idempotent}, lookup: {tool: act}}",
			"look: {fake: {path: /}, idempotency: {class: read_only}}",
		), []string{
			"6:83: providers.p.tools.act.lookup.tool: must name a read_only operation of this provider; known here: look",
		}},
		"lookup elsewhere": {tools(
			"act: {fake: {path: /}, idempotency: {class: non_idempotent}, lookup: {tool: q/look}}",
			"looks: {fake: {path: /}, idempotency: {class: read_only}}",
		), []string{
			"6:83: providers.p.tools.act.lookup.tool: must name a read_only operation of this provider; known here: looks",
		}},
		"doubts about reading": {tools(
			"look: {fake: {path: /}, idempotency: {class: read_only}, lookup: {tool: look}, compensate_with: {tool: p/act}, reversal_window: 1h}",
			"act: {fake: {path: /}, idempotency: {class: non_idempotent}}",
		), []string{
			"6:64: providers.p.tools.look.lookup: a read_only tool has no effect to look up or to undo; leave it out",
			"6:86: providers.p.tools.look.compensate_with: a read_only tool has no effect to look up or to undo; leave it out",
			"6:135: providers.p.tools.look.reversal_window: a read_only tool has no effect to look up or to undo; leave it out",
		}},
		"undone by no tool": {tools("act: {fake: {path: /}, idempotency: {class: non_idempotent}, compensate_with: {}, reversal_window: 0s}"), []string{
			"6:68: providers.p.tools.act.compensate_with.tool: say which tool undoes this one, as provider/operation",
			"6:106: providers.p.tools.act.reversal_window: must be longer than 0",
		}},
		"undone by itself": {tools(
			"act: {fake: {path: /}, idempotency: {class: non_idempotent}, compensate_with: {tool: p/act}}",
			"undo: {fake: {path: /}, idempotency: {class: non_idempotent}}",
			"look: {fake: {path: /}, idempotency: {class: read_only}}",
		), []string{
			"6:92: providers.p.tools.act.compensate_with.tool: must name another tool of this file that acts, as provider/operation; known here: p/undo",
		}},
		"undone by reading": {tools(
			"act: {fake: {path: /}, idempotency: {class: non_idempotent}, compensate_with: {tool: p/look}}",
			"look: {fake: {path: /}, idempotency: {class: read_only}}",
		), []string{
			"6:92: providers.p.tools.act.compensate_with.tool: must name another tool of this file that acts, as provider/operation; there is none",
		}},
		"undone by a stranger": {tools(
			"act: {fake: {path: /}, idempotency: {class: non_idempotent}, compensate_with: {tool: p/undu}}",
			"undo: {fake: {path: /}, idempotency: {class: non_idempotent}}",
		), []string{
			`6:92: providers.p.tools.act.compensate_with.tool: must name another tool of this file that acts, as provider/operation; did you mean "p/undo"?`,
		}},
	}.test(t)
}

func TestAFallbackMustBeAbleToStandIn(t *testing.T) {
	t.Parallel()
	mistakes{
		"fallback that is missing": {providers(
			"a: {adapter: fake, fallback: spar, "+wellFormedTool+"}",
			"spare: {adapter: fake, "+wellFormedTool+"}",
		), []string{
			`3:32: providers.a.fallback: must name another provider of this file; did you mean "spare"?`,
		}},
		"fallback to itself": {providers("a: {adapter: fake, fallback: a, " + wellFormedTool + "}"), []string{
			"3:32: providers.a.fallback: must name another provider of this file; there is none",
		}},
		"fallbacks in a circle": {providers(
			"a: {adapter: fake, fallback: b, "+wellFormedTool+"}",
			"b: {adapter: fake, fallback: a, "+wellFormedTool+"}",
		), []string{
			"3:32: providers.a.fallback: a fallback has no fallback itself; leave out one of the two",
			"4:32: providers.b.fallback: a fallback has no fallback itself; leave out one of the two",
		}},
		"fallbacks in a chain": {providers(
			"a: {adapter: fake, fallback: b, "+wellFormedTool+"}",
			"b: {adapter: fake, fallback: c, "+wellFormedTool+"}",
			"c: {adapter: fake, "+wellFormedTool+"}",
		), []string{
			"3:32: providers.a.fallback: a fallback has no fallback itself; leave out one of the two",
		}},
		"fallback that cannot stand in": {`version: 1
providers:
  a:
    adapter: fake
    fallback: b
    tools:
      absent: {fake: {path: /}, idempotency: {class: read_only}}
      keyed: {fake: {path: /}, idempotency: {class: key_idempotent, ttl: 1h, scope: account}}
      looked: {fake: {path: /}, idempotency: {class: non_idempotent}, lookup: {tool: t}}
      undone: {fake: {path: /}, idempotency: {class: non_idempotent}, compensate_with: {tool: a/keyed}}
      t: {fake: {path: /}, idempotency: {class: read_only}}
  b:
    adapter: other
    tools:
      keyed: {other: {path: /}, idempotency: {class: naturally_idempotent}}
      looked: {other: {path: /}, idempotency: {class: non_idempotent}}
      undone: {other: {path: /}, idempotency: {class: non_idempotent}}
      t: {other: {path: /}, idempotency: {class: read_only}}
`, []string{
			`5:15: providers.a.fallback: the fallback has no operation "absent", as this provider has`,
			`5:15: providers.a.fallback: the fallback's "keyed" must be key_idempotent, as it is here`,
			`5:15: providers.a.fallback: the fallback's "looked" must have a lookup, as it has here: it is asked about what it served`,
			`5:15: providers.a.fallback: the fallback's "undone" must have compensate_with, as it has here: what it did is undone there`,
		}},
		"fallback with a mistake of its own": {providers(
			"a: {adapter: fake, fallback: b, "+wellFormedTool+"}",
			"b: {adapter: fake, tools: {t: {fake: {path: /}, idempotency: {class: idempotent}}}}",
		), []string{
			"4:72: providers.b.tools.t.idempotency.class: say what repeating the call does: read_only, naturally_idempotent, key_idempotent, non_idempotent",
		}},
	}.test(t)
}

func TestExpandReplacesReferences(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "",
		"plain":                             "plain",
		"costs $5":                          "costs $5",
		"${env:WAIT}":                       "90s",
		"Bearer ${file:/run/secrets/token}": "Bearer s3cret",
		"${env:WAIT}/${env:WAIT}":           "90s/90s",
		"${file:/run/secrets/two}|":         "line\n|",
		"${file:/run/secrets/crlf}|":        "s3cret|",
		"$${env:WAIT}":                      "${env:WAIT}",
		"a $${ b ${env:WAIT}":               "a ${ b 90s",
		"${env:NESTED}":                     "${env:TOKEN}",
	} {
		got, problems := fakeSecrets().expand(text)
		if got != want || len(problems) > 0 {
			t.Errorf("expand(%q) = %q, %v; want %q", text, got, problems, want)
		}
	}
}

func TestExpandNamesTheReferenceAndItsCure(t *testing.T) {
	t.Parallel()
	for text, wants := range map[string][]string{
		"${env:GONE}":                      {"environment variable GONE is not set; set it"},
		"${env:GONE} ${env:LOST}":          {"GONE is not set", "LOST is not set"},
		"${env:EMPTY}":                     {"environment variable EMPTY is empty"},
		"${env:}":                          {"write ${env:NAME}"},
		"${file:/run/secrets/gone}":        {"/run/secrets/gone cannot be read (file does not exist); mount it"},
		"${file:/run/secrets/empty}":       {"/run/secrets/empty is empty"},
		"${file:relative}":                 {"needs an absolute path"},
		"${vault:x}":                       {"neither ${env:NAME} nor ${file:/path}"},
		"${env:TOKEN":                      {"is not closed"},
		"${env:GONE} and then ${env:TOKEN": {"GONE is not set", "is not closed"},
	} {
		_, problems := fakeSecrets().expand(text)
		if len(problems) != len(wants) {
			t.Errorf("expand(%q) found %v; want %d problems", text, problems, len(wants))
			continue
		}
		for i, want := range wants {
			if !strings.Contains(problems[i].Error(), want) {
				t.Errorf("expand(%q) = %q; want it to say %q", text, problems[i], want)
			}
		}
	}
}

// Answers are searched for it, so all ways to write it down count.
func TestACredentialThatTheFileItselfHoldsIsKnown(t *testing.T) {
	t.Parallel()
	config, err := loadText(t, `
version: 1
database: {password_command: [print-password, --of-the-database]}
providers:
  one:
    adapter: fake
    fake:
      token: Bearer plain-canary
      labels:
        password: "quoted-canary"
        api_key: |
          block-canary
        credentials: >-
          folded
          canary
        nkey_seed: SU-seed-canary
        authorization: &a |
          Basic anchored-canary
        X-Token: *a
        key: |
          -----BEGIN PRIVATE KEY-----
          pem-canary
          -----END PRIVATE KEY-----
        team: payments-team
        server: postgres://ann:url-canary@db/app
        address: https://ann@example.com/payments
      extra: {signing_secrets: [first-canary, second-canary]}
    tools:
      a: {fake: {path: /}, idempotency: {class: read_only}}
`)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(config.Secrets)
	want := []string{
		"-----BEGIN PRIVATE KEY-----\npem-canary\n-----END PRIVATE KEY-----", "Basic anchored-canary", "Bearer plain-canary", "PRIVATE KEY-----\npem-canary\n-----END PRIVATE KEY-----", "SU-seed-canary",
		"anchored-canary", "block-canary", "first-canary", "folded canary", "plain-canary", "postgres://ann:url-canary@db/app", "quoted-canary", "second-canary",
	}
	if got := slices.Compact(config.Secrets); !slices.Equal(got, want) {
		t.Errorf("it knows %q, want %q", got, want)
	}
}
