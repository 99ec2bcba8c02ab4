package faults_test

import (
	"net/url"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/world"
)

// Two daemons share the server connections of one pooler, with sagas under way.
func TestDaemonsBehindAPoolerInTransactionModeDrain(t *testing.T) {
	t.Parallel()
	w := world.New(t, nil)
	behind := "DATABASE_URL=" + drainertest.PgBouncer(t, unprepared(t, w.URL), "transaction", 10)
	w.Start(behind)
	w.Start(behind)
	stop := w.Agents(everyClass...)
	for range 5 {
		run := w.NewRun()
		w.Step(run, 1, world.Order)
		w.Step(run, 2, world.Declined)
	}
	w.AwaitMoreEffects(100)
	stop()
	w.AwaitRest()
	fault.Injected(t, 26, w.Count(`SELECT count(*) FROM outbox.attempt`))
	w.Check()
	if back := w.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`); back != 5 {
		t.Errorf("%d of 5 runs went back", back)
	}
}

// unprepared is the URL without prepared statements, which such a pooler loses.
func unprepared(t *testing.T, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("default_query_exec_mode", "exec")
	u.RawQuery = query.Encode()
	return u.String()
}
