package integration_test

import (
	"context"
	"fmt"
	"maps"
	neturl "net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/program"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agentoutbox/drainer/drainertest"
)

// recipient is where intents arrive as messages. It outlives daemons.
type recipient struct {
	provider string                // its block of the configuration
	received func() map[string]int // how often each key arrived
}

const (
	midPublish      = 1500 // intents
	killsMidPublish = 3
)

// A consumer that distinguishes messages by their key sees each intent once,
// whenever the daemon that published it was killed.
func TestADaemonKilledWhileItPublishesLosesNothing(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) recipient{
		"kafka": kafkaRecipient, "nats": natsRecipient, "postgres": postgresRecipient,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recipient := start(t)
			rig := harness.Without(t)
			rig.EnqueueSteps("events/publish", 0, midPublish)
			shell := program.New(t, rig.URL)
			config := program.WriteConfig(t, "version: 1\nserver: {listen: '127.0.0.1:0'}\n"+
				"worker: {heartbeat: 200ms, lease: 1s}\nproviders:\n  events:\n    concurrency: 16\n"+recipient.provider+
				"        idempotency: {class: key_idempotent, ttl: 90s, scope: consumers}\n        retry: {max_attempts: 50, base: 10ms, cap: 100ms}\n")

			for kill := range killsMidPublish {
				daemon := shell.Start(config)
				wanted := (kill + 1) * midPublish / (killsMidPublish + 2)
				drainertest.Eventually(t, fmt.Sprintf("%d intents arrived", wanted), func() bool { return len(recipient.received()) >= wanted })
				daemon.Kill()
			}
			shell.Start(config)
			rig.AwaitStatus("completed", midPublish)

			drainertest.Eventually(t, "every intent arrived", func() bool { return len(recipient.received()) >= midPublish })
			keys := harness.Stored[[]string](rig, `SELECT array_agg(idempotency_key ORDER BY intent_id) FROM outbox.status`)
			received := recipient.received()
			for _, key := range keys {
				if received[key] == 0 {
					t.Errorf("%s is completed and never arrived", key)
				}
				delete(received, key)
			}
			if len(received) > 0 {
				t.Errorf("%d messages of no intent: %v", len(received), slices.Collect(maps.Keys(received)))
			}
			if lost := harness.Stored[int](rig, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'lost'`); lost == 0 {
				t.Error("no kill met an attempt, so nothing was shown")
			}
			rig.AssertNoClaims()
		})
	}
}

func kafkaRecipient(t *testing.T) recipient {
	const topic = "charges"
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(4, topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	consumer, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(consumer.Close)
	seen := map[string]int{}
	return recipient{
		provider: "    adapter: kafka\n    kafka: {brokers: ['" + strings.Join(cluster.ListenAddrs(), "', '") + "']}\n" +
			"    tools:\n      publish:\n        kafka: {topic: " + topic + "}\n",
		received: func() map[string]int {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			consumer.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
				for _, header := range record.Headers {
					if header.Key == "idempotency-key" {
						seen[string(header.Value)]++
					}
				}
			})
			return maps.Clone(seen)
		},
	}
}

func natsRecipient(t *testing.T) recipient {
	running, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	go running.Start()
	t.Cleanup(func() { running.Shutdown(); running.WaitForShutdown() })
	if !running.ReadyForConnections(drainertest.Patience) {
		t.Fatal("the NATS server does not start")
	}
	conn, err := nats.Connect(running.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "CHARGES", Subjects: []string{"charges"}, Duplicates: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	return recipient{
		provider: "    adapter: nats\n    nats: {urls: ['" + running.ClientURL() + "']}\n    tools:\n      publish:\n        nats: {subject: charges, stream: CHARGES}\n",
		received: func() map[string]int {
			batch, err := consumer.FetchNoWait(midPublish)
			if err != nil {
				t.Fatal(err)
			}
			for message := range batch.Messages() {
				seen[message.Headers().Get(jetstream.MsgIDHeader)]++
			}
			return maps.Clone(seen)
		},
	}
}

func postgresRecipient(t *testing.T) recipient {
	url := drainertest.EmptyDatabase(t)
	db := drainertest.Connect(t, url)
	plain, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	plain.RawQuery = "sslmode=disable"
	change(t, db, `CREATE SCHEMA inbox`)
	change(t, db, `CREATE TABLE inbox.message (
		agent_run_id text, step_id text, tool_name text, business_scope text, idempotency_key text NOT NULL,
		payload jsonb NOT NULL, headers jsonb NOT NULL, PRIMARY KEY (agent_run_id, step_id, tool_name, business_scope))`)
	return recipient{
		provider: "    adapter: postgres\n    postgres: {url: '" + plain.String() + "'}\n    tools:\n      publish:\n        postgres: {inbox: inbox.message}\n",
		received: func() map[string]int {
			rows, err := db.Query(t.Context(), `SELECT idempotency_key FROM inbox.message`)
			if err != nil {
				t.Fatal(err)
			}
			keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]int{}
			for _, key := range keys {
				seen[key]++
			}
			return seen
		},
	}
}

func change(t *testing.T, db *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
