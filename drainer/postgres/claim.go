package postgres

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/agentoutbox/drainer/drainer"
)

//go:embed sql/claim.sql
var claimSQL string

// queueClaims lets one statement claim for many lanes: it has a price of its own,
// about that of fifteen rows.
func queueClaims(batch *pgx.Batch, worker string, claims []drainer.Claim, replies []drainer.ClaimReply) {
	for _, lanes := range together(claims) {
		queueClaim(batch, worker, claims, lanes, replies)
	}
}

// together groups claims by their indices: those that one statement can make. It
// would take a row twice for two lanes of one provider, and a probe goes alone.
func together(claims []drainer.Claim) [][]int {
	var groups [][]int
	for i, claim := range claims {
		if claim.Limit == 0 {
			continue
		}
		joins := func(group []int) bool {
			return !slices.ContainsFunc(group, func(other int) bool {
				return claims[other].Provider == claim.Provider || claims[other].ProbeFor > 0 || claim.ProbeFor > 0
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

func queueClaim(batch *pgx.Batch, worker string, claims []drainer.Claim, lanes []int, replies []drainer.ClaimReply) {
	var (
		providers = make([]string, len(lanes))
		limits    = make([]int, len(lanes))
		times     = make([]pgtype.Timestamptz, len(lanes))
		intents   = make([]int64, len(lanes))
		servers   = make([]string, len(lanes))
		fallbacks = make([]string, len(lanes))
		probeFor  time.Duration
	)
	for n, lane := range lanes {
		claim := &claims[lane]
		providers[n], limits[n], servers[n], fallbacks[n] = claim.Provider, claim.Limit, claim.Server, claim.Fallback
		times[n], intents[n] = timeOf(claim.After), claim.After.IntentID
		probeFor = claim.ProbeFor // of one alone
	}
	batch.Queue(claimSQL, worker, providers, limits, times, intents, servers, fallbacks, probeFor.Seconds()).Query(func(rows pgx.Rows) error {
		at := time.Now()
		found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (claimedRow, error) { return scanClaimed(row, at) })
		if err != nil {
			return fmt.Errorf("claimed row: %w", err)
		}
		for _, row := range inOrder(found) {
			takeClaimed(&replies[lanes[row.lane-1]], row, probeFor > 0)
		}
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

func scanClaimed(rows pgx.CollectableRow, at time.Time) (claimedRow, error) {
	row := &drainer.Row{ClaimedAt: at}
	var now, enqueued, due time.Time
	var payload, headers []byte
	var reference *string
	var lane int
	err := rows.Scan(&lane, &row.ClaimID, &row.IntentID, &row.Attempt, &row.Tries, &row.FirstAttemptAt, &now, &enqueued, &due,
		&row.MaybeApplied, &row.Lookup, &row.Closed, &row.InSaga, &row.Via, &row.Undoes,
		&row.Tuple.AgentRunID, &row.Tuple.StepID, &row.Tuple.ToolName, &row.Tuple.BusinessScope,
		&payload, &headers, &reference)
	if reference != nil {
		row.ProviderRef = *reference
	}
	if row.FirstAttemptAt != nil {
		row.SinceFirstSend = now.Sub(*row.FirstAttemptAt)
	}
	row.SinceEnqueue, row.SinceDue = now.Sub(enqueued), now.Sub(due)
	row.Payload = payload
	row.Headers = textValues(headers)
	return claimedRow{row, lane, drainer.Cursor{NextAttemptAt: due, IntentID: row.IntentID}}, err
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
