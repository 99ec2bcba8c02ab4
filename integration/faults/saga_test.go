package faults_test

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/integration/world"
)

// Each run is taken back three times at once: by two refusals, which two
// daemons have heard and not yet settled, and by an operator.
func TestARunThatIsTakenBackThriceGoesBackOnce(t *testing.T) {
	t.Parallel()
	const runs = 8
	w := world.New(t, nil)
	first := w.Start()
	for run := range runs {
		w.Step(name(run), 1, world.Order)
		w.Step(name(run), 2, world.Order)
	}
	w.AwaitRest()
	first.Terminate()

	heard := w.Provider.Ledger.Audit().TotalRequests()
	daemons := []*program.Daemon{w.Start(arm("after_reply=hold@*"))}
	for run := range runs {
		w.Step(name(run), 3, world.Declined)
	}
	w.Enqueue(world.Order, runs) // what one daemon alone may have under way is full: the rest is the other's
	awaitRequests(t, w, heard+2*runs)
	daemons = append(daemons, w.Start(arm("after_reply=hold@*")))
	for run := range runs {
		w.Step(name(run), 4, world.Declined)
	}
	awaitRequests(t, w, heard+3*runs)
	var operators sync.WaitGroup
	for run := range runs {
		operators.Go(func() {
			output, err := w.Program.Command("runs", "cancel", name(run), "--compensate", "--operator", "ann", "--reason", "gone astray").CombinedOutput()
			if err != nil && !strings.Contains(string(output), "takes no further step already") {
				t.Errorf("%v: %s", err, output)
			}
		})
	}
	w.AwaitCount("the first operator took a run back", 1, `SELECT count(*) FROM outbox.saga`)
	for _, daemon := range daemons {
		daemon.Signal(syscall.SIGUSR1)
	}
	operators.Wait()
	w.AwaitRest()

	refusals := w.Count(`SELECT count(*) FROM outbox.status WHERE status = 'failed'`)
	fault.Injected(t, 53, refusals+runs-w.Count(`SELECT count(*) FROM outbox.saga`))
	if undone := w.Count(`SELECT count(*) FROM outbox.status WHERE status = 'compensated'`); undone != 2*runs {
		t.Errorf("%d orders are undone, want %d", undone, 2*runs)
	}
	w.Check()
}

func name(run int) string { return fmt.Sprintf("purchase-%d", run+1) }

// sagaMoment is when, in the way back of a run, something else happens.
type sagaMoment struct {
	failpoints string
	await      func(*world.World, *program.Daemon)
	goOn       func(*program.Daemon)
}

var sagaMoments = map[string]sagaMoment{
	"before the plan": {
		failpoints: "saga_locked=hold@*",
		await:      func(_ *world.World, daemon *program.Daemon) { daemon.WaitFor("failpoint saga_locked hold") },
		goOn:       func(daemon *program.Daemon) { daemon.Signal(syscall.SIGUSR1) },
	},
	"after a plan": {
		await: func(w *world.World, _ *program.Daemon) {
			w.AwaitCount("a pass has waited for what is in flight", 1, `SELECT count(*) FROM outbox.river_job WHERE kind = 'saga_advance' AND state = 'completed'`)
		},
		goOn: func(*program.Daemon) {},
	},
}

// Orders are in flight while another step of their run is refused.
func TestAStepThatEndsWhileItsSagaBeginsIsUndone(t *testing.T) {
	t.Parallel()
	const orders = 4
	for name, moment := range sagaMoments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world.New(t, answeringLate("run-1", orders))
			w.Reconfigure(patient)
			daemon := w.Start("DRAINER_FAILPOINTS=" + moment.failpoints)
			for step := range orders {
				w.Step("run-1", step+1, world.Order)
			}
			w.AwaitEffects(orders)
			w.Step("run-1", orders+1, world.Declined)
			moment.await(w, daemon)
			w.Start() // it would like to take the run back as well

			open := w.Count(`SELECT count(*) FROM outbox.status WHERE tool_name = $1 AND finished_at IS NULL`, world.Order)
			w.Provider.Release()
			w.AwaitCount("the orders end while their saga is under way", orders, `SELECT count(*) FROM outbox.attempt WHERE status = 'completed' AND intent_id IN (SELECT id FROM outbox.intent WHERE compensates IS NULL)`)
			moment.goOn(daemon)
			w.AwaitRest()

			fault.Injected(t, 54, open)
			if undone := w.Count(`SELECT count(*) FROM outbox.status WHERE status = 'compensated'`); undone != orders {
				t.Errorf("%d orders are undone, want all %d", undone, orders)
			}
			w.Check()
		})
	}
}

// answeringLate has the effect of the run's first orders, and answers once the
// test lets it.
func answeringLate(run string, orders int) dispatchtest.Plan {
	late := map[string][]dispatchtest.Fault{}
	for step := range orders {
		intent := dispatch.Tuple{AgentRunID: run, StepID: fmt.Sprintf("step-%d", step+1), ToolName: world.Order, BusinessScope: "order"}
		late[intent.IdempotencyKey()] = []dispatchtest.Fault{dispatchtest.HangAfter}
	}
	return dispatchtest.ScriptKeys(late)
}
