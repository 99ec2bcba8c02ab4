package operator_test

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// Operators need no more rights than the daemon has.
func TestALoginThatIsOnlyAMemberOfTheDrainersRoleMayDoAllOfIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.consoleAt(o.login("outbox_drainer"))
	intents := o.enqueue("run", 3)
	mustDo := func(action operator.Action, intents ...int64) {
		t.Helper()
		verdicts, err := console.Change(t.Context(), action, onCall, intents)
		if err != nil || accepted(verdicts) != int64(len(intents)) {
			t.Fatalf("%T: %+v, %v", action, verdicts, err)
		}
	}
	mustDo(operator.Cancel{}, intents[0])
	o.end(once, dispatch.Ambiguous)
	mustDo(operator.Resolve{As: dispatch.StatusCompleted}, intents[1])
	mustDo(operator.Retry{MayDuplicate: true}, intents[0], intents[2])
	if _, _, err := console.Select(t.Context(), operator.Selection{Statuses: []string{"pending"}, Limit: 1}); err != nil {
		t.Error(err)
	}
	if _, err := console.List(t.Context(), operator.Filter{Dead: true, Limit: 1}); err != nil {
		t.Error(err)
	}
}

func TestALoginOfTheDrainersRoleMayStopThings(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.consoleAt(o.login("outbox_drainer"))
	o.enqueue("run", 3)
	if _, err := console.Pause(t.Context(), "sim", onCall); err != nil {
		t.Error(err)
	}
	if _, err := console.Providers(t.Context()); err != nil {
		t.Error(err)
	}
	if closed, err := console.CancelRun(t.Context(), "run", false, onCall); err != nil || closed.Cancelled != 3 {
		t.Errorf("%+v, %v", closed, err)
	}
}

func TestALoginOfTheDrainersRoleMayLetASagaGoOn(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.consoleAt(o.login("outbox_drainer"))
	steps, _ := failedSaga(o, "failed")
	if _, err := console.Overview(t.Context()); err != nil {
		t.Error(err)
	}
	if run, err := console.RunOf(t.Context(), steps[0]); err != nil || console.RetrySaga(t.Context(), run, steps[:1], onCall) != nil {
		t.Errorf("the saga of the run %q does not go on, %v", run, err)
	}
}

func TestAnAgentsLoginMayDoNoneOfIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.consoleAt(o.login("outbox_agent"))
	intent := o.enqueue("run", 1)[0]
	if _, err := console.Change(t.Context(), operator.Cancel{}, onCall, []int64{intent}); err == nil {
		t.Error("an agent cancelled an intent")
	}
	o.assertStatus(intent, "pending")
}

// login creates one that is a member of the role and nothing else.
func (o *outbox) login(role string) string {
	o.t.Helper()
	name, password := "drainertest_"+strings.ToLower(rand.Text()), rand.Text()
	o.exec(`CREATE ROLE ` + name + ` LOGIN NOSUPERUSER PASSWORD '` + password + `' IN ROLE ` + role)
	o.t.Cleanup(func() {
		if _, err := o.db.Exec(context.Background(), `DROP ROLE `+name); err != nil {
			o.t.Error(err)
		}
	})
	address, err := url.Parse(o.url)
	if err != nil {
		o.t.Fatal(err)
	}
	address.User = url.UserPassword(name, password)
	return address.String()
}
