package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

const (
	allReplicas = -1

	// longestWait is how long a broker may wait for its replicas where the
	// dispatch has no deadline.
	longestWait = 30 * time.Second
)

// publish sends the record once and waits for what becomes of it.
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

// produce asks the leader to answer before the dispatch ends.
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

// unled is the result of a record whose partition or leader was not found: no
// record was sent to anybody. A topic that is missing, or that we may not see,
// is the cluster's to mend: refusing would fail every intent, and undo its run.
func unled(ctx context.Context, err error) dispatch.Result {
	var refusal *kerr.Error
	if errors.As(err, &refusal) {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: className(refusal)}
	}
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: unsentClass(ctx, err)}
}

// unanswered is the result of a request that no answer came to.
func unanswered(ctx context.Context, sent bool, err error) dispatch.Result {
	if sent {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: failure.Sent(ctx, err)}
	}
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: unsentClass(ctx, err)}
}

// unsentClass tells a login that failed from a connection that did.
func unsentClass(ctx context.Context, err error) string {
	var refusal *kerr.Error
	switch {
	case errors.As(err, &refusal):
		return className(refusal)
	case errors.Is(err, errNoLeader):
		return "no_leader"
	case ctx.Err() == nil && failure.IsReset(err):
		return "reset" // by a broker that was reached
	}
	return failure.Unsent(ctx, err)
}
