package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
)

func TestARequestThatDoesNotReachTheDatabaseSaysWhatItWas(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	over, end := context.WithCancel(t.Context())
	end()
	for want, ask := range map[string]func() error{
		"turn: ":                        func() error { _, err := o.Turn(over, o.join(), claimOf(1)); return err },
		"take back claims: ":            func() error { _, err := o.Reap(over, []string{"sim"}, as(dispatch.Lost)); return err },
		"count due rows: ":              func() error { _, err := o.Due(over, []string{"sim"}); return err },
		"read the gates: ":              func() error { _, err := o.Gates(over, o.join()); return err },
		"read which runs were closed: ": func() error { _, err := o.Closed(over, o.join()); return err },
	} {
		if err := ask(); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q and the cause", err, want)
		}
	}
}

func TestAnUnusableURLIsRefusedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	store, err := postgres.Open(t.Context(), "postgres://ann:canary@127.0.0.1:no-port/outbox")
	if err == nil || store != nil {
		t.Fatal("it was taken")
	}
	if !strings.HasPrefix(err.Error(), "database URL: ") || strings.Contains(err.Error(), "canary") {
		t.Errorf("it says %q", err)
	}
}

// What a dead worker left is read after it was locked. Should that fail, all
// stays as it was, for the next reaper.
func TestRecoveringThatFailsHalfWayTakesNothingBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	o.claim(worker, 2)
	o.bury(worker)
	o.exec(`ALTER TABLE outbox.intent RENAME TO away`)
	if lost, err := o.Reap(t.Context(), []string{"sim"}, as(dispatch.Lost)); err == nil || len(lost) != 0 {
		t.Errorf("%d rows were taken back, and it says %v", len(lost), err)
	}
	o.exec(`ALTER TABLE outbox.away RENAME TO intent`)
	if lost := o.reap(); len(lost) != 2 {
		t.Errorf("the next reaper finds %d rows, want 2", len(lost))
	}
}

// A turn whose reply cannot be read is a turn whose reply was lost.
func TestRowsThatWereClaimedAndCannotBeReadAreGivenBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.exec(`ALTER TABLE outbox.intent ALTER created_at DROP NOT NULL`)
	o.enqueue("run", 0, 1)
	o.exec(`UPDATE outbox.intent SET created_at = NULL`)
	if reply, err := o.Turn(t.Context(), worker, claimOf(1)); err == nil || len(reply.Claimed) != 0 {
		t.Fatalf("%+v, %v, want an error alone", reply, err)
	}
	given, err := o.Reclaim(t.Context(), worker, "sim", "sim", nil, as(dispatch.Released))
	if err != nil || len(given) != 1 {
		t.Errorf("%d rows are given back, %v; want the one that was claimed", len(given), err)
	}
	o.assertStatuses(map[string]int{"pending": 1})
}

func unstorable(turn *drainer.Turn, i int) {
	turn.Settle[i].Result.Response = json.RawMessage(`{"a":"\u0000"}`)
}

func TestRefusalsKeepTheirPlaceAroundAnUnstorableResponse(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 4)
	rows := o.claim(worker, 4)
	o.turn(worker, drainer.Turn{Settle: []drainer.Settlement{ended(rows[0], dispatch.Completed), ended(rows[3], dispatch.Completed)}})
	turn := settling(dispatch.Completed, rows...)
	unstorable(&turn, 1)
	if refused := o.turn(worker, turn).Refused; !slices.Equal(refused, []int{0, 3}) {
		t.Errorf("refused %v, want the first and the last, which were settled before", refused)
	}
	o.assertStatuses(map[string]int{"completed": 4})
}

func TestATurnThatFailsAroundAnUnstorableResponseIsRepeated(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]struct{ unstorable, failing int }{
		"before it": {0, 1},
		"after it":  {1, 0},
	} {
		o := newOutbox(t)
		worker := o.join()
		o.enqueue("run", 0, 2)
		rows := o.claim(worker, 2)
		o.exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no room'; END $$`)
		o.exec(`CREATE TRIGGER fail BEFORE INSERT ON outbox.attempt FOR EACH ROW WHEN (NEW.error = 'fail') EXECUTE FUNCTION fail()`)
		turn := settling(dispatch.Completed, rows...)
		unstorable(&turn, place.unstorable)
		turn.Settle[place.failing].Result.ErrorClass = "fail"
		turn.Claims = claimOf(1).Claims
		if reply, err := o.Turn(t.Context(), worker, turn); err == nil || len(reply.Claimed) != 0 {
			t.Errorf("%s: %+v, %v; want an error alone", name, reply, err)
		}
		o.exec(`DROP TRIGGER fail ON outbox.attempt`)
		o.turn(worker, turn)
		o.assertStatuses(map[string]int{"completed": 2})
	}
}
