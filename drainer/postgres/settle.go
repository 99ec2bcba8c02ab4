package postgres

import (
	_ "embed"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
)

//go:embed sql/settle.sql
var settleSQL string

// settleColumns are the settlements turned on their side: one array a column. Where
// outcome or status are 'completed' they are left out.
type settleColumns struct {
	rows             int
	claims, intents  column[pgtype.Int8]
	attempts         column[pgtype.Int4]
	startedAgo       column[pgtype.Float8]
	finishedAgo      column[pgtype.Float8]
	outcomes, status column[pgtype.Text]
	httpStatus       column[pgtype.Int4]
	errors, refs     column[pgtype.Text]
	responses        column[pgtype.Text]
	responseHeaders  column[pgtype.Text]
	replayed         column[pgtype.Bool]
	problems         column[pgtype.Text]
	retryAfters      column[pgtype.Float8]
	asked            column[pgtype.Bool]
	vias             column[pgtype.Text]
	beginsSaga       column[pgtype.Bool]
	undoes           column[pgtype.Int8]

	// Of rows that go back to the queue.
	delays          column[pgtype.Float8]
	tries           column[pgtype.Int4]
	firstAttempts   column[pgtype.Timestamptz]
	mayHaveBeenSent column[pgtype.Bool]
	maybeApplied    column[pgtype.Bool]
	lookups         column[pgtype.Bool]
}

// queueSettle adds nothing for no settlements. Unless they are said to be
// repeated, a row that was settled before fails the batch. refused gets the
// indices of rows that were not accepted.
func queueSettle(batch *pgx.Batch, worker string, settlements []drainer.Settlement, repeated bool, refused *[]int) {
	if len(settlements) == 0 {
		return
	}
	c := columns(settlements) // passed in the order of settle.sql's unnest
	batch.Queue(settleSQL, worker, c.claims.array, c.intents.array, c.attempts.array, c.startedAgo.array, c.finishedAgo.array,
		c.outcomes.array, c.httpStatus.array, c.errors.array, c.refs.array, c.responses.array, c.responseHeaders.array, c.replayed.array,
		c.problems.array, c.retryAfters.array, c.asked.array, c.vias.array,
		c.status.array, c.delays.array, c.tries.array, c.firstAttempts.array, c.mayHaveBeenSent.array, c.maybeApplied.array, c.lookups.array,
		c.beginsSaga.array, c.undoes.array, repeated,
	).Query(func(rows pgx.Rows) (err error) {
		*refused, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	})
}

func columns(settlements []drainer.Settlement) *settleColumns {
	c, now := &settleColumns{rows: len(settlements)}, time.Now()
	for i := range settlements {
		c.set(i, &settlements[i], now)
	}
	return c
}

func (c *settleColumns) set(i int, s *drainer.Settlement, now time.Time) {
	c.claims.put(c.rows, i, bigint(s.Row.ClaimID))
	c.intents.put(c.rows, i, bigint(s.Row.IntentID))
	c.attempts.put(c.rows, i, integer(s.Row.Attempt))
	if !s.StartedAt.IsZero() {
		c.startedAgo.put(c.rows, i, float(now.Sub(s.StartedAt).Seconds()))
	}
	c.finishedAgo.put(c.rows, i, float(now.Sub(s.FinishedAt).Seconds()))
	if s.Decision.Status != dispatch.StatusCompleted {
		c.status.put(c.rows, i, text(string(s.Decision.Status)))
	}
	c.setResult(i, s.Result)
	c.putTrue(&c.asked, i, s.Row.Lookup)
	c.putText(&c.vias, i, s.Row.Via)
	c.putTrue(&c.beginsSaga, i, s.BeginsSaga)
	if s.Row.Undoes != nil {
		c.undoes.put(c.rows, i, bigint(*s.Row.Undoes))
	}
	if s.Decision.Back() {
		c.setNext(i, s)
	}
}

func (c *settleColumns) setResult(i int, result dispatch.Result) {
	if result.Outcome != dispatch.Completed {
		c.outcomes.put(c.rows, i, text(string(result.Outcome)))
	}
	c.putTrue(&c.replayed, i, result.Replayed)
	if status := integer(result.HTTPStatus); status.Int32 != 0 {
		c.httpStatus.put(c.rows, i, status)
	}
	c.putText(&c.errors, i, result.ErrorClass)
	c.putText(&c.refs, i, result.ProviderRef)
	c.putText(&c.responses, i, string(result.Response))
	if len(result.ResponseHeaders) > 0 {
		c.responseHeaders.put(c.rows, i, text(jsonText(result.ResponseHeaders)))
	}
	if result.Problem != nil {
		c.problems.put(c.rows, i, text(jsonText(result.Problem)))
	}
	if result.RetryAfter > 0 && result.Outcome != dispatch.Released {
		c.retryAfters.put(c.rows, i, float(result.RetryAfter.Seconds()))
	}
}

// setNext is what a row takes back into the queue.
func (c *settleColumns) setNext(i int, s *drainer.Settlement) {
	c.delays.put(c.rows, i, float(s.Decision.Delay.Seconds()))
	c.tries.put(c.rows, i, integer(s.Decision.Tries))
	if s.Row.FirstAttemptAt != nil {
		c.firstAttempts.put(c.rows, i, pgtype.Timestamptz{Time: *s.Row.FirstAttemptAt, Valid: true})
	}
	c.putTrue(&c.mayHaveBeenSent, i, s.MayHaveSent())
	c.putTrue(&c.maybeApplied, i, s.Decision.MaybeApplied)
	c.putTrue(&c.lookups, i, s.Decision.Lookup)
}

func (c *settleColumns) putText(of *column[pgtype.Text], i int, value string) {
	if value != "" {
		of.put(c.rows, i, text(value))
	}
}

func (c *settleColumns) putTrue(of *column[pgtype.Bool], i int, value bool) {
	if value {
		of.put(c.rows, i, pgtype.Bool{Bool: true, Valid: true})
	}
}

// jsonText writes what is made of strings and so always has a JSON form.
func jsonText(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}
