package nemesis_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/integration/world"
)

// onCall works at the command line, in the middle of it all.
type onCall struct{ program *program.Program }

// does runs a command, which may be refused.
func (o onCall) does(args ...string) error {
	output, err := o.program.Command(append(args, "--operator", "nemesis", "--reason", "because")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %.120s", err, output)
	}
	return nil
}

// insists tries again for as long as the database may be away.
func (o onCall) insists(args ...string) {
	for begun := time.Now(); o.does(args...) != nil && time.Since(begun) < patience; {
		time.Sleep(100 * time.Millisecond)
	}
}

// undecided are unknown steps and undos that hold up a saga. Nothing of them
// can be on its way any more.
const undecided = `
	SELECT s.intent_id, s.idempotency_key FROM outbox.saga g JOIN outbox.status s USING (agent_run_id)
	WHERE g.state = 'begun' AND s.status = 'unknown' AND s.finished_at < now() - interval '6 seconds' ORDER BY 1 LIMIT 100`

// decide does what only people can: it looks at the provider's ledger, and
// says what became of the steps that sagas wait for.
func decide(ctx context.Context, w *world.World) error {
	rows, err := w.DB.Query(ctx, undecided)
	if err != nil {
		return err
	}
	type step struct {
		ID  int64
		Key string
	}
	steps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[step])
	if err != nil || len(steps) == 0 {
		return err
	}
	refs := map[string]string{}
	for _, effect := range w.Provider.Ledger.Effects() {
		refs[effect.Key] = effect.ID
	}
	conn, err := pgx.Connect(ctx, w.URL)
	if err != nil {
		return err
	}
	console := operator.Open(conn)
	defer console.Close(context.WithoutCancel(ctx))
	for _, step := range steps {
		resolution := operator.Resolve{As: dispatch.StatusFailed}
		if ref, happened := refs[step.Key]; happened {
			resolution = operator.Resolve{As: dispatch.StatusCompleted, ProviderRef: ref}
		}
		by := operator.Signature{Operator: "nemesis", Reason: "looked at the ledger"}
		if _, err := console.Change(ctx, resolution, by, []int64{step.ID}); err != nil {
			return err
		}
	}
	return nil
}
