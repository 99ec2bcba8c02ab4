package faults_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/pgproxy"
)

// An agent may create in public, which the daemon's login and an operator's have on their path.
// It shadows functions and operators there, and each that runs leaves the login it ran as.
func TestWhatAnAgentCreatesInPublicRunsAsNoDaemonAndNoOperator(t *testing.T) {
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("behind a pooler is %t", pooled), func(t *testing.T) {
			t.Parallel()
			rig := harness.New(t, nil)
			pager := newPager(t, rig)
			pager.up.Store(true)
			// The test's own connections are not what is looked at, and need a database that works.
			rig.Exec(fmt.Sprintf("ALTER DATABASE %s SET search_path = pg_catalog, pg_temp", drainertest.Value[string](t, rig.DB, "SELECT current_database()")))
			rig.DB.Reset()
			daemon, operator, agent := loginOf(t, rig, "outbox_drainer"), loginOf(t, rig, "outbox_operator"), loginOf(t, rig, "outbox_agent")
			rig.Exec("GRANT CREATE, USAGE ON SCHEMA public TO " + agent.User.Username())
			shadow(t, agent)
			if ran := attack(t, rig, daemon); ran != 2 {
				t.Fatal("the attack does not work, so this test shows nothing")
			}
			fault.Injected(t, 65, rig.Count(`SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace`))

			for _, login := range []*url.URL{daemon, operator} {
				if pooled { // it takes no search_path at login
					refused := new(atomic.Int64)
					through, err := url.Parse(pgproxy.RefuseSettings(t, login.String(), refused))
					if err != nil {
						t.Fatal(err)
					}
					*login = *through
					t.Cleanup(func() {
						if refused.Load() == 0 {
							t.Error("no setting was refused, so nothing was behind a pooler")
						}
					})
				}
			}
			rig.Start("DATABASE_URL=" + daemon.String())
			stop := rig.Agents(everyClass...)
			for range 3 {
				run := rig.NewRun()
				rig.Step(run, 1, harness.Order)
				rig.Step(run, 2, harness.Declined)
			}
			rig.AwaitMoreEffects(50)
			stop()
			rig.AwaitCount("runs are taken back", 3, `SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`)
			rig.AwaitCount("River works, or would if its own SQL ran", 1,
				`SELECT count(*) FROM (SELECT FROM outbox.river_job WHERE kind = 'page_look' AND state = 'completed' UNION ALL SELECT FROM public.taken) s`)
			rig.AwaitRest()
			console := rig.Program.For(t)
			console.Env = append(console.Env, "DATABASE_URL="+operator.String())
			for _, command := range []string{
				"status", "intents list", "intents list --dead", "intents show 1", "sagas list", "incidents list", "providers list",
				"providers pause keyed --reason test --operator ada", "providers resume keyed --reason test --operator ada",
			} {
				console.Run(0, strings.Fields(command)...)
			}
			rig.Check()
			for _, taken := range drainertest.Column[string](t, rig.DB, `SELECT login || ' calls ' || what FROM public.taken GROUP BY login, what ORDER BY 1`) {
				t.Errorf("the agent's code ran: %s", taken)
			}
		})
	}
}

// loginOf is a login of that role, with public on its path.
func loginOf(t *testing.T, rig *harness.Rig, role string) *url.URL {
	t.Helper()
	name := strings.ToLower(role[len("outbox_"):] + "_" + rand.Text())
	rig.Exec(fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD 'login' IN ROLE %[2]s; ALTER ROLE %[1]s SET search_path = "$user", public`, name, role))
	t.Cleanup(func() { rig.Exec(fmt.Sprintf("DROP OWNED BY %[1]s CASCADE; DROP ROLE %[1]s", name)) })
	address, err := url.Parse(rig.URL)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(name, "login")
	return address
}

func shadow(t *testing.T, agent *url.URL) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), agent.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{
		`CREATE TABLE public.taken (login text, what text); GRANT INSERT ON public.taken TO PUBLIC`,
		`CREATE FUNCTION public.attack() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
			DECLARE stack text;
			BEGIN
			  GET DIAGNOSTICS stack = PG_CONTEXT;
			  INSERT INTO public.taken VALUES (session_user, stack || ' in ' || current_query());
			  RETURN true;
			END $$`,
		drainertest.ShadowRoutines,
		`CREATE FUNCTION public.shadow(outbox.river_job_state, outbox.river_job_state) RETURNS boolean LANGUAGE plpgsql
			SET search_path = pg_catalog, pg_temp AS 'BEGIN PERFORM public.attack(); RETURN NULL; END'`,
		`CREATE OPERATOR public.= (FUNCTION = public.shadow, LEFTARG = outbox.river_job_state, RIGHTARG = outbox.river_job_state)`,
	} {
		drainertest.Exec(t, conn, sql)
	}
}

// attack shows that a careless statement of that login would run what the agent created, and
// forgets that it did.
func attack(t *testing.T, rig *harness.Rig, login *url.URL) (ran int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), login.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	drainertest.Exec(t, conn, `SELECT 1::bigint - 0.5::float8, 'available'::outbox.river_job_state = 'available'`)
	ran = rig.Count(`SELECT count(*) FROM public.taken`)
	rig.Exec(`DELETE FROM public.taken`)
	return ran
}
