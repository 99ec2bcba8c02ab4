package mcp_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
)

// What the documentation tells servers to do is what this test runs.
func TestTheServerOfTheDocumentationChargesOnceAKey(t *testing.T) {
	t.Parallel()
	db := drainertest.Connect(t, drainertest.EmptyDatabase(t))
	if _, err := db.Exec(t.Context(), sqlOfTheDocumentation(t)); err != nil {
		t.Fatal(err)
	}
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
	var charges int
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM charge").Scan(&charges); err != nil || charges != 1 {
		t.Errorf("%d charges, %v", charges, err)
	}
}

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/adapters/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func blocks(t *testing.T, language string) (found []string) {
	t.Helper()
	for _, match := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(page(t), -1) {
		found = append(found, match[1])
	}
	return found
}

func sqlOfTheDocumentation(t *testing.T) string {
	t.Helper()
	found := blocks(t, "sql")
	if len(found) != 1 {
		t.Fatalf("%d blocks of SQL", len(found))
	}
	return found[0]
}

func TestTheServerOfTheDocumentationIsTheRealOne(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("charge_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := blocks(t, "go")
	if len(found) != 1 || !strings.Contains(string(source), found[0]) {
		t.Error("docs/adapters/mcp.md shows another server than charge_test.go")
	}
}
