package bench_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	producers      = 32
	produceFor     = 4 * time.Second
	producerRounds = 9
	plainInsert    = `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ($1, $2, 'sim/act', 'order', $3)`
	callEnqueue    = `SELECT * FROM outbox.enqueue($1, $2, 'sim/act', 'order', $3)`
	notification   = `PERFORM pg_notify\([^;]*;`
)

// BenchmarkProducers asks what notifying costs those who enqueue while a daemon
// drains: against the same trigger, which notifies nobody.
func BenchmarkProducers(b *testing.B) {
	for b.Loop() {
		rates := mediansOf(producerRounds,
			func() float64 { return produceBesideDaemon(b, false) },
			func() float64 { return produceBesideDaemon(b, true) },
		)
		b.ReportMetric(rates[0], "silent-tx/s")
		b.ReportMetric(rates[1], "tx/s")
		b.ReportMetric(rates[1]/rates[0], "x-silent")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkEnqueue asks what the function costs, which looks after duplicates
// that race, against a plain INSERT.
func BenchmarkEnqueue(b *testing.B) {
	for b.Loop() {
		rates := mediansOf(producerRounds,
			func() float64 { return produceAlone(b, plainInsert) },
			func() float64 { return produceAlone(b, callEnqueue) },
		)
		b.ReportMetric(rates[0], "insert-tx/s")
		b.ReportMetric(rates[1], "tx/s")
		b.ReportMetric(rates[1]/rates[0], "x-insert")
	}
	b.ReportMetric(0, "ns/op")
}

func produceBesideDaemon(b testing.TB, notifies bool) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	if !notifies {
		outbox.silence()
	}
	daemon := startDaemon(b, outbox.url, noop("sim"))
	rate := produce(outbox, plainInsert)
	daemon.end()
	return rate
}

func produceAlone(b testing.TB, statement string) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	return produce(outbox, statement)
}

// silence takes the notification out of the trigger.
func (o *outbox) silence() {
	o.b.Helper()
	trigger := read[string](o.database, `SELECT pg_get_functiondef('outbox.queue_intents'::regproc)`)
	silent := regexp.MustCompile(notification).ReplaceAllString(trigger, "")
	if silent == trigger {
		o.b.Fatal("the trigger outbox.queue_intents has no notification to take out")
	}
	o.exec(silent)
}

// produce is how many transactions a second the producers commit together, one
// intent each.
func produce(o *outbox, statement string) float64 {
	o.b.Helper()
	conns := make([]*pgx.Conn, producers)
	for i := range conns {
		conn, err := pgx.Connect(o.b.Context(), o.url)
		if err != nil {
			o.b.Fatal(err)
		}
		defer conn.Close(context.Background())
		conns[i] = conn
	}
	var committed atomic.Int64
	var producing sync.WaitGroup
	started := time.Now()
	for i, conn := range conns {
		producing.Go(func() {
			run := fmt.Sprintf("run-%d", i)
			for n := 0; time.Since(started) < produceFor; n++ {
				if _, err := conn.Exec(o.b.Context(), statement, run, fmt.Sprintf("step-%d", n), payloadText); err != nil {
					o.b.Error(errors.Join(errors.New("enqueueing"), err))
					return
				}
				committed.Add(1)
			}
		})
	}
	producing.Wait()
	return float64(committed.Load()) / time.Since(started).Seconds()
}
