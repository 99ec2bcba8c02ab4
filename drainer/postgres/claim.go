package postgres

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/agentoutbox/drainer/drainer"
)

//go:embed sql/claim.sql
var claimTemplate string

var claimSQL, probeSQL = claimStatement(false), claimStatement(true)

func claimStatement(probe bool) string {
	var statement strings.Builder
	if err := template.Must(template.New("claim.sql").Parse(claimTemplate)).Execute(&statement, struct{ Probe bool }{probe}); err != nil {
		panic(err) // it is constant
	}
	return statement.String()
}

// queueClaim takes the time since the claim before it.
func queueClaim(batch *pgx.Batch, worker string, claim drainer.Claim, reply *drainer.ClaimReply, before *time.Time) {
	if claim.Limit == 0 {
		return
	}
	after := pgtype.Timestamptz{Time: claim.After.NextAttemptAt, Valid: true}
	if claim.After.NextAttemptAt.IsZero() {
		after.InfinityModifier = pgtype.NegativeInfinity
	}
	statement := claimSQL
	if claim.ProbeFor > 0 {
		statement = probeSQL
	}
	batch.Queue(statement, worker, claim.Provider, claim.Limit, after, claim.After.IntentID,
		claim.Server, claim.Fallback, claim.ProbeFor.Seconds(),
	).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, newClaimedScan(time.Now()).row)
		if err != nil {
			return fmt.Errorf("claimed row: %w", err)
		}
		takeClaimed(reply, found, claim.ProbeFor > 0)
		reply.Took, *before = time.Since(*before), time.Now()
		return nil
	})
}

// claimedRow has its place in the queue, by which the next claim goes on.
type claimedRow struct {
	*drainer.Row

	place drainer.Cursor
}

// takeClaimed puts rows into the order in which they were due: sorting them here
// is cheaper than with their payloads in the database.
func takeClaimed(reply *drainer.ClaimReply, found []claimedRow, probe bool) {
	slices.SortFunc(found, func(a, b claimedRow) int { return a.place.Compare(b.place) })
	reply.Found = len(found)
	reply.Rows = make([]*drainer.Row, 0, len(found))
	for _, row := range found {
		reply.Next = row.place
		if row.ClaimID == 0 { // stopped: its run goes back
			continue
		}
		row.Probe = probe
		reply.Rows = append(reply.Rows, row.Row)
	}
}

// claimedScan reads the rows of one claim into one place, because all that a scan is
// told of lives on the heap.
type claimedScan struct {
	next               drainer.Row
	now, enqueued, due time.Time
	payload, headers   []byte
	reference          pgtype.Text
	columns            []any // in the order of claim.sql
}

func newClaimedScan(at time.Time) *claimedScan {
	s := &claimedScan{next: drainer.Row{ClaimedAt: at}}
	row := &s.next
	s.columns = []any{
		&row.ClaimID, &row.IntentID, &row.Attempt, &row.Tries, &row.FirstAttemptAt, &s.now, &s.enqueued, &s.due,
		&row.MaybeApplied, &row.Lookup, &row.Closed, &row.InSaga, &row.Via, &row.Undoes,
		&row.Tuple.AgentRunID, &row.Tuple.StepID, &row.Tuple.ToolName, &row.Tuple.BusinessScope,
		&s.payload, &s.headers, &s.reference,
	}
	return s
}

func (s *claimedScan) row(rows pgx.CollectableRow) (claimedRow, error) {
	err := rows.Scan(s.columns...)
	row := s.next
	if row.FirstAttemptAt != nil {
		row.SinceFirstSend = s.now.Sub(*row.FirstAttemptAt)
	}
	row.SinceEnqueue, row.SinceDue = s.now.Sub(s.enqueued), s.now.Sub(s.due)
	row.Payload, row.Headers, row.ProviderRef = s.payload, textValues(s.headers), s.reference.String
	return claimedRow{&row, drainer.Cursor{NextAttemptAt: s.due, IntentID: row.IntentID}}, err
}

// textValues keeps what can be a header; an agent's mistake in its headers is
// no reason to hold its intent up.
func textValues(headers []byte) map[string]string {
	if headers == nil {
		return nil
	}
	var values map[string]any
	if json.Unmarshal(headers, &values) != nil {
		return nil
	}
	texts := make(map[string]string, len(values))
	for name, value := range values {
		if text, is := value.(string); is {
			texts[name] = text
		}
	}
	return texts
}
