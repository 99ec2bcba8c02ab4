package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// server is durable, like a healthy server and unlike the servers of other tests.
var server *throwaway.Server

const template = "doctor_template"

func TestMain(m *testing.M) {
	code, err := withServer(m.Run)
	if err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func withServer(run func() int) (code int, err error) {
	if server, err = throwaway.Start(context.Background(), throwaway.WithSettings(map[string]string{"max_connections": "200", "max_prepared_transactions": "2"})); err != nil {
		return 1, err
	}
	defer func() {
		err = errors.Join(err, server.Kill(), server.Stop()) // its data are not worth a checkpoint
	}()
	const owner = "CREATE ROLE doctor_owner LOGIN CREATEROLE PASSWORD 'owner'; ALTER ROLE doctor_owner SET search_path = pg_catalog, pg_temp"
	if err := errors.Join(administer(owner), administer("CREATE DATABASE "+template+" OWNER doctor_owner")); err != nil {
		return 1, err
	}
	u, err := url.Parse(databaseURL(template))
	if err != nil {
		return 1, err
	}
	u.User = url.UserPassword("doctor_owner", "owner")
	if _, err := migrations.Up(context.Background(), u.String()); err != nil {
		return 1, err
	}
	return run(), nil
}

// world is a set-up without faults, for a test to break.
type world struct {
	Patient
	t        *testing.T
	database string
	role     string
	password string
}

func healthy(t *testing.T) *world {
	t.Helper()
	suffix := strings.ToLower(rand.Text()[:10])
	w := &world{t: t, database: "doctor_" + suffix, role: "drainer_" + suffix, password: "hunter2-" + rand.Text()}
	w.admin("CREATE DATABASE " + w.database + " TEMPLATE " + template)
	w.admin(fmt.Sprintf("CREATE ROLE %[1]s LOGIN PASSWORD '%[2]s' IN ROLE outbox_drainer, pg_read_all_stats; "+
		"ALTER ROLE %[1]s SET search_path = pg_catalog, pg_temp; "+
		"REVOKE ALL ON DATABASE %[3]s FROM PUBLIC; GRANT CONNECT ON DATABASE %[3]s TO %[1]s", w.role, w.password, w.database))
	w.owner("INSERT INTO outbox.worker (worker_id, providers) VALUES (gen_random_uuid(), '{p}')")
	w.Patient = Patient{
		Database:  w.config(w.url("")),
		Lease:     10 * time.Minute, // the worker never beats again, and a busy machine is slow
		Limits:    Limits{Check: 5 * time.Minute},
		Providers: []dispatch.Provider{{Name: "p", Tools: map[string]dispatch.Policy{"x": {}}, Adapter: at(listen(t)), Network: dispatch.Network{}}},
	}
	return w
}

// url returns the daemon's URL of the database, with this query.
func (w *world) url(query string) string {
	u, err := url.Parse(databaseURL(w.database))
	if err != nil {
		w.t.Fatal(err)
	}
	u.User, u.RawQuery = url.UserPassword(w.role, w.password), query
	return u.String()
}

func (w *world) config(databaseURL string) *pgxpool.Config {
	w.t.Helper()
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		w.t.Fatal(err)
	}
	return config
}

// owner runs SQL in the set-up's database as a superuser.
func (w *world) owner(sql string) {
	w.t.Helper()
	if err := run(databaseURL(w.database), sql); err != nil {
		w.t.Fatal(err)
	}
}

// follow runs the commands of a cure, one statement at a time.
func (w *world) follow(cure string) {
	w.t.Helper()
	conn := w.connect()
	for statement := range strings.SplitSeq(strings.TrimSuffix(cure, ";"), ";") {
		if _, err := conn.Exec(w.t.Context(), statement); err != nil {
			w.t.Fatalf("%s: %v", statement, err)
		}
	}
	conn.Close(w.t.Context())
}

func (w *world) admin(sql string) {
	w.t.Helper()
	if err := administer(sql); err != nil {
		w.t.Fatal(err)
	}
}

// connect returns a connection that stays open until the end of the test.
func (w *world) connect() *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), databaseURL(w.database))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func (w *world) examine() []Finding {
	w.t.Helper()
	findings, _ := Examine(w.t.Context(), w.Patient)
	for _, f := range findings {
		if strings.Contains(f.Seen+f.Cure, w.password) {
			w.t.Errorf("shows a password: %+v", f)
		}
	}
	// On a busy machine every statement is slow.
	return slices.DeleteFunc(findings, func(f Finding) bool { return f.Check == "round trip" && f.Verdict == Warning })
}

// finds demands exactly one finding that is not ok, with this text. Checks that could not run because of it do not
// count.
func (w *world) finds(verdict Verdict, check, seen, cure string) Finding {
	w.t.Helper()
	var wrong []Finding
	for _, f := range w.examine() {
		if f.Verdict == Problem || f.Verdict == Warning || (verdict == NotChecked && f.Verdict == NotChecked) {
			wrong = append(wrong, f)
		}
	}
	i := slices.IndexFunc(wrong, func(f Finding) bool {
		return f.Check == check && f.Verdict == verdict && strings.Contains(f.Seen, seen) && strings.Contains(f.Cure, cure)
	})
	if i < 0 || len(wrong) != 1 {
		w.t.Fatalf("want one %s of %q, %q, with the cure %q; found %s", verdict, check, seen, cure, lines(wrong))
	}
	return wrong[i]
}

func (w *world) isWell() {
	w.t.Helper()
	for _, f := range w.examine() {
		if f.Verdict != OK {
			w.t.Errorf("%+v", f)
		}
	}
}

func lines(findings []Finding) string {
	var text strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&text, "\n\t%+v", f)
	}
	return text.String()
}

// located is an adapter with destinations, which never dispatches.
type located []dispatch.Destination

func (located) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	panic("the doctor sends nothing")
}

func (l located) Destinations() []dispatch.Destination { return l }

func at(address string) located {
	return located{{Network: "tcp", Address: address}}
}

func program(name string) located {
	return located{{Network: "program", Address: name}}
}

// listen accepts connections and sends nothing, until the end of the test.
func listen(t *testing.T) (address string) {
	t.Helper()
	return dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
}

func databaseURL(name string) string {
	u, err := url.Parse(server.URL)
	if err != nil {
		panic(err)
	}
	u.Path = "/" + name
	return u.String()
}

func administer(sql string) error { return run(server.URL, sql) }

func run(databaseURL, sql string) error {
	conn, err := pgx.Connect(context.Background(), databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}
