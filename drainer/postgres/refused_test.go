package postgres_test

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
)

// shutFor shuts a gate for that reason, so many hours ago; its next probe is a minute away.
func (o *outbox) shutFor(gate, table string, reason drainer.OpenReason, hours int) {
	o.t.Helper()
	o.exec(`UPDATE outbox.`+table+` SET state = 'open', reason = $2, open_until = now() + interval '1 minute',
		shut_at = now() - make_interval(hours => $3) WHERE name = $1`, gate, string(reason), hours)
}

func (o *outbox) expireRefused(worker string, after time.Duration) (ended []drainer.Settlement) {
	o.t.Helper()
	ended, err := o.ExpireRefused(o.t.Context(), worker, []string{"sim"}, after, func(row *drainer.Row) (drainer.Settlement, bool) {
		return drainer.Settlement{
			Row: row, FinishedAt: time.Now(), Result: dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "misconfigured"},
			Decision: dispatch.Policy{}.Halt(row.History(time.Time{}, time.Now())),
		}, true
	})
	if err != nil {
		o.t.Fatal(err)
	}
	drainertest.AssertInvariant(o.t, o.db)
	return ended
}

func TestAConfigurationThatIsNewHereIsTriedAtOnceWhereThisSideWasRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.joinWith("sim/act", "sim/slow", "sim/wrong")
	o.shutFor("sim", "provider", drainer.CredentialsRefused, 0)
	o.shutFor("sim/act", "tool", drainer.Forbidden, 0)
	o.shutFor("sim/wrong", "tool", drainer.Misconfigured, 0)
	o.shutFor("sim/slow", "tool", drainer.FailureRate, 0)
	const cooling = `SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM (
		SELECT name, open_until FROM outbox.provider UNION ALL SELECT name, open_until FROM outbox.tool) g WHERE open_until > now()`
	for _, step := range []struct {
		provider, want string
	}{{"other", "sim sim/act sim/slow sim/wrong"}, {"sim", "sim/slow"}} {
		if err := o.ProbeNow(t.Context(), []string{step.provider}); err != nil {
			t.Fatal(err)
		}
		if got := stored[string](o, cooling); got != step.want {
			t.Errorf("for %s: these wait for a later probe: %s, want %s", step.provider, got, step.want)
		}
	}
	if got := o.toolState("sim/act"); got != "open forbidden since" {
		t.Errorf("the operation is %s, want it to stay shut until its probe", got)
	}
}

func TestRowsOfARefusedConfigurationFailOnceTheyAndItsGateWaitedSoLong(t *testing.T) {
	t.Parallel()
	for name, shut := range map[string]struct {
		gate, table, lane string
		reason            drainer.OpenReason
	}{
		"refused":       {"sim", "provider", "sim", drainer.CredentialsRefused},
		"forbidden":     {"sim/act", "tool", "sim/act", drainer.Forbidden},
		"misconfigured": {"sim/act", "tool", "sim/act", drainer.Misconfigured},
	} {
		o := newOutbox(t)
		worker := o.joinWith("sim/act")
		o.enqueue("run", 0, 3)
		o.exec(`UPDATE outbox.queue SET provider = $1`, shut.lane)
		o.shutFor(shut.gate, shut.table, shut.reason, 25)
		if early := o.expireRefused(worker, 24*time.Hour); len(early) != 0 {
			t.Errorf("%s: %d rows ended that were enqueued just now", name, len(early))
		}
		o.exec(`ALTER TABLE outbox.intent DISABLE TRIGGER USER`)
		o.exec(`UPDATE outbox.intent SET created_at = now() - interval '2 days'`)
		o.exec(`ALTER TABLE outbox.intent ENABLE TRIGGER USER`)
		if early := o.expireRefused(worker, 26*time.Hour); len(early) != 0 {
			t.Errorf("%s: %d rows ended although their gate was shut later", name, len(early))
		}
		o.exec(`UPDATE outbox.queue SET maybe_applied = true, first_attempt_at = now() WHERE intent_id = 2`)
		if ended := o.expireRefused(worker, 24*time.Hour); len(ended) != 3 {
			t.Errorf("%s: %d rows ended, want 3", name, len(ended))
		}
		if got := stored[string](o, `SELECT string_agg(status || ' ' || last_error, ', ' ORDER BY intent_id) FROM outbox.status`); got != "failed misconfigured, unknown misconfigured, failed misconfigured" {
			t.Errorf("%s: they are %s", name, got)
		}
	}
}

func TestAnOverloadedProvidersRowsWaitForEver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.joinWith("sim/act")
	o.enqueue("run", 0, 3)
	o.exec(`ALTER TABLE outbox.intent DISABLE TRIGGER USER`)
	o.exec(`UPDATE outbox.intent SET created_at = now() - interval '2 days'`)
	o.shutFor("sim", "provider", drainer.Overloaded, 48)
	if ended := o.expireRefused(worker, time.Hour); len(ended) != 0 {
		t.Errorf("%d rows ended", len(ended))
	}
}
