package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestThePagesSayHowManyConnectionsADaemonHolds(t *testing.T) {
	t.Parallel()
	for page, says := range map[string]string{"doctor": "under %d connections are free", "operations": "Allow %d connections a daemon"} {
		text, err := os.ReadFile("../../docs/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(says, DaemonConnections); !strings.Contains(string(text), want) {
			t.Errorf("docs/%s.md does not say: %s", page, want)
		}
	}
}

func TestWhatAPoolerDoesDecidesWhichStatementsItCanTake(t *testing.T) {
	t.Parallel()
	perTransaction := pooling{isPooler: true, perTransaction: true}
	keeping := pooling{isPooler: true, perTransaction: true, keepsPrepared: true}
	for _, test := range []struct {
		seen pooling
		mode pgx.QueryExecMode
		want Verdict
	}{
		{pooling{}, pgx.QueryExecModeCacheStatement, OK},
		{pooling{isPooler: true}, pgx.QueryExecModeCacheStatement, OK},
		{pooling{isPooler: true, isNarrow: true}, pgx.QueryExecModeCacheStatement, Warning},
		{pooling{isPooler: true, perStatement: true}, pgx.QueryExecModeExec, Problem},
		{perTransaction, pgx.QueryExecModeExec, OK},
		{perTransaction, pgx.QueryExecModeSimpleProtocol, OK},
		{perTransaction, pgx.QueryExecModeCacheStatement, Problem},
		{perTransaction, pgx.QueryExecModeCacheDescribe, Problem},
		{perTransaction, pgx.QueryExecModeDescribeExec, Problem},
		{keeping, pgx.QueryExecModeCacheStatement, OK},
		{keeping, pgx.QueryExecModeDescribeExec, Problem},
	} {
		if got := judgePooling(test.seen, test.mode); got.Verdict != test.want || (got.Cure == "") != (got.Verdict == OK) {
			t.Errorf("%+v with %s: %+v", test.seen, test.mode, got)
		}
	}
}

func TestPlainTextIsWorseTheFartherItGoes(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]Verdict{
		"127.0.0.1": OK, "::1": OK, "10.1.2.3": Warning, "192.168.0.7": Warning, "fd12::1": Warning, "8.8.8.8": Problem, "2606:4700::1111": Problem,
	} {
		if got := judgePlainText(netip.MustParseAddr(server)); got.Verdict != want {
			t.Errorf("%s: %+v", server, got)
		}
	}
}

// A slow round trip may hide a skew of the clocks, but it must not be reported as a skew.
func TestASkewIsBelievedBeyondTheRoundTripOnly(t *testing.T) {
	t.Parallel()
	asked := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		took, behind time.Duration
		want         Verdict
	}{
		{0, 0, OK},
		{0, 900 * time.Millisecond, OK},
		{0, 2 * time.Second, Warning},
		{0, -2 * time.Second, Warning},
		{4 * time.Second, 2 * time.Second, OK},
		{0, time.Minute, Problem},
		{0, -time.Minute, Problem},
		{time.Minute, 40 * time.Second, Warning},
	} {
		r := reading{asked: asked, answered: asked.Add(test.took), server: asked.Add(test.took/2 + test.behind)}
		if got := judgeSkew(r); got.Verdict != test.want {
			t.Errorf("%+v: %+v", test, got)
		}
	}
}

// A missing namespace is a remark, not a fault: the doctor cannot see whether there is another outbox.
func TestTheDoctorSaysWhetherKeysHaveANamespace(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	w.owner(`DELETE FROM outbox.provider`)
	says := func(want string) {
		t.Helper()
		for _, found := range w.examine() {
			if found.Check == "namespace" && found.Verdict == OK && strings.Contains(found.Seen, want) {
				return
			}
		}
		t.Errorf("it does not say %q", want)
	}
	says("no daemon has said yet")
	w.owner(`INSERT INTO outbox.provider (name, namespace) VALUES ('named', 'shop'), ('unnamed', NULL) ON CONFLICT DO NOTHING`)
	says("no namespace is set")
	w.owner(`INSERT INTO outbox.setting VALUES ('namespace', 'shop-eu')`)
	says("keys have the namespace shop-eu")
	w.owner(`DELETE FROM outbox.setting; UPDATE outbox.provider SET namespace = 'shop'`)
	says("every provider has a namespace of its own")
}

// granted lists the privileges that the migrations give to a role.
const granted = `
	SELECT p.action || ' on ' || o.name FROM (
		SELECT 'outbox' AS name, nspacl AS acl FROM pg_namespace WHERE nspname = 'outbox'
		UNION ALL
		SELECT 'outbox.' || relname, relacl FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND (relname NOT LIKE 'river\_%' OR $1 <> 'outbox_drainer')
		UNION ALL
		SELECT 'outbox.' || proname, proacl FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname NOT LIKE 'river\_%'
	) o CROSS JOIN LATERAL (SELECT privilege_type AS action FROM aclexplode(o.acl) WHERE grantee = $1::text::regrole) p
	UNION ALL
	SELECT p.privilege_type || ' (' || a.attname || ') on outbox.' || c.relname
	FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid CROSS JOIN LATERAL aclexplode(a.attacl) p
	WHERE c.relnamespace = 'outbox'::regnamespace AND p.grantee = $1::text::regrole
	ORDER BY 1`

func TestWhatARoleNeedsIsWhatTheMigrationsGrant(t *testing.T) {
	t.Parallel()
	conn := healthy(t).connect()
	for role, needs := range map[string][]privilege{drainerRole: daemonNeeds, operatorRole: operatorsNeed, agentRole: agentsNeed, auditorRole: auditorsNeed} {
		rows, _ := conn.Query(t.Context(), granted, role)
		has, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		var wants []string
		for _, need := range needs {
			for _, action := range need.actions {
				wants = append(wants, lack{Object: need.object, Column: need.column, Action: action}.String())
			}
		}
		slices.Sort(has)
		slices.Sort(wants)
		for _, name := range wants {
			if !slices.Contains(has, name) {
				t.Errorf("%s is said to need %s, which no migration grants", role, name)
			}
		}
		for _, name := range has {
			if !slices.Contains(wants, name) {
				t.Errorf("migrations grant %s to %s, which the doctor does not look at", name, role)
			}
		}
	}
}

// The console calls the doctor as a bystander, because the console's login may only read.
func TestABystanderIsNotJudgedAsADaemon(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	w.admin(fmt.Sprintf("REVOKE outbox_drainer FROM %[1]s; GRANT outbox_auditor TO %[1]s", w.role))
	grants := func() Finding {
		for _, f := range w.examine() {
			if f.Check == "daemon's grants" {
				return f
			}
		}
		return Finding{}
	}
	if f := grants(); f.Verdict != Problem {
		t.Errorf("as the daemon's login: %+v", f)
	}
	w.Bystander = true
	if f := grants(); f.Verdict != OK || f.Seen != "outbox_drainer may do what the daemon does" {
		t.Errorf("as a bystander's login: %+v", f)
	}
	w.owner("REVOKE DELETE ON outbox.queue FROM outbox_drainer")
	if f := grants(); f.Verdict != Problem || !strings.Contains(f.Seen, "outbox_drainer lacks DELETE on outbox.queue") {
		t.Errorf("without a right of the daemons: %+v", f)
	}
}

func TestThePageNamesEveryCheck(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range append(checks(), check{name: "connection"}, check{name: "provider NAME"}) {
		if !strings.Contains(string(page), "\n| "+c.name+" |") {
			t.Errorf("docs/doctor.md has no row for %q", c.name)
		}
	}
}

func TestTenantsThatAreNotWalledOffAreFound(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	says := func(verdict Verdict, want string) {
		t.Helper()
		for _, found := range w.examine() {
			if found.Check == "tenants" && found.Verdict == verdict && strings.Contains(found.Seen, want) {
				return
			}
		}
		t.Errorf("it does not say %q", want)
	}
	says(OK, "none is listed")
	w.owner(`ALTER TABLE outbox.intent ENABLE TRIGGER set_tenant`)
	says(Problem, "0 tenants are listed, and 1 of the 2 triggers")
	w.owner(`INSERT INTO outbox.tenant (name, role) VALUES ('a', 'no such role'), ('b', 'outbox_agent'), ('c', 'outbox_drainer')`)
	says(OK, "3 are walled off")
	says(Warning, "roles that do not exist: no such role")
	w.owner(`ALTER TABLE outbox.intent DISABLE TRIGGER keep_walls`)
	says(Problem, "3 tenants are listed, and 1 of the 2 triggers")
}

// From PostgreSQL 16 on, a login that created roles is a member of them, but only to administer them.
func TestALoginThatMadeTheTenantsRolesIsNoAgentOfTheirs(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	maker := "maker_" + strings.TrimPrefix(w.database, "doctor_")
	w.owner(strings.ReplaceAll(`CREATE ROLE maker LOGIN CREATEROLE IN ROLE outbox_agent; SET SESSION AUTHORIZATION maker;
		CREATE ROLE maker_a NOLOGIN; CREATE ROLE maker_b NOLOGIN; RESET SESSION AUTHORIZATION;
		INSERT INTO outbox.tenant (name, role) VALUES ('a', 'maker_a'), ('b', 'maker_b')`, "maker", maker))
	for _, found := range w.examine() {
		if found.Check == "tenants" && found.Verdict == Problem {
			t.Errorf("it says %q", found.Seen)
		}
	}
	w.owner(strings.ReplaceAll("SET SESSION AUTHORIZATION maker; GRANT maker_a, maker_b TO maker", "maker", maker))
	if !slices.ContainsFunc(w.examine(), func(found Finding) bool {
		return found.Check == "tenants" && found.Verdict == Problem && strings.Contains(found.Seen, maker)
	}) {
		t.Error("it does not say that the login has the roles of two tenants")
	}
}
