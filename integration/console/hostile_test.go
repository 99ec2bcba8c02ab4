package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/agentoutbox/drainer/drainertest"
)

// hostile are texts that models and providers may write. Each would set a mark on the page,
// or lead somewhere else, wherever a page did not write it as text.
var hostile = []string{
	`<script>document.documentElement.dataset.hit=1</script>`,
	`"><img src=x onerror="document.documentElement.dataset.hit=1">`,
	`' autofocus onfocus='document.documentElement.dataset.hit=1`,
	`</title></style></textarea><svg/onload=document.documentElement.dataset.hit=1>`,
	`</text><foreignObject><iframe srcdoc="<script>parent.document.documentElement.dataset.hit=1</script>">`,
	`javascript:document.documentElement.dataset.hit=1`,
	`<base href="https://evil.example/"><form action="https://evil.example/"><meta http-equiv=refresh content="0;url=https://evil.example/">`,
	`<link rel=stylesheet href=https://evil.example/x.css><style>*{display:none}</style>`,
	`{{.}}{{template "base"}}${7*7}<!--`,
	"../../logout?x=#frag%2f..%00",
	"\u202eevil\u2066\u200b\ufeff",
	`&lt;script&gt;&#x3c;script&#x3e;`,
	strings.Repeat("A", 255),
	strings.Repeat("\U0001f469\u200d", 36),
}

func TestHostileTextsAreTextOnEveryPage(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	drainertest.Exec(t, v.db, `TRUNCATE outbox.intent, outbox.queue, outbox.attempt, outbox.incident, outbox.saga, outbox.tool, outbox.provider, outbox.worker RESTART IDENTITY CASCADE`)
	for _, text := range hostile {
		drainertest.Exec(t, v.db, `WITH added AS (INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
				VALUES ($1, $1, $1, $1, to_jsonb($1::text)) RETURNING id),
			ended AS (INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, error, provider_ref, response, http_status)
				SELECT id, 1, $1, now(), 'rejected', 'failed', $1, $1, to_jsonb($1::text), 400 FROM added)
			INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail, acknowledged_at, acknowledged_by, reason)
			SELECT 'outcome_unknown', id, $1, $1, now(), $1, $1 FROM added`, text)
		for _, sql := range []string{
			`INSERT INTO outbox.saga (agent_run_id, changed_by, reason) VALUES ($1, $1, $1)`,
			`INSERT INTO outbox.provider (name, state, reason, shut_at, open_until) VALUES ($1, 'open', $1, now(), now() + interval '1 hour')`,
			`INSERT INTO outbox.minute (at, provider, completed) VALUES (date_trunc('minute', now()), $1, 1)`,
			`INSERT INTO outbox.operation (operator, action, provider, reason) VALUES ('operator:' || $1, 'pause', $1, $1)`,
			`INSERT INTO outbox.worker (worker_id, providers, tools, fingerprints, configuration) VALUES (gen_random_uuid(), ARRAY['sim', $1], ARRAY[$1], ARRAY[$1, $1], $1)`,
			`INSERT INTO outbox.tenant (name, role, namespace) VALUES ($1, $1::text, $1)`,
		} {
			drainertest.Exec(t, v.db, sql, text)
		}
	}
	drainertest.Exec(t, v.db, `DELETE FROM outbox.queue`)
	v.login(aliceToken, "/")
	v.said()
	inert := func(at string) {
		t.Helper()
		if hit := evaluate[bool](v, `"hit" in document.documentElement.dataset || document.querySelector("main :is(img, iframe, script, style, link, base, meta, foreignObject)") !== null`); hit {
			t.Errorf("%s: a text became a part of the page", at)
		}
		if away := evaluate[string](v, `[...document.querySelectorAll("a, form")].map(e => e.href || e.action).filter(u => !u.startsWith(location.origin + "/")).join()`); away != "" {
			t.Errorf("%s leads to %s", at, away)
		}
	}
	open := func(path string) {
		t.Helper()
		if status := v.open(path); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
		inert(path)
	}
	// decide takes both steps of a form, the second with a reason.
	decide := func(button, reason string) {
		t.Helper()
		v.click(button)
		inert(button)
		v.write("input[name=reason]", reason)
		if status := v.click(".confirm button"); status != http.StatusOK {
			t.Errorf("%s at %s: %d", button, v.path(), status)
		}
		inert(v.path())
	}
	for i, id := range drainertest.Column[string](t, v.db, `SELECT id::text FROM outbox.intent ORDER BY id`) {
		text := hostile[i]
		for _, path := range []string{"/runs/" + url.PathEscape(text), "/providers/" + url.PathEscape(text), "/search?q=" + url.QueryEscape(text), "/intents?run=" + url.QueryEscape(text), "/intents/" + id} {
			open(path)
		}
		decide("form[action$='/reveal'] button", "because")
		if shown := evaluate[int](v, `document.querySelectorAll("pre").length`); shown != 2 {
			t.Errorf("of intent %s, payload and response are shown as %d texts", id, shown)
		}
	}
	for _, path := range []string{"/", "/runs", "/intents", "/incidents?all=1", "/sagas", "/providers", "/operations", "/workers", "/tenants", "/config", "/doctor"} {
		open(path)
	}
	all := func(path string) {
		t.Helper()
		open(path)
		v.do(chromedp.Click(chromedp.CSS("input[name=all]")))
		decide("button[formaction='/intents/retry']", hostile[0])
	}
	drainertest.Exec(t, v.db, `DELETE FROM outbox.saga`) // a run that is rolled back takes no retry
	all("/intents?status=failed")
	v.failedImport(501)
	all("/intents?run=import")
	if at := v.path(); !strings.HasPrefix(at, "/changes/") {
		t.Errorf("a change of many rows leads to %s", at)
	}
	if said := v.said(); len(said) > 0 {
		t.Errorf("the browser had to hold something up: %q", said)
	}

	// It is seen if the browser holds something up.
	evaluate[bool](v, `document.body.append(Object.assign(document.createElement("script"), { text: "document.documentElement.dataset.hit = 1" })), true`)
	drainertest.Eventually(t, "the browser says that it held up an inline script", func() bool { return len(v.said()) > 0 })
}
