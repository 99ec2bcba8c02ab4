package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

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
	drainertest.Exec(t, v.db, `TRUNCATE outbox.intent, outbox.queue, outbox.attempt, outbox.incident, outbox.saga, outbox.tool RESTART IDENTITY CASCADE`)
	for _, text := range hostile {
		drainertest.Exec(t, v.db, `WITH added AS (INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
				VALUES ($1, $1, $1, $1, to_jsonb($1::text)) RETURNING id),
			ended AS (INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, error, provider_ref, response, http_status)
				SELECT id, 1, $1, now(), 'rejected', 'failed', $1, $1, to_jsonb($1::text), 400 FROM added)
			INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail, acknowledged_at, acknowledged_by, reason)
			SELECT 'outcome_unknown', id, $1, $1, now(), $1, $1 FROM added`, text)
		drainertest.Exec(t, v.db, `INSERT INTO outbox.saga (agent_run_id, changed_by, reason) VALUES ($1, $1, $1)`, text)
	}
	drainertest.Exec(t, v.db, `DELETE FROM outbox.queue`)
	v.login(aliceToken, "/")
	paths := []string{"/", "/runs", "/intents", "/incidents?all=1", "/sagas", "/providers"}
	for i, text := range hostile {
		id := drainertest.Column[string](t, v.db, `SELECT id::text FROM outbox.intent ORDER BY id`)[i]
		paths = append(paths, "/intents/"+id, "/runs/"+url.PathEscape(text), "/search?q="+url.QueryEscape(text), "/intents?run="+url.QueryEscape(text))
	}
	v.said()
	for _, path := range paths {
		if status := v.open(path); status >= http.StatusInternalServerError {
			t.Errorf("%s: %d", path, status)
		}
		if hit := evaluate[bool](v, `"hit" in document.documentElement.dataset || document.querySelector("main :is(img, iframe, script, style, link, base, meta, foreignObject)") !== null`); hit {
			t.Errorf("%s: a text became a part of the page", path)
		}
		if away := evaluate[string](v, `[...document.querySelectorAll("a, form")].map(e => e.href || e.action).filter(u => !u.startsWith(location.origin + "/")).join()`); away != "" {
			t.Errorf("%s leads to %s", path, away)
		}
	}
	if said := v.said(); len(said) > 0 {
		t.Errorf("the browser had to hold something up: %q", said)
	}

	// It is seen if the browser holds something up.
	evaluate[bool](v, `document.body.append(Object.assign(document.createElement("script"), { text: "document.documentElement.dataset.hit = 1" })), true`)
	drainertest.Eventually(t, "the browser says that it held up an inline script", func() bool { return len(v.said()) > 0 })
}
