package postgres

import (
	_ "embed"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
)

//go:embed sql/settle.sql
var settleSQL string

// settleColumns are the settlements turned on their side: one array a column.
type settleColumns struct {
	claims, intents  []int64
	attempts         []int32
	finishedAgo      []float64
	outcomes, status []string

	// These stay nil until a row has something there: see put.
	startedAgo      []*float64
	httpStatus      []*int32
	errors, refs    []*string
	responses       []*string
	responseHeaders []*string
	replayed        []*bool
	problems        []*string
	retryAfters     []*float64
	asked           []*bool
	vias            []*string
	beginsSaga      []*bool
	undoes          []*int64

	// So do these, of rows that go back to the queue.
	delays          []*float64
	tries           []*int32
	firstAttempts   []*time.Time
	mayHaveBeenSent []*bool
	maybeApplied    []*bool
	lookups         []*bool
}

// queueSettle adds nothing for no settlements. Unless they are said to be
// repeated, a row that was settled before fails the batch. refused gets the
// indices of rows that were not accepted.
func queueSettle(batch *pgx.Batch, worker string, settlements []drainer.Settlement, repeated bool, refused *[]int) {
	if len(settlements) == 0 {
		return
	}
	c := columns(settlements) // passed in the order of settle.sql's unnest
	batch.Queue(settleSQL, worker, c.claims, c.intents, c.attempts, c.startedAgo, c.finishedAgo, c.outcomes, c.httpStatus,
		c.errors, c.refs, c.responses, c.responseHeaders, c.replayed, c.problems, c.retryAfters, c.asked, c.vias,
		c.status, c.delays, c.tries, c.firstAttempts, c.mayHaveBeenSent, c.maybeApplied, c.lookups,
		c.beginsSaga, c.undoes, repeated,
	).Query(func(rows pgx.Rows) (err error) {
		*refused, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	})
}

func columns(settlements []drainer.Settlement) *settleColumns {
	n := len(settlements)
	c := &settleColumns{
		claims: make([]int64, n), intents: make([]int64, n), attempts: make([]int32, n),
		finishedAgo: make([]float64, n), outcomes: make([]string, n), status: make([]string, n),
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
		put(c, &c.startedAgo, i, now.Sub(s.StartedAt).Seconds())
	}
	c.finishedAgo[i], c.status[i] = now.Sub(s.FinishedAt).Seconds(), string(s.Decision.Status)
	c.setResult(i, s.Result)
	putIf(c, &c.asked, i, s.Row.Lookup)
	putIf(c, &c.vias, i, s.Row.Via)
	putIf(c, &c.beginsSaga, i, s.BeginsSaga)
	if s.Row.Undoes != nil {
		put(c, &c.undoes, i, *s.Row.Undoes)
	}
	if s.Decision.Back() {
		c.setNext(i, s)
	}
}

func (c *settleColumns) setResult(i int, result dispatch.Result) {
	c.outcomes[i] = string(result.Outcome)
	putIf(c, &c.replayed, i, result.Replayed)
	putIf(c, &c.httpStatus, i, int32(result.HTTPStatus))
	putIf(c, &c.errors, i, result.ErrorClass)
	putIf(c, &c.refs, i, result.ProviderRef)
	putIf(c, &c.responses, i, string(result.Response))
	if len(result.ResponseHeaders) > 0 {
		put(c, &c.responseHeaders, i, jsonText(result.ResponseHeaders))
	}
	if result.Problem != nil {
		put(c, &c.problems, i, jsonText(result.Problem))
	}
	if result.RetryAfter > 0 && result.Outcome != dispatch.Released {
		put(c, &c.retryAfters, i, result.RetryAfter.Seconds())
	}
}

// setNext is what a row takes back into the queue.
func (c *settleColumns) setNext(i int, s *drainer.Settlement) {
	put(c, &c.delays, i, s.Decision.Delay.Seconds())
	put(c, &c.tries, i, int32(s.Decision.Tries))
	if s.Row.FirstAttemptAt != nil {
		put(c, &c.firstAttempts, i, *s.Row.FirstAttemptAt)
	}
	putIf(c, &c.mayHaveBeenSent, i, s.MayHaveSent())
	putIf(c, &c.maybeApplied, i, s.Decision.MaybeApplied)
	putIf(c, &c.lookups, i, s.Decision.Lookup)
}

// put begins a column with its first value. One that no row needs costs nothing
// on the way to the database, nor in it.
func put[T any](c *settleColumns, column *[]*T, i int, value T) {
	if *column == nil {
		*column = make([]*T, len(c.intents))
	}
	(*column)[i] = &value
}

// putIf puts what is not the type's zero.
func putIf[T comparable](c *settleColumns, column *[]*T, i int, value T) {
	var zero T
	if value != zero {
		put(c, column, i, value)
	}
}

// jsonText writes what is made of strings and so always has a JSON form.
func jsonText(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}
