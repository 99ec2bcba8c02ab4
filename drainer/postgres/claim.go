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

// queueClaims lets one statement claim for several lanes: it has a price of its own,
// about that of eleven rows.
func queueClaims(batch *pgx.Batch, worker string, claims []drainer.Claim, replies []drainer.ClaimReply) {
	before := time.Now()
	for _, lanes := range together(claims) {
		queueClaim(batch, worker, claims, lanes, replies, &before)
	}
}

// together groups claims by their indices: those that one statement can make. Twice
// for one provider it would take a row twice. A probe goes alone, and a full scan:
// its time is measured, and may be long.
func together(claims []drainer.Claim) (groups [][]int) {
	for i, claim := range claims {
		if claim.Limit == 0 {
			continue
		}
		joins := func(group []int) bool {
			return !slices.ContainsFunc(group, func(other int) bool {
				return claims[other].Provider == claim.Provider || goesAlone(claims[other]) || goesAlone(claim)
			})
		}
		if at := slices.IndexFunc(groups, joins); at >= 0 {
			groups[at] = append(groups[at], i)
		} else {
			groups = append(groups, []int{i})
		}
	}
	return groups
}

func goesAlone(claim drainer.Claim) bool {
	return claim.ProbeFor > 0 || claim.After == (drainer.Cursor{})
}

// queueClaim takes the time since the claim before it.
func queueClaim(batch *pgx.Batch, worker string, claims []drainer.Claim, lanes []int, replies []drainer.ClaimReply, before *time.Time) {
	var (
		providers, servers, fallbacks = make([]string, len(lanes)), make([]string, len(lanes)), make([]string, len(lanes))
		limits, intents               = make([]int, len(lanes)), make([]int64, len(lanes))
		times                         = make([]pgtype.Timestamptz, len(lanes))
		statement, probeFor           = claimSQL, claims[lanes[0]].ProbeFor
	)
	for n, lane := range lanes {
		claim := &claims[lane]
		providers[n], servers[n], fallbacks[n] = claim.Provider, claim.Server, claim.Fallback
		limits[n], times[n], intents[n] = claim.Limit, timeOf(claim.After), claim.After.IntentID
	}
	if probeFor > 0 {
		statement = probeSQL
	}
	batch.Queue(statement, worker, providers, limits, times, intents, servers, fallbacks, probeFor.Seconds()).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, newClaimedScan(time.Now()).row)
		if err != nil {
			return fmt.Errorf("claimed row: %w", err)
		}
		slices.SortFunc(found, func(a, b claimedRow) int { return a.place.Compare(b.place) })
		took := time.Since(*before)
		for _, lane := range lanes {
			replies[lane] = drainer.ClaimReply{Took: took, Rows: make([]*drainer.Row, 0, min(claims[lane].Limit, len(found)))}
		}
		for _, row := range found {
			takeClaimed(&replies[lanes[row.lane-1]], row, probeFor > 0)
		}
		*before = time.Now()
		return nil
	})
}

// timeOf is before all others for the zero cursor.
func timeOf(cursor drainer.Cursor) pgtype.Timestamptz {
	at := pgtype.Timestamptz{Time: cursor.NextAttemptAt, Valid: true}
	if cursor.NextAttemptAt.IsZero() {
		at.InfinityModifier = pgtype.NegativeInfinity
	}
	return at
}

// claimedRow has its place in the queue, by which the next claim goes on.
type claimedRow struct {
	*drainer.Row

	lane  int // counted from one, of those that the statement claimed for
	place drainer.Cursor
}

// takeClaimed is told rows in the order in which they were due: sorting them here
// is cheaper than with their payloads in the database.
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
