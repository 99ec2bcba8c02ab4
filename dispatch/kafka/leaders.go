package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// leadersAge is how long the leaders of a topic are believed. A request to one
// that is none any more is ambiguous, so this is short.
const leadersAge = 10 * time.Second

var errNoLeader = errors.New("the partition has no leader now")

// leaders knows which broker leads which partition.
type leaders struct {
	partitioner kgo.Partitioner

	mu     sync.Mutex
	topics map[string]topicLeaders
}

type topicLeaders struct {
	brokers []int32 // by partition; negative where there is none
	asked   time.Time
}

// newLeaders puts a key where Kafka's own clients put it (murmur2).
func newLeaders() *leaders {
	return &leaders{partitioner: kgo.StickyKeyPartitioner(nil), topics: map[string]topicLeaders{}}
}

// of finds the partition of a record and its leader. An error of the cluster
// is a [*kerr.Error]. Nothing that it sends has an effect.
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

// answerTo returns when ctx ends. The client by itself would first see the
// handshake with a silent broker through; it is left to that, and ends with
// its session.
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
