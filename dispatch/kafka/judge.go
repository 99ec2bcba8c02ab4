package kafka

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// refusals are the errors that a leader sends before it appends anything
// (https://kafka.apache.org/protocol#protocol_error_codes). Every other error leaves doubt. NOT_LEADER_OR_FOLLOWER,
// too, can come from a leader that appended the record and lost its leadership while it waited for the replicas.
var refusals = map[int16]dispatch.Outcome{
	kerr.CorruptMessage.Code:              dispatch.Throttled, // the record was damaged on its way
	kerr.MessageTooLarge.Code:             dispatch.Rejected,
	kerr.RecordListTooLarge.Code:          dispatch.Rejected,
	kerr.NotEnoughReplicas.Code:           dispatch.Throttled,
	kerr.InvalidRequiredAcks.Code:         dispatch.Rejected,
	kerr.InvalidTopicException.Code:       dispatch.Throttled, // the configuration or the cluster can be corrected
	kerr.TopicAuthorizationFailed.Code:    dispatch.Forbidden,
	kerr.ClusterAuthorizationFailed.Code:  dispatch.Forbidden,
	kerr.InvalidTimestamp.Code:            dispatch.Rejected,
	kerr.UnsupportedVersion.Code:          dispatch.Rejected,
	kerr.InvalidRequest.Code:              dispatch.Rejected,
	kerr.UnsupportedForMessageFormat.Code: dispatch.Rejected,
	kerr.PolicyViolation.Code:             dispatch.Rejected,
	kerr.UnsupportedCompressionType.Code:  dispatch.Rejected,
	kerr.InvalidRecord.Code:               dispatch.Rejected,
	kerr.ThrottlingQuotaExceeded.Code:     dispatch.Throttled,
}

// judge returns the outcome that a leader's answer proves.
func judge(topic string, partition int32, created time.Time, response kmsg.Response) dispatch.Result {
	answer := find(response, topic, partition)
	switch {
	case answer == nil:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "protocol"}
	case answer.ErrorCode != 0:
		return refused(answer)
	case answer.BaseOffset < 0:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "protocol"}
	}
	return stored(topic, partition, created, answer)
}

func find(response kmsg.Response, topic string, partition int32) *kmsg.ProduceResponseTopicPartition {
	produced, ok := response.(*kmsg.ProduceResponse)
	if !ok {
		return nil
	}
	for i := range produced.Topics {
		for j := range produced.Topics[i].Partitions {
			if answer := &produced.Topics[i].Partitions[j]; produced.Topics[i].Topic == topic && answer.Partition == partition {
				return answer
			}
		}
	}
	return nil
}

func refused(answer *kmsg.ProduceResponseTopicPartition) dispatch.Result {
	outcome, proven := refusals[answer.ErrorCode]
	if !proven {
		outcome = dispatch.Ambiguous
	}
	result := dispatch.Result{Outcome: outcome, ErrorClass: "unknown_error_code", OfOperation: proven && isOfTopic(answer.ErrorCode)}
	if known := kerr.TypedErrorForCode(answer.ErrorCode); known != nil && known.Code == answer.ErrorCode {
		result.ErrorClass = className(known)
	}
	if answer.ErrorMessage != nil && *answer.ErrorMessage != "" {
		result.Problem = &dispatch.Problem{Title: result.ErrorClass, Detail: evidence.Text(*answer.ErrorMessage)}
	}
	return result
}

// isOfTopic reports whether the cluster refuses only this topic and may accept others.
func isOfTopic(code int16) bool {
	switch code {
	case kerr.UnknownTopicOrPartition.Code, kerr.InvalidTopicException.Code, kerr.LeaderNotAvailable.Code, kerr.NotEnoughReplicas.Code:
		return true
	}
	return false
}

// className returns Kafka's own name of an error, in lower case.
func className(err *kerr.Error) string { return strings.ToLower(err.Message) }

// position is the stored response of an effect.
type position struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Timestamp time.Time `json:"timestamp"`
}

func stored(topic string, partition int32, created time.Time, answer *kmsg.ProduceResponseTopicPartition) dispatch.Result {
	at := created
	if answer.LogAppendTime >= 0 {
		at = time.UnixMilli(answer.LogAppendTime)
	}
	response, err := json.Marshal(position{topic, partition, answer.BaseOffset, at.UTC().Truncate(time.Millisecond)})
	if err != nil {
		response = nil // the record is stored all the same
	}
	return dispatch.Result{
		Outcome:     dispatch.Completed,
		ProviderRef: fmt.Sprintf("%s/%d/%d", topic, partition, answer.BaseOffset),
		Response:    response,
	}
}
