package integration_test

import (
	"context"
	"fmt"
	"maps"
	neturl "net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/program"
)

const rollingConfig = `version: 1
server: {listen: "127.0.0.1:0"}
worker: {lease: 60s}
providers:
  sim:
    adapter: http
    concurrency: 24
    http: {base_url: %s}
    tools: {act: {http: {path: /v1/act, response: {ref: .id}}, idempotency: {class: %s}}}
`

// A deployment replaces one replica after another while agents enqueue. No worker is declared dead, so no intent
// waits for the end of a lease, and no non-idempotent intent is in doubt.
func TestARollingRestartUnderLoadIsNotNoticed(t *testing.T) {
	t.Parallel()
	for class, declared := range map[string]string{
		"key_idempotent": "key_idempotent, ttl: 24h, scope: account",
		"non_idempotent": "non_idempotent",
	} {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			const replicas, rounds = 3, 2
			rig := harness.Plain(t, dispatchtest.Healthy())
			shell := program.New(t, rig.URL)
			config := program.WriteConfig(t, fmt.Sprintf(rollingConfig, rig.BaseURL, declared))
			var fleet [replicas]*program.Daemon
			for i := range fleet {
				fleet[i] = shell.Start(config)
			}
			stop := make(chan struct{})
			enqueued := 0
			var agents sync.WaitGroup
			agents.Go(func() { enqueued = enqueueUntil(rig, stop) })
			for range rounds {
				for i := range fleet {
					next := shell.Start(config)
					fleet[i].Terminate()
					fleet[i] = next
				}
			}
			close(stop)
			agents.Wait()

			rig.AwaitStatus("completed", enqueued)
			rig.AssertOneEffectEach()
			rig.AssertNoClaims()
			// A row of a worker that was declared dead would be lost. A slow delivery is no failure: the machine may
			// be slow.
			if doubtful := harness.Stored[int](rig, `SELECT count(*) FROM outbox.attempt WHERE outcome NOT IN ('completed', 'released')`); doubtful > 0 {
				t.Errorf("%d attempts ended neither completed nor given back", doubtful)
			}
			late := harness.Stored[float64](rig, `SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - created_at)) FROM outbox.status`)
			t.Logf("%d intents, p99 of delivery %.0f ms", enqueued, 1000*late)
		})
	}
}

// enqueueUntil commits ten intents at a time, and returns how many it committed.
func enqueueUntil(rig *harness.Rig, stop <-chan struct{}) (enqueued int) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return enqueued
		case <-ticker.C:
			rig.EnqueueSteps("sim/act", enqueued, enqueued+10)
			enqueued += 10
		}
	}
}

const twoProviders = `version: 1
server: {listen: "127.0.0.1:0"}
providers:
  sim:
    adapter: http
    concurrency: 4
    rate_limit: {per_second: %d}
    http: {base_url: %s}
    tools:
      act: {http: {path: /v1/act}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}}
  beacon:
    adapter: http
    http: {base_url: %s}
    tools:
      act: {http: {path: /v1/act}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}}
`

// A rate limit keeps the provider busy until the pause, for up to 50 s. Then the limit is lifted. The intents of
// another provider show that the same processes continue to work.
func TestAPauseStopsAllReplicasUntilItIsResumed(t *testing.T) {
	t.Parallel()
	const intents, slow, fast = 250, 5, 1000
	rig := harness.Plain(t, nil)
	beacon, beaconURL := dispatchtest.NewProvider(t, dispatchtest.Healthy())
	shell := program.New(t, rig.URL)
	configAt := func(perSecond int) string {
		return program.WriteConfig(t, fmt.Sprintf(twoProviders, perSecond, rig.BaseURL, beaconURL))
	}
	config := configAt(slow)
	replicas := []*program.Daemon{shell.Start(config), shell.Start(config)}
	if _, stderr := shell.Run(1, "providers", "pause", "simm", "--operator", "on-call", "--reason", "sends twice"); !strings.Contains(stderr, `there is no provider "simm"; did you mean "sim"?`) {
		t.Errorf("an unknown name: %s", stderr)
	}
	rig.EnqueueSteps("sim/act", 0, intents)
	rig.AwaitRequests(10)
	shell.Run(0, "providers", "pause", "sim", "--operator", "on-call", "--reason", "sends twice")
	for _, replica := range replicas {
		replica.WaitFor(`"msg":"provider paused"`)
	}
	drainertest.Eventually(t, "what was in flight has ended", func() bool { return rig.CountStatus("in_progress") == 0 })
	before := rig.Provider.Ledger.Audit().TotalRequests()
	rig.EnqueueSteps("beacon/act", 1000, 1050)
	rig.AwaitStatus("completed", before+50)
	if after := rig.Provider.Ledger.Audit().TotalRequests(); after != before || before == intents {
		t.Errorf("%d requests before the pause was known and %d after it, of %d; want it to stop midway", before, after, intents)
	}
	if tries := harness.Stored[int](rig, `SELECT coalesce(sum(tries), 0) FROM outbox.queue`); tries != 0 {
		t.Errorf("what waits has lost %d tries", tries)
	}
	var providers []struct {
		Provider  string
		Paused    bool
		ChangedBy string `json:"changed_by"`
		Reason    string
	}
	shell.RunJSON(&providers, "providers", "list")
	if sim := providers[1]; sim.Provider != "sim" || !sim.Paused || sim.ChangedBy != "operator:on-call" || sim.Reason != "sends twice" {
		t.Errorf("listed as %+v", sim)
	}

	if err := os.Rename(configAt(fast), config); err != nil {
		t.Fatal(err)
	}
	shell.Run(0, "providers", "resume", "sim", "--operator", "on-call", "--reason", "mended")
	rig.AwaitStatus("completed", intents+50)
	if audit := rig.Provider.Ledger.Audit(); audit.TotalEffects() != intents || beacon.Ledger.Audit().TotalEffects() != 50 {
		t.Errorf("%d effects, want one for each of %d", audit.TotalEffects(), intents)
	}
	for _, replica := range replicas {
		replica.Terminate()
	}
}

// The provider hangs midway, so that rows wait in the worker's memory. The worker logs the pause of another provider,
// which shows that it has polled since the cancel.
func TestACancelledRunSendsNothingMoreThoughItWasClaimed(t *testing.T) {
	t.Parallel()
	const intents, answered, concurrency = 200, 30, 4
	var mu sync.Mutex
	asked := 0
	rig := harness.Plain(t, func(string, int) dispatchtest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked > answered {
			return dispatchtest.HangBefore
		}
		return dispatchtest.None
	})
	t.Cleanup(rig.Provider.Release)
	shell := program.New(t, rig.URL)
	config := strings.Replace(fmt.Sprintf(twoProviders, 1, rig.BaseURL, rig.BaseURL), "    rate_limit: {per_second: 1}\n", "", 1)
	rig.EnqueueSteps("sim/act", 0, intents)
	replica := shell.Start(program.WriteConfig(t, config))
	rig.AwaitRequests(answered + concurrency)
	rig.AwaitStatus("completed", answered)
	drainertest.Eventually(t, "rows wait behind those that hang", func() bool { return rig.CountStatus("in_progress") > concurrency })

	var closed struct {
		State      string
		Cancelled  int
		InProgress int `json:"in_progress"`
		Completed  int
	}
	shell.RunJSON(&closed, "runs", "cancel", "run-1", "--operator", "on-call", "--reason", "wrong order")
	if closed.State != "cancelled" || closed.Completed != answered || closed.InProgress <= concurrency || closed.Cancelled+closed.InProgress+answered != intents {
		t.Errorf("the cancel says %+v", closed)
	}
	if _, says := shell.Run(1, "enqueue", "--run", "run-1", "--step", "late", "--tool", "sim/act", "--scope", "s", "--payload", "{}"); !strings.Contains(says, "Start a new run") {
		t.Errorf("another step was refused with %q", says)
	}
	shell.Run(0, "providers", "pause", "beacon", "--operator", "on-call", "--reason", "look")
	replica.WaitFor(`"msg":"provider paused"`)
	rig.Provider.Release()

	rig.AwaitStatus("cancelled", intents-answered-concurrency)
	rig.AwaitStatus("completed", answered+concurrency)
	if requests := rig.Provider.Ledger.Audit().TotalRequests(); requests != answered+concurrency {
		t.Errorf("%d requests, want no more than the %d that were under way", requests, answered+concurrency)
	}
	rig.AssertOneEffectEach()
	replica.Terminate()
}

// recipient receives intents as messages. It outlives daemons.
type recipient struct {
	provider string                // its block of the configuration
	received func() map[string]int // how often each key arrived
}

const (
	midPublish      = 1500 // intents
	killsMidPublish = 3
)

// A consumer that distinguishes messages by their key sees each intent once, even if the daemon was killed while it
// published.
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
	drainertest.Exec(t, db, `CREATE SCHEMA inbox`)
	drainertest.Exec(t, db, `CREATE TABLE inbox.message (
		agent_run_id text, step_id text, tool_name text, business_scope text, idempotency_key text NOT NULL,
		payload jsonb NOT NULL, headers jsonb NOT NULL, PRIMARY KEY (agent_run_id, step_id, tool_name, business_scope))`)
	return recipient{
		provider: "    adapter: postgres\n    postgres: {url: '" + plain.String() + "'}\n    tools:\n      publish:\n        postgres: {inbox: inbox.message}\n",
		received: func() map[string]int {
			seen := map[string]int{}
			for _, key := range drainertest.Column[string](t, db, `SELECT idempotency_key FROM inbox.message`) {
				seen[key]++
			}
			return seen
		},
	}
}
