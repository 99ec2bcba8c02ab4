package kafka_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// answering makes the cluster answer every Produce request with this error code and store nothing.
func answering(cluster *kfake.Cluster, code int16) {
	cluster.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return refusing(request.(*kmsg.ProduceRequest), code), nil, true
	})
}

func refusing(produce *kmsg.ProduceRequest, code int16) kmsg.Response {
	return refusingWith(produce, code, "in the broker's words")
}

func refusingWith(produce *kmsg.ProduceRequest, code int16, words string) kmsg.Response {
	response := produce.ResponseKind().(*kmsg.ProduceResponse)
	for _, topic := range produce.Topics {
		answered := kmsg.NewProduceResponseTopic()
		answered.Topic = topic.Topic
		for _, partition := range topic.Partitions {
			refused := kmsg.NewProduceResponseTopicPartition()
			refused.Partition, refused.ErrorCode, refused.BaseOffset, refused.ErrorMessage = partition.Partition, code, -1, &words
			answered.Partitions = append(answered.Partitions, refused)
		}
		response.Topics = append(response.Topics, answered)
	}
	return response
}

func TestWhatALeaderSaysDecidesTheOutcome(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code    *kerr.Error
		outcome dispatch.Outcome
		class   string
	}{
		{kerr.MessageTooLarge, dispatch.Rejected, "message_too_large"},
		{kerr.RecordListTooLarge, dispatch.Rejected, "record_list_too_large"},
		{kerr.InvalidTopicException, dispatch.Throttled, "invalid_topic_exception"},
		{kerr.TopicAuthorizationFailed, dispatch.Forbidden, "topic_authorization_failed"},
		{kerr.ClusterAuthorizationFailed, dispatch.Forbidden, "cluster_authorization_failed"},
		{kerr.InvalidTimestamp, dispatch.Rejected, "invalid_timestamp"},
		{kerr.PolicyViolation, dispatch.Rejected, "policy_violation"},
		{kerr.InvalidRecord, dispatch.Rejected, "invalid_record"},
		{kerr.NotEnoughReplicas, dispatch.Throttled, "not_enough_replicas"},
		{kerr.ThrottlingQuotaExceeded, dispatch.Throttled, "throttling_quota_exceeded"},
		{kerr.CorruptMessage, dispatch.Throttled, "corrupt_message"},

		{kerr.NotEnoughReplicasAfterAppend, dispatch.Ambiguous, "not_enough_replicas_after_append"},
		{kerr.RequestTimedOut, dispatch.Ambiguous, "request_timed_out"},
		{kerr.NotLeaderForPartition, dispatch.Ambiguous, "not_leader_for_partition"},
		{kerr.UnknownTopicOrPartition, dispatch.Ambiguous, "unknown_topic_or_partition"},
		{kerr.KafkaStorageError, dispatch.Ambiguous, "kafka_storage_error"},
		{kerr.UnknownServerError, dispatch.Ambiguous, "unknown_server_error"},
		{&kerr.Error{Code: 30000}, dispatch.Ambiguous, "unknown_error_code"},
	} {
		t.Run(test.class, func(t *testing.T) {
			t.Parallel()
			cluster := start(t)
			answering(cluster, test.code.Code)
			got := adapterFor(t, cluster).Dispatch(t.Context(), request(`{}`))
			dispatchtest.Expect(t, got, test.outcome, test.class)
			ofTopic := test.code == kerr.InvalidTopicException || test.code == kerr.NotEnoughReplicas
			if got.OfOperation != ofTopic {
				t.Errorf("it speaks for this topic alone: %t, want %t", got.OfOperation, ofTopic)
			}
			if got.Problem == nil || got.Problem.Detail != "in the broker's words" {
				t.Errorf("problem %+v", got.Problem)
			}
		})
	}
}

func TestABrokersWordsAreNotCut(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	adapter := adapterFor(t, cluster)
	dispatchtest.ExpectWhole(t, func(words string) dispatch.Result {
		cluster.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
			return refusingWith(request.(*kmsg.ProduceRequest), kerr.PolicyViolation.Code, words), nil, true
		})
		return adapter.Dispatch(t.Context(), request(`{}`))
	})
}

// The simulated cluster knows which errors leave a record behind.
func TestNoFailureIsCalledHarmlessThatLeftARecord(t *testing.T) {
	t.Parallel()
	left := 0
	for code := int16(-1); code < 140; code++ {
		known := kerr.TypedErrorForCode(code)
		if known == nil || known.Code != code {
			continue
		}
		cluster := start(t)
		cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: known})
		got := adapterFor(t, cluster).Dispatch(t.Context(), request(`{}`))
		records := count(cluster, topic)
		left += int(records)
		if got.Outcome == dispatch.Completed || (records > 0 && got.Outcome != dispatch.Ambiguous) {
			t.Errorf("%s: %s, though %d records are there", known.Message, got.Outcome, records)
		}
		cluster.Close()
	}
	if left == 0 {
		t.Error("no error left a record; this shows nothing")
	}
}

func TestNothingIsSentToATopicThatIsNotThere(t *testing.T) {
	t.Parallel()
	cluster := start(t, kfake.AllowAutoTopicCreation())
	adapter := newAdapter(t, spec(cluster.ListenAddrs(), "", "topic: absent"))
	got := adapter.Dispatch(t.Context(), request(`{}`))
	dispatchtest.Expect(t, got, dispatch.NotSent, "unknown_topic_or_partition")
	if !got.OfOperation {
		t.Error("it speaks for the whole cluster, which may have other topics")
	}
	if cluster.TopicInfo("absent") != nil {
		t.Error("the topic was created")
	}
}

func TestWithoutALeaderNothingIsSent(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: topic, Err: kerr.LeaderNotAvailable, Count: -1})
	got := adapterFor(t, cluster).Dispatch(t.Context(), request(`{}`))
	if got.Outcome != dispatch.NotSent {
		t.Errorf("got %+v", got)
	}
}

func TestARecordFollowsItsLeader(t *testing.T) {
	t.Parallel()
	cluster := start(t, kfake.NumBrokers(3))
	adapter := adapterFor(t, cluster)
	if got := adapter.Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	for _, partition := range cluster.PartitionInfos(topic) {
		if err := cluster.MoveTopicPartition(topic, partition.Partition, (partition.Leader+1)%3); err != nil {
			t.Fatal(err)
		}
	}
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, "not_leader_for_partition")
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
}

func TestALeaderThatDoesNotAnswerLeavesDoubt(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	ctx, expire := drainertest.Expiring(t)
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		expire()
		return nil, nil, true
	})
	patient := spec(cluster.ListenAddrs(), "", "topic: "+topic)
	patient.Timeout = 2 * drainertest.Patience
	begin := time.Now()
	got := newAdapter(t, patient).Dispatch(ctx, request(`{}`))
	dispatchtest.Expect(t, got, dispatch.Ambiguous, "timeout")
	if took := time.Since(begin); took > drainertest.Patience {
		t.Errorf("returned after %s", took)
	}
}

func TestAConnectionThatEndedWhileIdleIsNoDoubt(t *testing.T) {
	t.Parallel()
	gate, advertised := gated(t, nil)
	cluster := start(t, advertised)
	adapter := adapterFor(t, cluster)
	if got := adapter.Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	gate.Shut()
	got := adapter.Dispatch(t.Context(), request(`{}`))
	dispatchtest.Expect(t, got, dispatch.NotSent, "dial")
}

// A broker that ends TLS with a closing alert, as Kafka does, leaves bytes on the connection before its end.
func TestAConnectionThatEndedWhileIdleIsReplaced(t *testing.T) {
	t.Parallel()
	certificate, trusted := dispatchtest.Certificate(t)
	for settings, listen := range map[string]func(network, address string) (net.Listener, error){
		"tls: false": net.Listen,
		"tls: true": func(network, address string) (net.Listener, error) {
			return tls.Listen(network, address, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
		},
	} {
		t.Run(settings, func(t *testing.T) {
			t.Parallel()
			remembering := &remembering{}
			cluster := start(t, kfake.ListenFn(func(network, address string) (listener net.Listener, err error) {
				remembering.Listener, err = listen(network, address)
				return remembering, err
			}))
			trusting := spec(cluster.ListenAddrs(), settings, "topic: "+topic)
			trusting.Network = dispatch.NewNetwork(nil, trusted)
			adapter := newAdapter(t, trusting)
			for i := range 10 {
				dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent(fmt.Sprint(i))), dispatch.Completed, "")
				remembering.endAll()
			}
		})
	}
}

// remembering is a listener that can end the connections it has accepted.
type remembering struct {
	net.Listener
	mu       sync.Mutex
	accepted []net.Conn
}

func (r *remembering) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.accepted = append(r.accepted, conn)
	}
	return conn, err
}

func (r *remembering) endAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.accepted {
		_ = conn.Close()
	}
	r.accepted = nil
}

func TestARecordThatIsTooLargeIsRejected(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	got := adapterFor(t, cluster).Dispatch(t.Context(), request(`"`+strings.Repeat("x", 2<<20)+`"`))
	dispatchtest.Expect(t, got, dispatch.Rejected, "message_too_large")
}

// A connection may break anywhere. A record that is reported as stored is there, one that is reported as not sent
// is not there, and no record is stored twice.
func TestOutcomesHoldWhereverTheConnectionBreaks(t *testing.T) {
	t.Parallel()
	const intents, atOnce = 600, 8
	var breaking atomic.Bool
	_, advertised := gated(t, func(client, broker net.Conn) {
		most := int64(math.MaxInt64)
		if breaking.Load() {
			most = 1500
			if rand.N(2) == 0 { // half of the connections end with a reset
				_ = client.(*net.TCPConn).SetLinger(0)
			}
		}
		dispatchtest.Carry(client, broker, rand.N(most), rand.N(most))
	})
	cluster := start(t, advertised)
	adapter := adapterFor(t, cluster)
	breaking.Store(true)

	outcomes := make([]dispatch.Result, intents)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < intents; i = next.Add(1) - 1 {
				outcomes[i] = adapter.Dispatch(t.Context(), intent(fmt.Sprint(i)))
			}
		})
	}
	workers.Wait()
	_ = adapter.Close()
	breaking.Store(false)

	records := map[string]int{}
	for _, record := range stored(t, cluster) {
		records[header(record, "idempotency-key")]++
	}
	seen := map[dispatch.Outcome]int{}
	for i, got := range outcomes {
		there := records[intent(fmt.Sprint(i)).IdempotencyKey]
		seen[got.Outcome]++
		switch {
		case there > 1:
			t.Errorf("intent %d: %d records of one dispatch", i, there)
		case got.Outcome == dispatch.Completed && there != 1:
			t.Errorf("intent %d: completed, but not there", i)
		case got.Outcome != dispatch.Completed && got.Outcome != dispatch.Ambiguous && there != 0:
			t.Errorf("intent %d: %s (%s), but there", i, got.Outcome, got.ErrorClass)
		}
	}
	t.Logf("outcomes: %v", seen)
	if seen[dispatch.Completed] < 10 || seen[dispatch.NotSent] < 10 || seen[dispatch.Ambiguous] < 10 {
		t.Error("too few of a kind; this shows nothing")
	}
}

// The end of a dispatch may come at any moment around the write of its record.
func TestNoRecordFollowsADispatchThatSaidNotSent(t *testing.T) {
	t.Parallel()
	const enough, most = 30, 5000
	cluster := start(t)
	var produced atomic.Int64
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		produced.Add(1)
		return nil, nil, false
	})
	adapter := adapterFor(t, cluster)
	var outcomes []dispatch.Outcome
	seen := map[dispatch.Outcome]int{}
	for i := 0; i < most && min(seen[dispatch.NotSent], seen[dispatch.Ambiguous]) < enough; i++ {
		outcome := dispatchAndLeave(t, adapter, intent(fmt.Sprint(i)))
		outcomes = append(outcomes, outcome)
		seen[outcome]++
	}
	_ = adapter.Close()
	records := map[string]bool{}
	for _, record := range stored(t, cluster) {
		records[header(record, "idempotency-key")] = true
	}
	for i, outcome := range outcomes {
		if outcome == dispatch.NotSent && records[intent(fmt.Sprint(i)).IdempotencyKey] {
			t.Errorf("intent %d: not_sent, but there", i)
		}
	}
	t.Logf("outcomes: %v", seen)
	if min(seen[dispatch.NotSent], seen[dispatch.Ambiguous]) < enough {
		t.Error("too few of a kind; this shows nothing")
	}
	if got := produced.Load(); got > int64(len(outcomes)) {
		t.Errorf("%d Produce requests for %d dispatches", got, len(outcomes))
	}
}

// A broker that accepts a connection and sends nothing does not hold a dispatch beyond its context, even if the
// client waits longer.
func TestADispatchEndsWithItsContextWhereABrokerNeverShakesHands(t *testing.T) {
	t.Parallel()
	silent := dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	patient := spec([]string{silent}, "", "topic: "+topic)
	patient.Timeout = 2 * drainertest.Patience
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	got := newAdapter(t, patient).Dispatch(ctx, intent("1"))
	if took := time.Since(began); took > drainertest.Patience || got.Outcome != dispatch.NotSent || got.ErrorClass != "timeout" {
		t.Errorf("%+v after %s", got, took)
	}
}

func TestARecordCarriesThePayloadByteForByteAndTheKey(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	traced := request("{\"b\": 1.0,\n  \"a\": 12345678901234567890}")
	traced.Headers = map[string]string{"Traceparent": "00-ab", "tracestate": "s=1", "authorization": "forged"}
	before := time.Now().Add(-time.Second)

	got := adapterFor(t, cluster).Dispatch(t.Context(), traced)

	if got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	record := stored(t, cluster)[0]
	if string(record.Value) != string(traced.Payload) {
		t.Errorf("value %q", record.Value)
	}
	if string(record.Key) != traced.IdempotencyKey || header(record, "idempotency-key") != traced.IdempotencyKey {
		t.Errorf("key %q, header %q", record.Key, header(record, "idempotency-key"))
	}
	if header(record, "traceparent") != "00-ab" || header(record, "tracestate") != "s=1" || len(record.Headers) != 3 {
		t.Errorf("headers %v", record.Headers)
	}
	if record.Timestamp.Before(before) || record.Timestamp.After(time.Now().Add(time.Second)) {
		t.Errorf("timestamp %s", record.Timestamp)
	}
	if want := fmt.Sprintf("%s/%d/%d", topic, record.Partition, record.Offset); got.ProviderRef != want {
		t.Errorf("reference %q, want %q", got.ProviderRef, want)
	}
	var position struct {
		Topic     string
		Partition int32
		Offset    int64
		Timestamp time.Time
	}
	if err := json.Unmarshal(got.Response, &position); err != nil {
		t.Fatal(err)
	}
	if position.Topic != topic || position.Partition != record.Partition || position.Offset != record.Offset || !position.Timestamp.Equal(record.Timestamp) {
		t.Errorf("response %s for %+v", got.Response, record)
	}
}

func TestKeyHeadersAndValueAreTheConfigurations(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	adapter := newAdapter(t, spec(cluster.ListenAddrs(), "", `
topic: charges
key: "{.business_scope}"
headers: {event: "charge {.payload.id}", content-type: application/json}
map: "{id: .payload.id, key: .key}"
`))
	if got := adapter.Dispatch(t.Context(), request(`{"id": 9007199254740993}`)); got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	record := stored(t, cluster)[0]
	if want := `{"id":9007199254740993,"key":"` + request("").IdempotencyKey + `"}`; string(record.Value) != want {
		t.Errorf("value %s, want %s", record.Value, want)
	}
	if string(record.Key) != "invoice_442" || header(record, "event") != "charge 9007199254740993" || header(record, "content-type") != "application/json" {
		t.Errorf("key %q, headers %v", record.Key, record.Headers)
	}
}

func TestAMappedNullIsATombstone(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	adapter := newAdapter(t, spec(cluster.ListenAddrs(), "", `{topic: charges, map: "null"}`))
	if got := adapter.Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	if record := stored(t, cluster)[0]; record.Value != nil {
		t.Errorf("value %q", record.Value)
	}
}

func TestWhatCannotBeRenderedIsRejectedAndNotSent(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	for name, test := range map[string]struct{ tool, title, detail string }{
		"map":                     {`{topic: charges, map: "error"}`, "map cannot be rendered", "error: it calls error"},
		"key":                     {`{topic: charges, key: "{.payload}"}`, "key cannot be rendered", ".payload: gives an object where text belongs; .payload is an object"},
		"control character":       {`{topic: charges, headers: {x: "{.payload.line}"}}`, "headers.x cannot be rendered", ".payload.line: a header value holds a control character"},
		"null in place of a text": {`{topic: charges, headers: {x: "{.payload.absent}"}}`, "headers.x cannot be rendered", ".payload.absent: gives null where text belongs; .payload.absent is null"},
	} {
		got := newAdapter(t, spec(cluster.ListenAddrs(), "", test.tool)).Dispatch(t.Context(), request(`{"line":"a\r\nb"}`))
		if got.Outcome != dispatch.Rejected || got.ErrorClass != "unrenderable_request" || got.Problem == nil || got.Problem.Title != test.title || got.Problem.Detail != test.detail {
			t.Errorf("%s: got %+v, %+v", name, got, got.Problem)
		}
	}
	if n := count(cluster, topic); n != 0 {
		t.Errorf("%d records", n)
	}
}

// Consumers that join by key rely on all producers to choose the same partition.
func TestAKeyGoesToThePartitionWhereKafkasOwnClientsPutIt(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	adapter := adapterFor(t, cluster)
	other, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for step := range 20 {
		intent := intent(fmt.Sprint(step))
		if got := adapter.Dispatch(t.Context(), intent); got.Outcome != dispatch.Completed {
			t.Fatalf("got %+v", got)
		}
		if err := other.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte(intent.IdempotencyKey)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	partitions := map[string]int32{}
	for _, record := range stored(t, cluster) {
		if partition, seen := partitions[string(record.Key)]; seen && partition != record.Partition {
			t.Errorf("key %s in partitions %d and %d", record.Key, partition, record.Partition)
		}
		partitions[string(record.Key)] = record.Partition
	}
	if len(partitions) != 20 {
		t.Errorf("%d keys", len(partitions))
	}
}
