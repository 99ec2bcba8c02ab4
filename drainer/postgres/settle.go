package postgres

import (
	"encoding/json"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/jackc/pgx/v5"
)

// settleColumns are the settlements turned on their side: one array a column.
type settleColumns struct {
	claims, intents  []int64
	attempts, tries  []int32
	startedAgo       []*float64
	finishedAgo      []float64
	outcomes, status []string
	httpStatus       []*int32
	errors, refs     []*string
	responses        []*string
	responseHeaders  []*string
	replayed         []bool
	problems         []*string
	retryAfters      []*float64
	asked            []bool
	vias             []*string
	delays           []*float64
	firstAttempts    []*time.Time
	mayHaveBeenSent  []bool
	maybeApplied     []bool
	lookups          []bool
	beginsSaga       []bool
	undoes           []*int64
	acts             []bool
}

// queueSettle adds nothing for no settlements. refused gets the indices of
// rows that were not accepted.
func queueSettle(batch *pgx.Batch, worker string, settlements []drainer.Settlement, refused *[]int) {
	if len(settlements) == 0 {
		return
	}
	c := columns(settlements) // passed in the order of settle.sql's unnest
	batch.Queue(settleSQL, worker, c.claims, c.intents, c.attempts, c.startedAgo, c.finishedAgo, c.outcomes, c.httpStatus,
		c.errors, c.refs, c.responses, c.responseHeaders, c.replayed, c.problems, c.retryAfters, c.asked, c.vias,
		c.status, c.delays, c.tries, c.firstAttempts, c.mayHaveBeenSent, c.maybeApplied, c.lookups,
		c.beginsSaga, c.undoes, c.acts,
	).Query(func(rows pgx.Rows) (err error) {
		*refused, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	})
}

func columns(settlements []drainer.Settlement) *settleColumns {
	n := len(settlements)
	c := &settleColumns{
		claims: make([]int64, n), intents: make([]int64, n), attempts: make([]int32, n), tries: make([]int32, n),
		startedAgo: make([]*float64, n), finishedAgo: make([]float64, n), outcomes: make([]string, n), status: make([]string, n),
		httpStatus: make([]*int32, n), errors: make([]*string, n), refs: make([]*string, n), responses: make([]*string, n),
		responseHeaders: make([]*string, n), replayed: make([]bool, n), delays: make([]*float64, n),
		firstAttempts: make([]*time.Time, n), mayHaveBeenSent: make([]bool, n), maybeApplied: make([]bool, n),
		problems: make([]*string, n), retryAfters: make([]*float64, n), asked: make([]bool, n), vias: make([]*string, n),
		lookups: make([]bool, n), beginsSaga: make([]bool, n), undoes: make([]*int64, n), acts: make([]bool, n),
	}
	now := time.Now()
	for i := range settlements {
		c.set(i, &settlements[i], now)
	}
	return c
}

func (c *settleColumns) set(i int, s *drainer.Settlement, now time.Time) {
	c.claims[i], c.intents[i], c.attempts[i] = s.Row.ClaimID, s.Row.IntentID, int32(s.Row.Attempt)
	if !s.StartedAt.IsZero() {
		c.startedAgo[i] = pointer(now.Sub(s.StartedAt).Seconds())
	}
	c.finishedAgo[i] = now.Sub(s.FinishedAt).Seconds()
	c.setResult(i, s.Result)
	c.asked[i], c.vias[i] = s.Row.Lookup, textOrNull(s.Row.Via)
	c.status[i], c.tries[i], c.maybeApplied[i] = string(s.Decision.Status), int32(s.Decision.Tries), s.Decision.MaybeApplied
	c.lookups[i], c.beginsSaga[i], c.undoes[i], c.acts[i] = s.Decision.Lookup, s.BeginsSaga, s.Row.Undoes, s.Acts
	if s.Decision.Back() {
		c.delays[i] = pointer(s.Decision.Delay.Seconds())
	}
	c.firstAttempts[i], c.mayHaveBeenSent[i] = s.Row.FirstAttemptAt, s.MayHaveSent()
}

func (c *settleColumns) setResult(i int, result dispatch.Result) {
	c.outcomes[i], c.replayed[i] = string(result.Outcome), result.Replayed
	if result.HTTPStatus != 0 {
		c.httpStatus[i] = pointer(int32(result.HTTPStatus))
	}
	c.errors[i], c.refs[i] = textOrNull(result.ErrorClass), textOrNull(result.ProviderRef)
	c.responses[i] = textOrNull(string(result.Response))
	if len(result.ResponseHeaders) > 0 {
		c.responseHeaders[i] = jsonText(result.ResponseHeaders)
	}
	if result.Problem != nil {
		c.problems[i] = jsonText(result.Problem)
	}
	if result.RetryAfter > 0 && result.Outcome != dispatch.Released {
		c.retryAfters[i] = pointer(result.RetryAfter.Seconds())
	}
}

// jsonText writes what is made of strings and so always has a JSON form.
func jsonText(value any) *string {
	text, _ := json.Marshal(value)
	return pointer(string(text))
}

func textOrNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func pointer[T any](value T) *T { return &value }
