package postgres_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/postgres"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestSettingsAreChecked(t *testing.T) {
	t.Parallel()
	const good = "url: postgres://u:canary@db.example.com/shop"
	dispatchtest.Refuses(t, postgres.Kind(), dispatchtest.Mistakes{
		"no URL":               {"url: ''", intoInbox, "url is missing"},
		"keywords":             {"url: host=db user=u password=canary dbname=x", intoInbox, "does not begin with postgres://"},
		"another scheme":       {"url: mysql://u:canary@db/x", intoInbox, "does not begin with postgres://"},
		"no user":              {"url: postgres://db.example.com/canary", intoInbox, "names no user"},
		"empty user":           {"url: postgres://:canary@db.example.com/x", intoInbox, "names no user"},
		"no host":              {"url: postgres://u:canary@/x", intoInbox, "names no host"},
		"a socket":             {"url: postgres://u:canary@/x?host=/var/run/canary", intoInbox, "names a socket"},
		"no database":          {"url: postgres://u:canary@db.example.com", intoInbox, "names no database"},
		"bad port":             {"url: postgres://u:canary@db.example.com:canary/x", intoInbox, "url: an option"},
		"bad mode":             {good + "?default_query_exec_mode=canary", intoInbox, "url: an option"},
		"bad options":          {good + "?a=%zzcanary", intoInbox, "options that are not written"},
		"half-way TLS":         {good + "?sslmode=require", intoInbox, "neither verify-full"},
		"TLS if it likes":      {good + "?sslmode=prefer", intoInbox, "neither verify-full"},
		"said twice":           {good + "?sslmode=verify-full&sslmode=disable", intoInbox, "neither verify-full"},
		"files":                {good + "?sslrootcert=/canary", intoInbox, "tls block"},
		"a service":            {good + "?service=canary", intoInbox, "tls block"},
		"neither":              {good, "{}", "one of inbox and function"},
		"both":                 {good, "{inbox: a.b, function: a.b}", "one of inbox and function"},
		"no schema":            {good, "inbox: canary", "inbox: write schema.name"},
		"injection":            {good, `function: 'a.b(); DROP TABLE canary'`, "function: write schema.name"},
		"a field that is none": {good, "{inbox: a.b, colour: canary}", "column 14"},
	})
}

func TestAnInboxIsNoLookup(t *testing.T) {
	t.Parallel()
	for name, tool := range map[string]dispatch.ToolSpec{
		"read-only":       {Class: dispatch.ReadOnly},
		"answers lookups": {Class: dispatch.KeyIdempotent, AnswersLookups: true},
	} {
		s := spec("postgres://u@db.example.com/shop", "")
		tool.Settings = dispatchtest.Block(intoInbox)
		s.Tools["order"] = tool
		if _, err := postgres.New(s); err == nil || !strings.Contains(err.Error(), "tool order: an inbox is written to") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryHostIsTriedInTurn(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	u := changed(t, to.url, func(u *url.URL) { u.Host = "127.0.0.1:1," + u.Host })
	dispatchtest.Expect(t, newAdapter(t, spec(u, intoInbox)).Dispatch(t.Context(), request("step-1", `{}`)), dispatch.Completed, "")
}

// The daemon's environment must not apply to a recipient. Otherwise one database would get the password of another.
func TestTheDaemonsOwnEnvironmentIsNotTheRecipients(t *testing.T) {
	for name, value := range map[string]string{
		"PGPASSWORD": "canary", "PGSSLMODE": "require", "PGSSLROOTCERT": "/none", "PGPORT": "1", "PGHOST": "db.invalid", "PGUSER": "canary", "PGDATABASE": "canary",
	} {
		t.Setenv(name, value)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	heard := make(chan string, 1)
	go func() { heard <- askForPassword(listener) }()
	var asked addresses
	s := spec("postgres://u@db.example.com/shop?sslmode=disable", intoInbox)
	s.Network = dispatch.NewNetwork(func(ctx context.Context, network, address string) (net.Conn, error) {
		asked.add(address)
		return new(net.Dialer).DialContext(ctx, network, listener.Addr().String())
	}, nil)
	if got := newAdapter(t, s).Dispatch(t.Context(), request("step-1", `{}`)); got.Outcome != dispatch.NotSent {
		t.Errorf("got %+v", got)
	}
	if all := asked.all(); slices.ContainsFunc(all, func(address string) bool { return address != "db.example.com:5432" }) {
		t.Errorf("connected to %s", all)
	}
	if said := <-heard; !strings.Contains(said, "user\x00u\x00") || strings.Contains(said, "canary") {
		t.Errorf("said %q", said)
	}
}

// askForPassword accepts one connection as a server that demands a password in clear text. It returns all that it
// got.
func askForPassword(listener net.Listener) (heard string) {
	conn, err := listener.Accept()
	if err != nil {
		return ""
	}
	defer conn.Close()
	buffer := make([]byte, 4096)
	n, _ := conn.Read(buffer)
	heard = string(buffer[:n])
	_, _ = conn.Write([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 3})
	n, _ = conn.Read(buffer)
	return heard + string(buffer[:n])
}

// TestTLSIsTheNetworks puts TLS before a real server.
func TestTLSIsTheNetworks(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	certified := httptest.NewTLSServer(nil) // for its certificate of 127.0.0.1 and example.com
	t.Cleanup(certified.Close)
	front := tlsFront(t, to.url, certified.TLS.Certificates[0])
	authority := x509.NewCertPool()
	authority.AddCert(certified.Certificate())
	for name, test := range map[string]struct {
		host    string
		tls     *tls.Config
		outcome dispatch.Outcome
		class   string
	}{
		"trusted":           {"example.com", &tls.Config{RootCAs: authority}, dispatch.Completed, ""},
		"by another name":   {"db.invalid", &tls.Config{RootCAs: authority, ServerName: "example.com"}, dispatch.Completed, ""},
		"of another host":   {"db.invalid", &tls.Config{RootCAs: authority}, dispatch.NotSent, "tls"},
		"unknown authority": {"example.com", nil, dispatch.NotSent, "tls"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec(changed(t, to.url, func(u *url.URL) { u.Host, u.RawQuery = test.host, "" }), intoInbox)
			s.Network = dispatch.NewNetwork(func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, front)
			}, test.tls)
			dispatchtest.Expect(t, newAdapter(t, s).Dispatch(t.Context(), request(name, `{}`)), test.outcome, test.class)
		})
	}
}

// tlsFront accepts each request for TLS, and passes the decrypted bytes on to the server.
func tlsFront(t *testing.T, databaseURL string, certificate tls.Certificate) string {
	t.Helper()
	server := ""
	changed(t, databaseURL, func(u *url.URL) { server = u.Host })
	return dispatchtest.OpenGate(t, server, func(client, server net.Conn) {
		request := make([]byte, 8)
		if _, err := client.Read(request); err != nil || string(request) != "\x00\x00\x00\x08\x04\xd2\x16\x2f" {
			return
		}
		_, _ = client.Write([]byte{'S'})
		secure := tls.Server(client, &tls.Config{Certificates: []tls.Certificate{certificate}})
		if secure.Handshake() == nil {
			dispatchtest.Carry(secure, server, math.MaxInt64, math.MaxInt64)
		}
	}).Address
}

// The egress rules may know names only, so a cancellation must use the name too. Without the cancellation, the
// server goes on with a statement whose caller has gone.
func TestACancellationGoesWhereTheNameLeads(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	real := ""
	s := spec(changed(t, to.url, func(u *url.URL) { real, u.Host = u.Host, "db.example.com" }), intoInbox)
	s.Network = dispatch.NewNetwork(func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != "db.example.com:5432" {
			return nil, dispatch.ErrEgressRefused
		}
		return new(net.Dialer).DialContext(ctx, network, real)
	}, nil)
	// The backend ends while the lock is still held.
	got, _ := to.cutShort(newAdapter(t, s), "LOCK inbox.message", func(_ int, cancel context.CancelFunc) { cancel() })
	dispatchtest.Expect(t, got, dispatch.Ambiguous, "cancelled")
}

// addresses records the addresses that a dialer got.
type addresses struct {
	mu    sync.Mutex
	asked []string
}

func (a *addresses) add(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, address)
}

func (a *addresses) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

func TestAnAdapterSaysWhichServersItConnectsTo(t *testing.T) {
	t.Parallel()
	dispatchtest.ConnectsTo(t, postgres.Kind(), map[string][]dispatch.Destination{
		"url: postgres://u:canary@db.example.com/shop":                                        {{Network: "tcp", Address: "db.example.com:5432", TLS: dispatch.UpgradedTLS}},
		"url: postgres://u:canary@a.example.com:6000,b.example.com:6001/shop?sslmode=disable": {{Network: "tcp", Address: "a.example.com:6000"}, {Network: "tcp", Address: "b.example.com:6001"}},
	})
}

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
			// Before COMMIT arrives, nothing can have an effect.
			return counterpart(t, callFunction, "commit", "SELECT key, payload::text FROM shop.deed")
		},
	})
}

// counterpart returns a real server behind a proxy that acts at mark.
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
	return dispatchtest.Counterpart{
		Settings: fmt.Sprintf("url: %q", with(through.url, "pool_max_conns=8")), // other tests use the server too
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
			if situation == dispatchtest.Unreachable {
				through.Shut()
			} else {
				through.Open()
			}
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

func TestTheDocumentedInboxIsTheTestedOne(t *testing.T) {
	t.Parallel()
	if !strings.Contains(sql(t, "../../docs/adapters/postgres.md"), "```sql\n"+sql(t, "inbox.sql")+"```\n") {
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
	dispatchtest.Expect(t, find("step-1"), dispatch.Absent, "function_absent")

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
		dispatchtest.Expect(t, got, dispatch.Completed, "")
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
	dispatchtest.Expect(t, got, dispatch.Rejected, "function_rejected")
	dispatchtest.Expect(t, find("step-2"), dispatch.Absent, "function_absent")
	state := drainertest.Value[string](t, to, "SELECT format('%s left, %s orders', available, (SELECT count(*) FROM shop.orders)) FROM shop.stock")
	if want := "3 left, 1 orders"; first != 1 || state != want {
		t.Errorf("%s, want %s; %s", state, want, fmt.Sprint(first, " say that they were first"))
	}
}
