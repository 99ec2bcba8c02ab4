package faults_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/world"
)

func TestALongTransactionThatCommitsLateIsDrained(t *testing.T) {
	t.Parallel()
	commitsLate.holds(t)
}

func TestAStepThatCommitsAfterItsRunWentBackIsNotSent(t *testing.T) {
	t.Parallel()
	stepSlipsIn.holds(t)
}

// commitsLate commits intents whose ids and due times lie before those of what
// has been drained meanwhile.
var commitsLate = scenario{number: 29, play: func(t *testing.T, w *world.World) (late int) {
	w.Start()
	open := make(chan struct{})
	answers := make(chan history.Answer)
	for _, tool := range everyClass {
		enqueued := make(chan struct{})
		agent := slowAgent{connect(t, w), enqueued, open}
		go func() { answers <- w.StepOf(agent, "late", 1, tool) }()
		<-enqueued
		late++
	}
	enqueueOfEach(w, 50)
	w.AwaitRest()
	close(open)
	for range late {
		if answer := <-answers; answer != history.Committed {
			t.Fatalf("a late transaction was %s", answer)
		}
	}
	return late
}}

// connect is an agent's own connection.
func connect(t *testing.T, w *world.World) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// slowAgent takes its time before it commits.
type slowAgent struct {
	history.Beginner
	enqueued chan<- struct{} // closed when all but the commit is done
	until    <-chan struct{}
}

func (a slowAgent) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := a.Beginner.Begin(ctx)
	return slowCommit{tx, a}, err
}

type slowCommit struct {
	pgx.Tx
	agent slowAgent
}

func (c slowCommit) Commit(ctx context.Context) error {
	close(c.agent.enqueued)
	<-c.agent.until
	return c.Tx.Commit(ctx)
}

// stepSlipsIn enqueues a step in a transaction that began before its run went
// back, and does not see that it did.
var stepSlipsIn = scenario{number: 55, play: func(t *testing.T, w *world.World) int {
	w.Start()
	w.Step("run", 1, world.Order)
	w.AwaitRest()
	unaware, err := w.DB.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unaware.Exec(t.Context(), `SELECT FROM outbox.saga`); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	w.Step("run", 2, world.Declined)
	drainertest.Eventually(t, "the run went back", func() bool {
		return w.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`) == 1
	})
	if answer := w.StepOf(begun{unaware}, "run", 3, world.Order); answer != history.Committed {
		t.Fatalf("the step that slips in was %s", answer)
	}
	return 1
}}

// begun is an agent in the middle of its transaction.
type begun struct{ pgx.Tx }

func (b begun) Begin(context.Context) (pgx.Tx, error) { return b.Tx, nil }
