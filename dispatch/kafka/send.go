package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

const (
	allReplicas = -1

	// longestWait is the longest that a broker may wait for its replicas. A dispatch's deadline may shorten it.
	longestWait = 30 * time.Second
)

// publish sends the record once and returns the result.
func (a *Adapter) publish(ctx context.Context, r record) dispatch.Result {
	session, err := a.sessions.take()
	if err != nil {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "session"}
	}
	partition, leader, err := a.leaders.of(ctx, session.client, r)
	if err != nil {
		a.sessions.discard(session)
		return unled(ctx, err)
	}
	created := time.Now()
	session.wire.unseal()
	answer, err := session.client.Broker(int(leader)).Request(ctx, r.produce(ctx, partition, created))
	sent := session.wire.seal()
	if err != nil {
		a.leaders.forget(r.topic)
		a.sessions.discard(session)
		return unanswered(ctx, sent, err)
	}
	a.sessions.giveBack(session)
	result := judge(r.topic, partition, created, answer)
	if result.Outcome == dispatch.Ambiguous {
		a.leaders.forget(r.topic)
	}
	return result
}

// produce makes a Produce request whose timeout ends before the dispatch does.
func (r record) produce(ctx context.Context, partition int32, created time.Time) kmsg.Request {
	request := kmsg.NewProduceRequest()
	request.Acks = allReplicas
	request.TimeoutMillis = int32(longestWait.Milliseconds())
	if deadline, ok := ctx.Deadline(); ok {
		request.TimeoutMillis = int32(min(max(time.Until(deadline), 0), longestWait).Milliseconds())
	}
	request.Topics = []kmsg.ProduceRequestTopic{{
		Topic:      r.topic,
		Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: partition, Records: r.batch(created)}},
	}}
	return &request
}

// unled is the result if the partition or its leader was not found. No record was
// sent. A missing or hidden topic is a fault of the cluster, so it is not a refusal:
// that would fail every intent and roll back its run.
func unled(ctx context.Context, err error) dispatch.Result {
	var refusal *kerr.Error
	if errors.As(err, &refusal) {
		return dispatch.Result{Outcome: unsentOutcome(refusal), ErrorClass: className(refusal), OfOperation: isOfTopic(refusal.Code)}
	}
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: unsentClass(ctx, err), OfOperation: errors.Is(err, errNoLeader)}
}

// unanswered is the result of a request that got no answer.
func unanswered(ctx context.Context, sent bool, err error) dispatch.Result {
	if sent {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: evidence.Sent(ctx, err)}
	}
	result := dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: unsentClass(ctx, err)}
	if refusal, ok := errors.AsType[*kerr.Error](err); ok {
		result.Outcome = unsentOutcome(refusal)
	}
	return result
}

// unsentOutcome returns the outcome of an error before any record was sent.
func unsentOutcome(refusal *kerr.Error) dispatch.Outcome {
	switch refusal.Code {
	case kerr.SaslAuthenticationFailed.Code:
		return dispatch.CredentialsRefused
	case kerr.TopicAuthorizationFailed.Code, kerr.ClusterAuthorizationFailed.Code:
		return dispatch.Forbidden
	}
	return dispatch.NotSent
}

// unsentClass returns the error class of an error before any record was sent. A failed login gets Kafka's own name
// of the error.
func unsentClass(ctx context.Context, err error) string {
	var refusal *kerr.Error
	switch {
	case errors.As(err, &refusal):
		return className(refusal)
	case errors.Is(err, errNoLeader):
		return "no_leader"
	case ctx.Err() == nil && evidence.IsReset(err):
		return "reset" // by a broker that accepted the connection
	}
	return evidence.Unsent(ctx, err)
}

// The layout of a record batch, https://kafka.apache.org/documentation/#recordbatch.
const (
	magic            = 2
	noProducer       = -1 // the request is never repeated, so no sequence numbers are needed
	lengthStartsFrom = 12 // the length does not count these first bytes
	crcStartsFrom    = 21 // the checksum does not cover these first bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch writes the record as a batch of one.
func (r record) batch(created time.Time) []byte {
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1,
		Magic:                magic,
		FirstTimestamp:       created.UnixMilli(),
		MaxTimestamp:         created.UnixMilli(),
		ProducerID:           noProducer,
		ProducerEpoch:        noProducer,
		FirstSequence:        noProducer,
		NumRecords:           1,
		Records:              r.encode(),
	}
	batch.Length = int32(len(batch.AppendTo(nil)) - lengthStartsFrom)
	batch.CRC = int32(crc32.Checksum(batch.AppendTo(nil)[crcStartsFrom:], castagnoli))
	return batch.AppendTo(nil)
}

func (r record) encode() []byte {
	encoded := kmsg.Record{Key: r.key, Value: r.value, Headers: encodeHeaders(r.headers)}
	withoutLength := len(encoded.AppendTo(nil)) - kbin.VarintLen(0)
	encoded.Length = int32(withoutLength)
	return encoded.AppendTo(nil)
}

func encodeHeaders(headers []adapter.Header) []kmsg.Header {
	encoded := make([]kmsg.Header, len(headers))
	for i, header := range headers {
		encoded[i] = kmsg.Header{Key: header.Name, Value: []byte(header.Value)}
	}
	return encoded
}

// leadersAge is for how long the known leaders of a topic are used. It is short, because a request to a former
// leader is ambiguous.
const leadersAge = 10 * time.Second

var errNoLeader = errors.New("the partition has no leader now")

// leaders caches which broker leads which partition.
type leaders struct {
	partitioner kgo.Partitioner

	mu     sync.Mutex
	topics map[string]topicLeaders
}

type topicLeaders struct {
	brokers []int32 // by partition; negative for a partition without a leader
	asked   time.Time
}

// newLeaders chooses partitions by key as Kafka's own clients do (murmur2).
func newLeaders() *leaders {
	return &leaders{partitioner: kgo.StickyKeyPartitioner(nil), topics: map[string]topicLeaders{}}
}

// of returns the partition of a record and its leader. An error of the cluster is a [*kerr.Error]. The requests of
// this method have no effect.
func (l *leaders) of(ctx context.Context, client *kgo.Client, r record) (partition, leader int32, err error) {
	brokers, err := l.ofTopic(ctx, client, r.topic)
	if err != nil {
		return 0, 0, err
	}
	keyed := &kgo.Record{Topic: r.topic, Key: r.key}
	chosen := l.partitioner.ForTopic(r.topic).Partition(keyed, len(brokers))
	if brokers[chosen] < 0 {
		l.forget(r.topic)
		return 0, 0, errNoLeader
	}
	return int32(chosen), brokers[chosen], nil
}

func (l *leaders) ofTopic(ctx context.Context, client *kgo.Client, topic string) ([]int32, error) {
	l.mu.Lock()
	known := l.topics[topic]
	l.mu.Unlock()
	if time.Since(known.asked) < leadersAge {
		return known.brokers, nil
	}
	asked := time.Now()
	brokers, err := ask(ctx, client, topic)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.topics[topic] = topicLeaders{brokers, asked}
	return brokers, nil
}

func (l *leaders) forget(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.topics, topic)
}

func ask(ctx context.Context, client *kgo.Client, topic string) ([]int32, error) {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr(topic)}}
	request.AllowAutoTopicCreation = false
	response, err := answerTo(ctx, client, request)
	if err != nil {
		return nil, fmt.Errorf("asking for the leaders of a topic: %w", err)
	}
	for _, described := range response.Topics {
		if described.Topic == nil || *described.Topic != topic {
			continue
		}
		if err := kerr.ErrorForCode(described.ErrorCode); err != nil {
			return nil, err
		}
		return byPartition(described.Partitions)
	}
	return nil, errNoLeader
}

// answerTo returns when ctx ends. The client itself would first wait for the handshake with a silent broker. The
// goroutine goes on with that, and ends with its session.
func answerTo(ctx context.Context, client *kgo.Client, request *kmsg.MetadataRequest) (*kmsg.MetadataResponse, error) {
	type answer struct {
		response *kmsg.MetadataResponse
		err      error
	}
	answered := make(chan answer, 1)
	go func() {
		response, err := request.RequestWith(ctx, client)
		answered <- answer{response, err}
	}()
	select {
	case a := <-answered:
		return a.response, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func byPartition(partitions []kmsg.MetadataResponseTopicPartition) ([]int32, error) {
	if len(partitions) == 0 {
		return nil, errNoLeader
	}
	brokers := make([]int32, len(partitions))
	for _, partition := range partitions {
		if partition.Partition < 0 || int(partition.Partition) >= len(brokers) {
			return nil, errNoLeader
		}
		brokers[partition.Partition] = partition.Leader
	}
	return brokers, nil
}
