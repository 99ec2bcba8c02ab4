package kafka_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agentoutbox/drainer/dispatch"
)

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
	if want := `{"id":9007199254740993,"key":"` + tuple.IdempotencyKey() + `"}`; string(record.Value) != want {
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

// Consumers that join by key rely on every producer choosing alike.
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
