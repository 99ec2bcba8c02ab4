package bench_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	producers     = 32
	besideRounds  = rounds
	besideFor     = 4 * time.Second
	enqueueRounds = 31
	enqueueFor    = time.Second
	plainInsert   = `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ($1, $2, 'sim/act', 'order', $3)`
	callEnqueue   = `SELECT * FROM outbox.enqueue($1, $2, 'sim/act', 'order', $3)`
	notification  = `(?s)IF EXISTS \(SELECT FROM outbox\.provider.*?END IF;`
)

// BenchmarkProducers measures how much the notification slows down producers while a daemon drains. The other
// contender is the same trigger without the notification, which wakes no daemon. In each round the producers start
// with an idle lane.
func BenchmarkProducers(b *testing.B) {
	for b.Loop() {
		rates := race(besideRounds,
			func() float64 { return produceBesideDaemon(b, false) },
			func() float64 { return produceBesideDaemon(b, true) },
		)
		b.ReportMetric(rates[0].median(), "silent-tx/s")
		b.ReportMetric(rates[1].median(), "tx/s")
		reportRatio(b, "x-silent", rates[1].times(rates[0]))
	}
	b.ReportMetric(0, "ns/op")
}

func produceBesideDaemon(b testing.TB, notifies bool) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	if !notifies {
		outbox.exec(silenced(b, read[string](outbox.database, `SELECT pg_get_functiondef('outbox.queue_intents'::regproc)`)))
	}
	daemon := startDaemon(b, outbox.url, noop("sim"))
	crew := outbox.produce(plainInsert)
	rate := crew.rate(besideFor)
	crew.rest()
	daemon.end()
	return rate
}

// silenced removes the notification from the trigger.
func silenced(b testing.TB, trigger string) string {
	b.Helper()
	silent := regexp.MustCompile(notification).ReplaceAllString(trigger, "")
	if silent == trigger {
		b.Fatal("the trigger outbox.queue_intents has no notification to take out")
	}
	return silent
}

// BenchmarkEnqueue measures the cost of outbox.enqueue against a plain INSERT. The function handles duplicates that
// are enqueued at the same time.
func BenchmarkEnqueue(b *testing.B) {
	for b.Loop() {
		outbox := newOutbox(b)
		crew := outbox.produce(plainInsert)
		rates := race(enqueueRounds,
			func() float64 { crew.turnTo(plainInsert); return crew.rate(enqueueFor) },
			func() float64 { crew.turnTo(callEnqueue); return crew.rate(enqueueFor) },
		)
		crew.rest()
		outbox.drop()
		b.ReportMetric(rates[0].median(), "insert-tx/s")
		b.ReportMetric(rates[1].median(), "tx/s")
		reportRatio(b, "x-insert", rates[1].times(rates[0]))
	}
	b.ReportMetric(0, "ns/op")
}

// crew is a set of producers at work. Each has its own connection.
type crew struct {
	statement atomic.Pointer[string]
	committed atomic.Int64
	resting   atomic.Bool
	working   sync.WaitGroup
}

// produce starts producers that commit one intent per transaction, until rest is called.
func (o *outbox) produce(statement string) *crew {
	o.b.Helper()
	crew := &crew{}
	crew.turnTo(statement)
	conns := make([]*pgx.Conn, producers)
	for i := range conns {
		conn, err := pgx.Connect(o.b.Context(), o.url)
		if err != nil {
			o.b.Fatal(err)
		}
		conns[i] = conn
	}
	for i, conn := range conns {
		crew.working.Go(func() {
			defer conn.Close(context.Background())
			if err := crew.work(o.b.Context(), conn, fmt.Sprintf("run-%d", i)); err != nil {
				o.b.Error(err)
			}
		})
	}
	return crew
}

func (c *crew) work(ctx context.Context, conn *pgx.Conn, run string) error {
	for n := 0; !c.resting.Load(); n++ {
		if _, err := conn.Exec(ctx, *c.statement.Load(), run, fmt.Sprintf("step-%d", n), payloadText); err != nil {
			return errors.Join(errors.New("enqueueing"), err)
		}
		c.committed.Add(1)
	}
	return nil
}

func (c *crew) turnTo(statement string) { c.statement.Store(&statement) }

// rate returns how many transactions per second the producers commit together from now on.
func (c *crew) rate(during time.Duration) float64 {
	started, before := time.Now(), c.committed.Load()
	time.Sleep(during)
	return float64(c.committed.Load()-before) / time.Since(started).Seconds()
}

func (c *crew) rest() {
	c.resting.Store(true)
	c.working.Wait()
}

// BenchmarkPickUp measures the time from the call of enqueue to the start of the attempt. In this time the intent is
// enqueued, notified, claimed and handed to a dispatcher. The lane is idle before each intent. There are two
// patterns, which alternate. In one, an intent comes every 20 ms, and in between the machine goes to sleep. In the
// other, an intent comes as soon as the attempt of the one before it has ended.
func BenchmarkPickUp(b *testing.B) {
	const times, samples, pace = 10, 100, 20 * time.Millisecond
	for b.Loop() {
		outbox := newOutbox(b)
		daemon := startDaemon(b, outbox.url, noop("sim"))
		ended := outbox.ended()
		var apart, inTurn []float64
		for range times {
			ticker := time.NewTicker(pace)
			apart = append(apart, outbox.pickUps(daemon, rows(b, samples), func(int64) { <-ticker.C })...)
			ticker.Stop()
			inTurn = append(inTurn, outbox.pickUps(daemon, rows(b, samples), ended)...)
		}
		b.ReportMetric(quantile(inTurn, 0.5), "in-turn-p50-ms")
		b.ReportMetric(quantile(inTurn, 0.99), "in-turn-p99-ms")
		b.ReportMetric(quantile(apart, 0.5), "20ms-apart-p50-ms")
		b.ReportMetric(quantile(apart, 0.99), "20ms-apart-p99-ms")
		daemon.end()
		outbox.drop()
	}
	b.ReportMetric(0, "ns/op")
}

// ended returns a function that waits until an intent has had its attempt.
func (o *outbox) ended() (wait func(intent int64)) {
	o.b.Helper()
	o.exec(`CREATE FUNCTION notify_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('ended', NEW.intent_id::text); RETURN NULL; END $$`)
	o.exec(`CREATE TRIGGER notify_end AFTER INSERT ON outbox.attempt FOR EACH ROW EXECUTE FUNCTION notify_end()`)
	conn, err := pgx.Connect(o.b.Context(), o.url)
	if err != nil {
		o.b.Fatal(err)
	}
	o.b.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(o.b.Context(), `LISTEN ended`); err != nil {
		o.b.Fatal(err)
	}
	return func(intent int64) {
		for {
			notification, err := conn.WaitForNotification(o.b.Context())
			if err != nil {
				o.b.Fatal(err)
			}
			if notification.Payload == strconv.FormatInt(intent, 10) {
				return
			}
		}
	}
}

// pickUps enqueues one intent at a time, and returns how long each intent waited.
func (o *outbox) pickUps(daemon *daemon, samples int, next func(intent int64)) (took []float64) {
	o.b.Helper()
	called := map[int64]time.Time{}
	for range samples {
		at := time.Now()
		intent := read[int64](o.database, `
			SELECT intent_id FROM outbox.enqueue('run', $1, 'sim/act', 'order', $2)`, at.String(), payloadText)
		called[intent] = at
		next(intent)
	}
	o.awaitSettled(daemon)
	return o.waits(called)
}

// waits compares the clock of this process with that of the database. This is correct only on one machine.
func (o *outbox) waits(called map[int64]time.Time) (took []float64) {
	o.b.Helper()
	rows, err := o.Query(o.b.Context(), `SELECT intent_id, started_at FROM outbox.attempt WHERE attempt = 1`)
	if err != nil {
		o.b.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var intent int64
		var started time.Time
		if err := rows.Scan(&intent, &started); err != nil {
			o.b.Fatal(err)
		}
		if at, asked := called[intent]; asked {
			took = append(took, milliseconds(started.Sub(at)))
		}
	}
	if rows.Err() != nil {
		o.b.Fatal(rows.Err())
	}
	return took
}
