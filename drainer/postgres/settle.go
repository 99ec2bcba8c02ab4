package postgres

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

//go:embed sql/settle.sql
var settleTemplate string

var settleSQL, settleUndosSQL = rendered(settleTemplate, struct{ Undos bool }{}), rendered(settleTemplate, struct{ Undos bool }{true})

// settleColumns holds settlements by column, one array for each. An outcome or status of 'completed' is
// left out.
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
	refused          column[pgtype.Bool]
	foreign          column[pgtype.Bool]
	runs             column[pgtype.Text] // null for settlements that concern no saga
	undoes           column[pgtype.Int8]

	// The next columns have values only for rows that return to the queue.
	delays          column[pgtype.Float8]
	tries           column[pgtype.Int4]
	firstAttempts   column[pgtype.Timestamptz]
	mayHaveBeenSent column[pgtype.Bool]
	maybeApplied    column[pgtype.Bool]
	lookups         column[pgtype.Bool]
}

// queueSettle adds nothing if there are no settlements. Unless the batch is a repetition, a row that was settled
// before fails the batch. The reply gets the indices of the refused rows, and the changes of sagas by the other
// rows.
func queueSettle(batch *pgx.Batch, worker string, settlements []drainer.Settlement, repeated bool, reply *drainer.BatchReply) {
	if len(settlements) == 0 {
		return
	}
	c := columns(settlements) // passed in the order of settle.sql's unnest
	statement := settleSQL
	if c.undoes.array != nil {
		statement = settleUndosSQL
	}
	batch.Queue(statement, worker, c.claims.array, c.intents.array, c.attempts.array, c.startedAgo.array, c.finishedAgo.array,
		c.outcomes.array, c.httpStatus.array, c.errors.array, c.refs.array, c.responses.array, c.responseHeaders.array, c.replayed.array,
		c.problems.array, c.retryAfters.array, c.asked.array, c.vias.array,
		c.status.array, c.delays.array, c.tries.array, c.firstAttempts.array, c.mayHaveBeenSent.array, c.maybeApplied.array, c.lookups.array,
		c.beginsSaga.array, c.undoes.array, repeated, c.runs.array, c.refused.array, c.foreign.array,
	).Query(func(rows pgx.Rows) error {
		concerned := 0
		for i := range settlements {
			if settlements[i].ConcernsSaga() {
				concerned++
			}
		}
		var what string
		var n int
		_, err := pgx.ForEachRow(rows, []any{&what, &n}, func() error {
			switch what {
			case "refused":
				reply.Refused = append(reply.Refused, n)
			case "undos":
				reply.Sagas.Undos = n
			case "compensated":
				reply.Sagas.Compensated = n
			}
			return nil
		})
		reply.Sagas.Marked = concerned > reply.Sagas.Undos+reply.Sagas.Compensated
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
	c.putTrue(&c.refused, i, s.Refused)
	c.putTrue(&c.foreign, i, s.Foreign)
	if s.ConcernsSaga() {
		c.runs.put(c.rows, i, text(s.Row.Tuple.AgentRunID))
	}
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

// setNext sets the values with which a row returns to the queue.
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

// jsonText encodes values made of strings, for which encoding cannot fail.
func jsonText(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

var (
	//go:embed sql/doubted.sql
	doubtedSQL string
	//go:embed sql/unqueue.sql
	unqueueSQL string
	//go:embed sql/late.sql
	lateSQL string
	//go:embed sql/late_saga.sql
	lateSagaSQL string
)

// recordLate records the proof of an effect whose settlement was refused. After an error the lane settles the
// row again, is refused again, and tries this again.
func (s *Store) recordLate(ctx context.Context, worker string, settled []drainer.Settlement, refused []int) error {
	late, err := s.doubted(ctx, provenLate(settled, refused))
	if err != nil {
		return fmt.Errorf("look for late effects: %w", err)
	}
	for _, effect := range late {
		if err := s.recordEffect(ctx, worker, effect); err != nil {
			return fmt.Errorf("record a late effect: %w", err)
		}
	}
	return nil
}

// provenLate returns the refused settlements that prove an effect.
func provenLate(settled []drainer.Settlement, refused []int) []drainer.Settlement {
	var proven []drainer.Settlement
	for _, i := range refused {
		if settled[i].Result.Outcome == dispatch.Completed {
			proven = append(proven, settled[i])
		}
	}
	return proven
}

// doubted returns the settlements whose effects are not on record. Most often all effects are, because only the
// reply to their settlement was lost.
func (s *Store) doubted(ctx context.Context, proven []drainer.Settlement) ([]drainer.Settlement, error) {
	if len(proven) == 0 {
		return nil, nil
	}
	intents := make([]int64, len(proven))
	for i := range proven {
		intents[i] = proven[i].Row.IntentID
	}
	rows, _ := s.batches.Query(ctx, doubtedSQL, intents) // CollectRows returns the error too
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (drainer.Settlement, error) {
		i, err := pgx.RowTo[int](row)
		return proven[i], err
	})
}

func (s *Store) recordEffect(ctx context.Context, worker string, late drainer.Settlement) error {
	err := s.appendEffect(ctx, worker, late)
	if isDataError(err) {
		err = s.appendEffect(ctx, worker, withoutBody(late))
	}
	return err
}

// appendEffect locks the intent first, as operators and passes of a saga do. So once it has the lock, the others
// have committed, and its next statements see their result. A row that is claimed again is left to
// its new worker.
func (s *Store) appendEffect(ctx context.Context, worker string, late drainer.Settlement) error {
	return pgx.BeginTxFunc(ctx, s.batches, pgpool.Transaction, func(tx pgx.Tx) error {
		var held bool
		err := tx.QueryRow(ctx, `SELECT outbox.hold_alone($1)`, late.Row.IntentID).Scan(&held)
		if err != nil || !held { // the intent has been pruned
			return err
		}
		waited, err := tx.Exec(ctx, unqueueSQL, late.Row.IntentID)
		if err != nil {
			return err
		}
		var appended bool
		err = tx.QueryRow(ctx, lateSQL, append(evidence(worker, late), waited.RowsAffected() > 0)...).Scan(&appended)
		if err != nil || !appended {
			return err
		}
		_, err = tx.Exec(ctx, lateSagaSQL, late.Row.IntentID, late.Acts)
		return err
	})
}

// evidence returns the parameters of late.sql, in their order.
func evidence(worker string, late drainer.Settlement) []any {
	result := late.Result
	return []any{
		worker, late.Row.IntentID, time.Since(late.StartedAt).Seconds(),
		orNull(int32(result.HTTPStatus)), orNull(result.ProviderRef), orNull(string(result.Response)), orNull(late.Row.Via),
	}
}

// orNull returns NULL for the zero value.
func orNull[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// commitAround settles the rows, without the responses that cannot be stored, and then finishes and claims.
func (s *Store) commitAround(ctx context.Context, worker string, batch drainer.Batch) (drainer.BatchReply, error) {
	settled, err := s.settleAround(ctx, worker, batch.Settle)
	if err != nil {
		return drainer.BatchReply{}, err
	}
	reply, err := s.commit(ctx, worker, drainer.Batch{Finish: batch.Finish, Claims: batch.Claims})
	reply.Refused, reply.Sagas = settled.Refused, settled.Sagas
	return reply, err
}

// settleAround settles all rows although a response cannot be stored. It halves the settlements until that one is
// alone, and stores it without its body.
func (s *Store) settleAround(ctx context.Context, worker string, settlements []drainer.Settlement) (drainer.BatchReply, error) {
	reply, err := s.commit(ctx, worker, drainer.Batch{Settle: settlements})
	if !isDataError(err) {
		return reply, err
	}
	if len(settlements) == 1 {
		return s.commit(ctx, worker, drainer.Batch{Settle: []drainer.Settlement{withoutBody(settlements[0])}})
	}
	middle := len(settlements) / 2
	first, err := s.settleAround(ctx, worker, settlements[:middle])
	if err != nil {
		return drainer.BatchReply{}, err
	}
	second, err := s.settleAround(ctx, worker, settlements[middle:])
	for _, refused := range second.Refused {
		first.Refused = append(first.Refused, middle+refused)
	}
	first.Sagas.Marked = first.Sagas.Marked || second.Sagas.Marked
	first.Sagas.Undos += second.Sagas.Undos
	first.Sagas.Compensated += second.Sagas.Compensated
	return first, err
}

// isDataError reports whether err has the class 22, "data exception", or 54, "program limit exceeded": text that
// jsonb or UTF-8 cannot hold, or too much of it.
func isDataError(err error) bool {
	var refusal *pgconn.PgError
	return errors.As(err, &refusal) && (strings.HasPrefix(refusal.Code, "22") || strings.HasPrefix(refusal.Code, "54"))
}

func withoutBody(s drainer.Settlement) drainer.Settlement {
	s.Result.Response, s.Result.ResponseHeaders, s.Result.ProviderRef, s.Result.Problem = nil, nil, "", nil
	s.Result.ErrorClass = "unstorable_response"
	return s
}
