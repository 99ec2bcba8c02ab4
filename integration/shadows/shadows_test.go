package shadows_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// joined lists the files that build a statement at run time, each with the text that this test puts into it.
var joined = map[string]string{
	"dispatch/postgres/send.go": "inbox.message", // a table and a function
	"drainer/postgres/store.go": "",
	"compensations/store.go":    "",
}

// Behind a pooler a single statement runs with the search_path of the login. An agent may be allowed to create
// functions in a schema of that path. The statement must not call these functions.
func TestNoStatementOfTheProgramCallsWhatAStrangerCreates(t *testing.T) {
	t.Parallel()
	all, mixed, err := statements()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range mixed {
		file, _, _ := strings.Cut(s.place, ":")
		name, known := joined[file]
		if !known {
			t.Errorf("%s: %q is put together as the program runs, and so cannot be judged; make it a constant", s.place, s.sql)
			continue
		}
		all = append(all, source{s.place, strings.TrimPrefix(strings.ReplaceAll(s.sql, " … ", name), "; ")})
	}
	if len(all) < 100 {
		t.Fatalf("only %d statements were found", len(all))
	}

	url := drainertest.Database(t)
	j, err := newJudge(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	drainertest.Exec(t, drainertest.Connect(t, url), `CREATE SCHEMA inbox;
		CREATE TABLE inbox.message (agent_run_id text, step_id text, tool_name text, business_scope text, idempotency_key text,
			payload jsonb, headers jsonb, UNIQUE (agent_run_id, step_id, tool_name, business_scope));
		CREATE FUNCTION inbox.message(jsonb, text, text, text, text, text) RETURNS jsonb LANGUAGE sql AS 'SELECT $1'`)
	for _, s := range all {
		found, err := j.verdicts(t.Context(), s.sql)
		var refusal *pgconn.PgError
		if errors.As(err, &refusal) && refusal.Message == "syntax error at end of input" {
			continue // it is the beginning of other statements, which are judged as a whole
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", s.place, err, s.sql)
		}
		for _, call := range found {
			t.Errorf("%s: a stranger's function could be called. %s", s.place, call)
		}
	}
}

// The judge must find a statement exactly if the existing shadows take it over.
func TestTheJudgeFindsWhatAShadowTakesOver(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	drainertest.Exec(t, drainertest.Connect(t, url), `
		CREATE FUNCTION public.s1(bigint, float8) RETURNS float8 LANGUAGE sql AS 'SELECT 0';
		CREATE OPERATOR public.- (FUNCTION = public.s1, LEFTARG = bigint, RIGHTARG = float8);
		CREATE FUNCTION public.s1(int, text) RETURNS text LANGUAGE sql AS 'SELECT 0';
		CREATE OPERATOR public.|| (FUNCTION = public.s1, LEFTARG = int, RIGHTARG = text);
		CREATE FUNCTION public.s1(varchar, varchar) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		CREATE OPERATOR public.= (FUNCTION = public.s1, LEFTARG = varchar, RIGHTARG = varchar);
		CREATE FUNCTION public.s1(jsonb, varchar) RETURNS text LANGUAGE sql AS 'SELECT 0';
		CREATE FUNCTION public.s1(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		CREATE OPERATOR public.= (FUNCTION = public.s1, LEFTARG = bigint, RIGHTARG = bigint);
		CREATE OPERATOR public.- (FUNCTION = public.s1, LEFTARG = bigint, RIGHTARG = bigint);
		CREATE FUNCTION public.length(varchar) RETURNS int LANGUAGE sql AS 'SELECT 0';
		CREATE FUNCTION public.length(text) RETURNS int LANGUAGE sql AS 'SELECT 0';
		CREATE FUNCTION public.cardinality(int[]) RETURNS int LANGUAGE sql AS 'SELECT 0';
		CREATE FUNCTION public.unnest(int[]) RETURNS SETOF int LANGUAGE sql AS 'SELECT 0';
		CREATE FUNCTION public.concat(text) RETURNS text LANGUAGE sql AS 'SELECT 0';
		CREATE FUNCTION public.make_interval(secs int) RETURNS interval LANGUAGE sql AS 'SELECT interval ''0 s''';
		CREATE FUNCTION public.make_interval(secs float8) RETURNS interval LANGUAGE sql AS 'SELECT interval ''0 s''';
		CREATE FUNCTION public.extract(text, interval) RETURNS numeric LANGUAGE sql AS 'SELECT 0';
		CREATE FUNCTION public.count() RETURNS int LANGUAGE sql AS 'SELECT 0';
		CREATE AGGREGATE public.count(int) (SFUNC = int4pl, STYPE = int);
		CREATE AGGREGATE public.max(varchar) (SFUNC = textcat, STYPE = text);
		CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT null::timestamptz'`)
	j, err := newJudge(t.Context(), url) // after the shadows, so that it knows them
	if err != nil {
		t.Fatal(err)
	}

	for _, test := range []struct {
		sql   string
		taken bool
	}{
		{`SELECT 5::bigint - 0.5::float8`, true},
		{`SELECT 5::bigint::float8 - 0.5::float8`, false},
		{`SELECT 5::bigint OPERATOR(pg_catalog.-) 0.5::float8`, false},
		{`SELECT 5::bigint - 4::bigint`, false},
		{`SELECT 1 || 'a'::text`, true},
		{`SELECT 1::text || 'a'`, false},
		{`SELECT length('a'::varchar)`, true},
		{`SELECT length('a'::varchar::text)`, false},
		{`SELECT length('a'::varchar COLLATE "C")`, true},
		{`SELECT pg_catalog.length('a'::varchar)`, false},
		{`SELECT cardinality(ARRAY[1])`, true},
		{`SELECT pg_catalog.cardinality(ARRAY[1])`, false},
		{`SELECT unnest(ARRAY[1])`, true},
		{`SELECT FROM unnest(ARRAY[1]) x`, true},
		{`SELECT FROM unnest(ARRAY[1], ARRAY[2]) x`, false},
		{`SELECT concat('a'::text)`, true},
		{`SELECT make_interval(secs => 1)`, true},
		{`SELECT make_interval(secs => 1::float8)`, false},
		{`SELECT extract(epoch FROM interval '1 s')`, false},
		{`SELECT count(*)`, false},
		{`SELECT count(1)`, true},
		{`SELECT count(1) OVER ()`, true},
		{`SELECT max('a'::varchar)`, true},
		{`SELECT now()`, false},
		{`SELECT 'a'::varchar IN ('a')`, true},
		{`SELECT 'a'::varchar = ANY (ARRAY['a'::varchar])`, true},
		{`SELECT 'a'::text = ANY (ARRAY['a'::text])`, false},
		{`SELECT 'a'::varchar IS DISTINCT FROM 'b'::varchar`, true},
		{`SELECT nullif('a'::varchar, 'b'::varchar)`, true},
		{`SELECT CASE 'a'::varchar WHEN 'b'::varchar THEN 1 END`, true},
		{`SELECT CASE 'a'::text WHEN 'b' THEN 1 END`, false},
		{`SELECT FROM (VALUES ('a'::varchar)) a (x) JOIN (VALUES ('a'::varchar)) b (x) USING (x)`, true},
		{`SELECT FROM outbox.intent JOIN outbox.queue USING (agent_run_id)`, false},
		{`SELECT FROM outbox.intent WHERE (id, provider) > (1::bigint, 'a')`, false},
		{`SELECT FROM outbox.intent WHERE id = $1::bigint`, false},
	} {
		found, err := j.verdicts(t.Context(), test.sql)
		if err != nil {
			t.Errorf("%s: %v", test.sql, err)
			continue
		}
		if judged := len(found) > 0; judged != test.taken {
			t.Errorf("%s: the judge found %q, want it to find something: %t", test.sql, found, test.taken)
		}
		if taken, err := j.strangers(t.Context(), test.sql); err != nil || (len(taken) > 0) != test.taken {
			t.Errorf("%s: the shadows take over %q (%v), want them to: %t", test.sql, taken, err, test.taken)
		}
	}

	// The judge always refuses a statement that depends on the client or on the shadow.
	for _, sql := range []string{
		`SELECT FROM outbox.intent WHERE id = $1`,
		`SELECT length($1)`,
		`SELECT starts_with(step_id, 'compensate:') FROM outbox.intent`,
		`SELECT payload ->> 'a' FROM outbox.intent`,
		`SELECT FROM outbox.river_job WHERE state = 'available'`,
		`SELECT FROM outbox.intent WHERE ('a'::varchar, id) > ('b'::varchar, 1::bigint)`,
		`SELECT ('a'::varchar, 1) = ('a'::varchar, 2)`,
		`SELECT percentile_cont(0.5::float8) WITHIN GROUP (ORDER BY 1::float8)`,
	} {
		if found, err := j.verdicts(t.Context(), sql); err != nil || len(found) == 0 {
			t.Errorf("%s: the judge found %q, %v; want a call that could be taken over", sql, found, err)
		}
	}
}
