package postgres_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// documented is the SQL of a file that the documentation shows.
func documented(t *testing.T, file string) string {
	t.Helper()
	sql, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/adapters/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```sql\n"+string(sql)+"```\n") {
		t.Errorf("docs/adapters/postgres.md does not show %s as it is", file)
	}
	return string(sql)
}

func TestTheDocumentedFunctionsWork(t *testing.T) {
	t.Parallel()
	to := newRecipient(t,
		`CREATE TABLE shop.orders (id bigint GENERATED ALWAYS AS IDENTITY, idempotency_key text PRIMARY KEY, article text NOT NULL, quantity integer NOT NULL);
		CREATE TABLE shop.stock (article text PRIMARY KEY, available integer NOT NULL); INSERT INTO shop.stock VALUES ('lamp', 5)`,
		documented(t, "testdata/place_order.sql"), documented(t, "testdata/find_order.sql"))
	documented(t, "inbox.sql")
	s := spec(to.url, "function: shop.place_order")
	s.Tools["find"] = dispatch.ToolSpec{
		Class: dispatch.ReadOnly, AnswersLookups: true, Settings: dispatchtest.Block("function: shop.find_order"),
	}
	adapters := []dispatch.Adapter{newAdapter(t, s), newAdapter(t, s)}
	find := func(step string) dispatch.Result {
		asked := request(step, `{}`)
		asked.Tuple.ToolName = "shop/find"
		return adapters[0].Dispatch(t.Context(), asked)
	}
	expect(t, find("step-1"), dispatch.Absent, "function_absent")

	results := make([]dispatch.Result, 20)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			results[i] = adapters[i%2].Dispatch(t.Context(), request("step-1", `{"article":"lamp","quantity":2}`))
		})
	}
	all.Wait()
	first := 0
	for _, got := range results {
		expect(t, got, dispatch.Completed, "")
		if !got.Replayed {
			first++
		}
		if got.ProviderRef == "" || got.ProviderRef != results[0].ProviderRef {
			t.Errorf("order %q, and order %q", got.ProviderRef, results[0].ProviderRef)
		}
	}
	if found := find("step-1"); found.Outcome != dispatch.Completed || found.ProviderRef != results[0].ProviderRef {
		t.Errorf("found %+v", found)
	}
	got := adapters[0].Dispatch(t.Context(), request("step-2", `{"article":"lamp","quantity":4}`))
	expect(t, got, dispatch.Rejected, "function_rejected")
	expect(t, find("step-2"), dispatch.Absent, "function_absent")
	var state string
	if err := to.QueryRow(t.Context(), "SELECT format('%s left, %s orders', available, (SELECT count(*) FROM shop.orders)) FROM shop.stock").Scan(&state); err != nil {
		t.Fatal(err)
	}
	if want := "3 left, 1 orders"; first != 1 || state != want {
		t.Errorf("%s, want %s; %s", state, want, fmt.Sprint(first, " say that they were first"))
	}
}
