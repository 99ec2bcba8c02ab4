package kafka_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch"
)

// answering gives every Produce request this error code and stores nothing.
func answering(cluster *kfake.Cluster, code int16) {
	cluster.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return refusing(request.(*kmsg.ProduceRequest), code), nil, true
	})
}

func refusing(produce *kmsg.ProduceRequest, code int16) kmsg.Response {
	response := produce.ResponseKind().(*kmsg.ProduceResponse)
	words := "in the broker's words"
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
		{kerr.TopicAuthorizationFailed, dispatch.Throttled, "topic_authorization_failed"},
		{kerr.ClusterAuthorizationFailed, dispatch.Throttled, "cluster_authorization_failed"},
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
			if got.Outcome != test.outcome || got.ErrorClass != test.class {
				t.Errorf("got %+v, want %s, %s", got, test.outcome, test.class)
			}
			if got.Problem == nil || got.Problem.Detail != "in the broker's words" {
				t.Errorf("problem %+v", got.Problem)
			}
		})
	}
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
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "unknown_topic_or_partition" {
		t.Errorf("got %+v", got)
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
	if got := adapter.Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.Ambiguous || got.ErrorClass != "not_leader_for_partition" {
		t.Errorf("right after the move: %+v", got)
	}
	if got := adapter.Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.Completed {
		t.Errorf("the attempt after it: %+v", got)
	}
}

func TestALeaderThatDoesNotAnswerLeavesDoubt(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return nil, nil, true
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	got := adapterFor(t, cluster).Dispatch(ctx, request(`{}`))
	if got.Outcome != dispatch.Ambiguous || got.ErrorClass != "timeout" {
		t.Errorf("got %+v", got)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("returned after %s", took)
	}
}

func TestWhereNobodyListensNothingIsSent(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	got := newAdapter(t, spec([]string{address}, "", "topic: charges")).Dispatch(t.Context(), request(`{}`))
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "dial" {
		t.Errorf("got %+v", got)
	}
}

func TestAConnectionThatEndedWhileIdleIsNoDoubt(t *testing.T) {
	t.Parallel()
	door := &door{}
	cluster := start(t, kfake.ListenFn(door.listen))
	adapter := adapterFor(t, cluster)
	if got := adapter.Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	door.shut()
	got := adapter.Dispatch(t.Context(), request(`{}`))
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "dial" {
		t.Errorf("got %+v", got)
	}
}

func TestWhatTheNetworkForbidsIsNotReached(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	forbidding := spec(cluster.ListenAddrs(), "", "topic: charges")
	forbidding.Network = dispatch.NewNetwork(func(context.Context, string, string) (net.Conn, error) {
		return nil, dispatch.ErrEgressRefused
	}, nil)
	got := newAdapter(t, forbidding).Dispatch(t.Context(), request(`{}`))
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "egress_refused" {
		t.Errorf("got %+v", got)
	}
}

func TestAnOperationThatIsNotConfiguredIsNotSent(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	other := request(`{}`)
	other.Tuple.ToolName = "events/other"
	if got := adapterFor(t, cluster).Dispatch(t.Context(), other); got.Outcome != dispatch.NotSent || got.ErrorClass != "unconfigured_tool" {
		t.Errorf("got %+v", got)
	}
}

func TestARecordThatIsTooLargeIsRejected(t *testing.T) {
	t.Parallel()
	cluster := start(t)
	got := adapterFor(t, cluster).Dispatch(t.Context(), request(`"`+strings.Repeat("x", 2<<20)+`"`))
	if got.Outcome != dispatch.Rejected || got.ErrorClass != "message_too_large" {
		t.Errorf("got %+v", got)
	}
}
