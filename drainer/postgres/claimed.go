package postgres

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/agentoutbox/drainer/drainer"
)

// claimedRow has its place in the queue, by which the next claim goes on.
type claimedRow struct {
	*drainer.Row

	lane  int // counted from one, of those that the statement claimed for
	place drainer.Cursor
}

// inOrder is the order in which rows were due: sorting them here is cheaper than
// with their payloads in the database.
func inOrder(found []claimedRow) []claimedRow {
	slices.SortFunc(found, func(a, b claimedRow) int { return a.place.Compare(b.place) })
	return found
}

func takeClaimed(reply *drainer.ClaimReply, row claimedRow, probe bool) {
	reply.Found++
	reply.Next = row.place
	if row.ClaimID == 0 { // stopped: its run goes back
		return
	}
	row.Probe = probe
	reply.Rows = append(reply.Rows, row.Row)
}

// claimedScan reads the rows of one claim into one place, because all that a scan is
// told of lives on the heap.
type claimedScan struct {
	lane               int
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
		&s.lane, &row.ClaimID, &row.IntentID, &row.Attempt, &row.Tries, &row.FirstAttemptAt, &s.now, &s.enqueued, &s.due,
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
	return claimedRow{&row, s.lane, drainer.Cursor{NextAttemptAt: s.due, IntentID: row.IntentID}}, err
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
