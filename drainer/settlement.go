package drainer

import (
	"math/rand/v2"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// withdraw gives a row back unsent; a probe hands its turn on.
func (l *lane) withdraw(row *Row, delay time.Duration, class string) Settlement {
	settlement := release(row, delay, class)
	if upstream, known := l.upstreams[row.server()]; known {
		settlement.Breaker = upstream.breaker.unproven(row)
	}
	return settlement
}

// release ends an attempt that was none: it costs none of the row's tries.
func release(row *Row, delay time.Duration, class string) Settlement {
	result := dispatch.Result{Outcome: dispatch.Released, RetryAfter: delay, ErrorClass: class}
	now := time.Now()
	return Settlement{
		Row:        row,
		FinishedAt: now,
		Result:     result,
		Decision:   dispatch.Policy{}.Decide(row.History(time.Time{}, now), result, 0),
	}
}

// lose judges a row whose worker died: it may have been sent as soon as it was
// claimed.
func lose(row *Row, policy dispatch.Policy) Settlement {
	result := dispatch.Result{Outcome: dispatch.Lost, ErrorClass: "worker_lost"}
	now := time.Now()
	settlement := Settlement{
		Row:        row,
		StartedAt:  row.ClaimedAt,
		FinishedAt: now,
		Result:     result,
		Decision:   policy.Decide(row.History(row.ClaimedAt, now), result, rand.Float64()),
	}
	settlement.BeginsSaga = beginsSaga(&settlement, policy)
	return settlement
}

// halt ends the attempts of a forward row whose run goes back: nothing is sent
// any more, but what may have been applied must be known before it is undone.
func (l *lane) halt(row *Row, policy dispatch.Policy) Settlement {
	halted := l.withdraw(row, 0, "run_compensating")
	halted.Decision = policy.Halt(row.History(time.Time{}, halted.FinishedAt))
	return halted
}

// beginsSaga holds for a forward step that failed for good. An undo that fails
// is never compensated itself.
func beginsSaga(s *Settlement, policy dispatch.Policy) bool {
	return policy.BeginsSaga && s.Row.Undoes == nil && s.Decision.Status == dispatch.StatusFailed
}
