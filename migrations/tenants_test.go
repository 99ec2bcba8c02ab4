package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
)

// walled is an outbox with two tenants, each with a login of its own, and a login that is no tenant's.
type walled struct {
	t                   *testing.T
	owner               *pgxpool.Pool
	acme, globex, nomad *pgxpool.Pool
}

func newWalled(t *testing.T) *walled {
	t.Helper()
	url := drainertest.Database(t)
	w := &walled{t: t, owner: drainertest.Connect(t, url)}
	w.acme, w.globex = w.tenant(url, "acme"), w.tenant(url, "globex")
	w.nomad = drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	return w
}

// tenant has a role of its own, and a login that is its member through another role.
func (w *walled) tenant(url, name string) *pgxpool.Pool {
	w.t.Helper()
	role := name + "_" + drainertest.Value[string](w.t, w.owner, "SELECT current_database()")
	drainertest.Exec(w.t, w.owner, "CREATE ROLE "+role+" NOLOGIN; CREATE ROLE team_"+role+" NOLOGIN IN ROLE "+role+", outbox_agent")
	w.t.Cleanup(func() {
		drainertest.Exec(w.t, drainertest.Connect(w.t, url), "DROP ROLE team_"+role+"; DROP ROLE "+role)
	})
	drainertest.Exec(w.t, w.owner, "INSERT INTO outbox.tenant (name, role) VALUES ($1, $2)", name, role)
	return drainertest.Connect(w.t, drainertest.Login(w.t, url, "team_"+role))
}

func TestAnIntentHasTheTenantOfItsLogin(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	const find = `SELECT coalesce(t.name, 'none') FROM outbox.intent i JOIN outbox.queue q ON q.intent_id = i.id AND q.tenant = coalesce(i.tenant, 0)
		LEFT JOIN outbox.tenant t ON t.tenant_id = i.tenant WHERE i.agent_run_id = $1`
	for tenant, agent := range map[string]*pgxpool.Pool{"acme": w.acme, "globex": w.globex, "none": w.nomad, "the superuser": w.owner} {
		want := tenant
		if agent == w.owner {
			want = "none" // a superuser is a member of every role, but no tenant's role was granted to it
		}
		for how, statement := range map[string]string{"called": callEnqueue, "inserted": plainInsert} {
			run := how + " by " + tenant
			drainertest.Exec(t, agent, statement, run, "s", "noop/x", "b", "{}")
			if got := drainertest.Column[string](t, w.owner, find, run); len(got) != 1 || got[0] != want {
				t.Errorf("%s: the tenant is %q, want %q", run, got, want)
			}
		}
	}
}

func TestALoginOfTwoTenantsIsRefused(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	drainertest.Exec(t, w.owner, `DO $$ BEGIN EXECUTE format('GRANT %I TO %I', (SELECT role FROM outbox.tenant WHERE name = 'globex'),
		(SELECT 'team_' || role FROM outbox.tenant WHERE name = 'acme')); END $$`)
	for _, statement := range []string{callEnqueue, plainInsert} {
		if _, err := w.acme.Exec(t.Context(), statement, "r", "s", "noop/x", "b", "{}"); sqlState(err) != "OB005" {
			t.Errorf("%s: got %v, want OB005", statement, err)
		}
	}
}
