package faults_test

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/integration/world"
)

// withSecrets sends everything past the witness, with secrets.
func withSecrets(config, provider, witness string) string {
	settings := fmt.Sprintf(`http: {headers: {Authorization: "Bearer ${env:TOKEN}"}, base_url: "%s/provider"`, witness)
	config = strings.ReplaceAll(config, "http: {base_url: "+provider, settings)
	config = strings.Replace(config, "path: /v1/once", `path: "/v1/once/{.payload.card}", query: {q: "{.payload.query}"}`, 1)
	config = strings.ReplaceAll(config, "    adapter: http\n", "    adapter: http\n    circuit_breaker: {consecutive_failures: 10000}\n")
	before, once, _ := strings.Cut(config, "\n  once:\n")
	config = before + "\n  once:\n" + strings.Replace(once, "/provider", "/talker", 1)
	return config + fmt.Sprintf("pages:\n  - {webhook: {url: \"%s/pager/${env:PAGER_PATH}\", secret: \"${env:PAGER_SECRET}\"}}\n", witness)
}

// loginURL is the database's URL with a password.
func loginURL(t *testing.T, w *world.World) string {
	t.Helper()
	name := "planted_" + strings.ToLower(rand.Text())
	w.Exec("CREATE ROLE " + name + " LOGIN PASSWORD 'canary-password' IN ROLE outbox_drainer")
	t.Cleanup(func() { w.Exec("DROP ROLE " + name) })
	return as(t, w.URL, name)
}

func as(t *testing.T, address, user string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword(user, "canary-password")
	return parsed.String()
}

// enqueueWithSecrets commits a step with secrets in its payload and baggage.
func enqueueWithSecrets(w *world.World, run int, tool string) {
	w.Exec(`SELECT outbox.enqueue($1, $2, $3, $4, '{"card": "canary-payload", "query": "canary-query"}', NULL, '{"baggage": "agent=canary-agent"}')`,
		fmt.Sprintf("%s-run-%d", agentName, run), agentName+"-"+tool, tool, agentName+"-scope")
}
