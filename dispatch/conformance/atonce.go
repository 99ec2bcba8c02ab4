package conformance

import (
	"context"
	"fmt"
	"sync"

	"github.com/agentoutbox/drainer/dispatch"
)

const manyAtOnce = 64

// atOnce dispatches many intents together, through what has no connection yet.
// They share a payload and headers, so that the race detector sees whoever
// writes to them.
func atOnce(b *bench) []Check {
	shared := b.intent()
	ended := make([]Seen, manyAtOnce)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range ended {
		request := b.intent()
		request.Payload, request.Headers = shared.Payload, shared.Headers
		group.Go(func() {
			<-start
			ended[i] = b.dispatch(context.Background(), request)
		})
	}
	close(start)
	group.Wait()
	await(b.subject.patience(), func() bool { return len(b.Received()) >= manyAtOnce })
	return []Check{allCompleted(ended), b.allArrived()}
}

func allCompleted(ended []Seen) Check {
	completed, other := 0, ""
	for _, seen := range ended {
		if seen.ended(dispatch.Completed) {
			completed++
		} else {
			other = "; " + seen.String()
		}
	}
	return found("completed", completed == len(ended), fmt.Sprintf("%d of %d%s", completed, len(ended), other), "all", "Dispatch is called concurrently")
}

func (b *bench) allArrived() Check {
	messages, distinct := b.Received(), map[string]bool{}
	for _, message := range messages {
		distinct[message.Key] = true
	}
	seen := fmt.Sprintf("%d messages with %d keys", len(messages), len(distinct))
	if !b.subject.carriesKeys() {
		return found("arrived", len(messages) == manyAtOnce, seen, fmt.Sprintf("%d messages", manyAtOnce), "requests must not mix")
	}
	return found("arrived", len(messages) == manyAtOnce && len(distinct) == manyAtOnce, seen, fmt.Sprintf("%d messages, each with its own key", manyAtOnce), "requests must not mix")
}
