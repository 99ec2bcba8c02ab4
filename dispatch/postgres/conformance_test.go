package postgres_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/postgres"
)

// moody makes a recipient behave as the table shop.mood says.
const moody = `CREATE TABLE shop.mood (mood text NOT NULL); INSERT INTO shop.mood VALUES ('answering');
	ALTER TABLE shop.deed ADD UNIQUE (key);
	CREATE FUNCTION shop.feel() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		CASE (SELECT mood FROM shop.mood)
		WHEN 'throttling' THEN RAISE 'not now' USING ERRCODE = 'lock_not_available';
		WHEN 'rejecting' THEN RAISE 'no';
		ELSE RETURN NEW; END CASE; END $$;
	CREATE TRIGGER feel BEFORE INSERT ON inbox.message FOR EACH ROW EXECUTE FUNCTION shop.feel();`

const moodyFunction = `DECLARE mood text := (SELECT m.mood FROM shop.mood m); BEGIN
	IF mood IN ('throttling', 'rejecting') THEN
		RETURN jsonb_build_object('outcome', CASE mood WHEN 'throttling' THEN 'throttled' ELSE 'rejected' END);
	ELSIF mood = 'busy' THEN
		RETURN '{"outcome":"in_flight"}';
	END IF;
	INSERT INTO shop.deed VALUES (key, payload) ON CONFLICT DO NOTHING;
	RETURN jsonb_build_object('outcome', 'completed', 'ref', key, 'replayed', NOT FOUND); END`

func TestInboxConforms(t *testing.T) {
	t.Parallel()
	dispatchtest.Conform(t, dispatchtest.Subject{
		Kind: postgres.Kind(),
		Start: func(t *testing.T) dispatchtest.Counterpart {
			return counterpart(t, intoInbox, keyMark, "SELECT idempotency_key, payload::text FROM inbox.message ORDER BY received_at")
		},
		Cannot: map[dispatchtest.Situation]string{
			dispatchtest.Busy: "an insert waits for an earlier one of the same key, and then knows what became of it",
		},
	})
}

func TestFunctionConforms(t *testing.T) {
	t.Parallel()
	dispatchtest.Conform(t, dispatchtest.Subject{
		Kind: postgres.Kind(),
		Start: func(t *testing.T) dispatchtest.Counterpart {
			// Until COMMIT arrives nothing has been asked for.
			return counterpart(t, callFunction, "commit", "SELECT key, payload::text FROM shop.deed")
		},
	})
}

// counterpart is a real server behind a proxy that acts at mark.
func counterpart(t *testing.T, tool, mark, received string) dispatchtest.Counterpart {
	to := newRecipient(t, moody)
	to.function(moodyFunction)
	password := "hush-5f1c-hush"
	through := newProxy(t, changed(t, to.url, func(u *url.URL) {
		if real, asked := u.User.Password(); asked {
			password = real
		}
		u.User = url.UserPassword(u.User.Username(), password)
	}))
	reachable := true
	return dispatchtest.Counterpart{
		Settings: fmt.Sprintf("url: %q", with(through.url, "pool_max_conns=8")), // the server is not ours alone
		Tool:     tool,
		Payload:  json.RawMessage(`{"order": "a-long-order-number", "cents": 4200}`),
		Exact:    json.RawMessage(`{"a": 123456789012345678901234567890.10, "b": [9007199254740993, -0.1000000000000000055511151231257827]}`),
		Secrets:  []string{password},
		Received: func() []dispatchtest.Message { return to.messages(received) },
		Enter: func(situation dispatchtest.Situation) {
			to.execute("UPDATE shop.mood SET mood = $1", situation)
			switch situation {
			case dispatchtest.Severing:
				through.intercept(hangUpAfter(mark))
			case dispatchtest.Silent:
				through.intercept(swallow(mark))
			case dispatchtest.Babbling:
				through.intercept(babble(mark))
			default:
				through.intercept(nil)
			}
			switch {
			case situation == dispatchtest.Unreachable:
				through.cut()
			case !reachable:
				through.mend()
			}
			reachable = situation != dispatchtest.Unreachable
		},
	}
}

func (r recipient) messages(sql string) []dispatchtest.Message {
	rows, err := r.Query(r.t.Context(), sql)
	if err != nil {
		r.t.Error(err)
		return nil
	}
	messages, err := pgx.CollectRows(rows, pgx.RowToStructByPos[dispatchtest.Message])
	if err != nil {
		r.t.Error(err)
	}
	return messages
}

// sql is the text of a file that users copy.
func sql(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheDocumentedInboxIsTheTestedOne(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/adapters/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```sql\n"+sql(t, "inbox.sql")+"```\n") {
		t.Error("docs/adapters/postgres.md does not show inbox.sql as it is")
	}
}

func TestTheDocumentedFunctionsWork(t *testing.T) {
	t.Parallel()
	to := newRecipient(t,
		`CREATE TABLE shop.orders (id bigint GENERATED ALWAYS AS IDENTITY, idempotency_key text PRIMARY KEY, article text NOT NULL, quantity integer NOT NULL);
		CREATE TABLE shop.stock (article text PRIMARY KEY, available integer NOT NULL); INSERT INTO shop.stock VALUES ('lamp', 5)`,
		sql(t, "../../examples/postgres/place_order.sql"), sql(t, "../../examples/postgres/find_order.sql"))
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
