package postgres

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/agentoutbox/drainer/drainer"
)

//go:embed sql/claim.sql
var claimTemplate string

type claimVariant struct{ Probe, Operation bool }

var (
	claimSQL          = rendered(claimTemplate, claimVariant{})
	probeSQL          = rendered(claimTemplate, claimVariant{Probe: true})
	probeOperationSQL = rendered(claimTemplate, claimVariant{Probe: true, Operation: true})
)

// queueClaims lets one statement claim for several lanes, since each further statement costs as much as claiming
// about eleven rows. The wait for a connection is no part of a claim's time: begun is set after it.
func queueClaims(batch *pgx.Batch, worker string, known known, claims []drainer.Claim, replies []drainer.ClaimReply, begun *time.Time) {
	for _, lanes := range together(claims) {
		queueClaim(batch, worker, known, claims, lanes, replies, begun)
	}
}

// together groups the indices of claims that one statement can make. Two claims for one provider in the same
// statement would take a row twice. A probe gets a statement of its own, and so does a full scan, whose
// time is measured and may be long.
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
	return claim.ProbeFor > 0 || claim.Rescans || len(claim.Parts) == 0
}

// queueClaim makes the claims with these indices with one statement, and measures the time since the statement
// before it.
func queueClaim(batch *pgx.Batch, worker string, known known, claims []drainer.Claim, lanes []int, replies []drainer.ClaimReply, before *time.Time) {
	c, first := newClaimColumns(claims, lanes), claims[lanes[0]]
	statement, probes := claimSQL, ""
	switch {
	case first.Operation != "":
		statement, probes = probeOperationSQL, first.Server+"/"+first.Operation
		c.providers, c.servers = []string{probes}, []string{probes}
	case first.ProbeFor > 0:
		statement, probes = probeSQL, first.Server
	}
	batch.Queue(statement, worker, c.providers, c.limits, c.servers, c.fallbacks, first.ProbeFor.Seconds(), c.bytes,
		c.lanes, c.firsts, c.lasts, c.rooms, c.times, c.intents, c.once, known.History, known.LSN, c.ahead, c.crowd,
		c.endTimes, c.endIntents, c.more).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, newClaimedScan(time.Now()).row)
		if err != nil {
			return fmt.Errorf("claimed row: %w", err)
		}
		took := time.Since(*before)
		for _, lane := range lanes {
			replies[lane] = drainer.ClaimReply{Took: took, Rows: make([]*drainer.Row, 0, min(claims[lane].Limit, len(found)))}
		}
		for _, row := range inOrder(found) {
			lane := lanes[row.lane-1]
			takeClaimed(&replies[lane], claims[lane].Parts, row, probes)
		}
		*before = time.Now()
		return nil
	})
}

// queueHeld looks for due rows that a tenant's limit in flight kept from the claims. It comes after the claims,
// when such rows are still queued. It reads dead index entries like a full claim does, so it is made only beside a
// full claim.
func queueHeld(batch *pgx.Batch, claims []drainer.Claim, replies []drainer.ClaimReply) {
	for i, claim := range claims {
		if claim.LooksLast && !claim.IsSearch && claim.IsFull() && claim.Limit > 0 && claim.Server == claim.Provider {
			batch.Queue(heldSQL, claim.Provider).QueryRow(func(row pgx.Row) error { return row.Scan(&replies[i].Held) })
		}
	}
}

// claimColumns holds claims and their parts by column: one array for each column of claim.sql.
type claimColumns struct {
	providers, servers, fallbacks []string
	limits                        []int
	once                          []bool
	bytes                         []int64

	lanes         []int // the lane of each part, counted from one
	firsts, lasts []int16
	rooms         []int
	times         []pgtype.Timestamptz
	intents       []int64
	ahead         []int
	endTimes      []pgtype.Timestamptz
	endIntents    []int64
	more          []bool // whether the part before it belongs to the same tenant

	crowd []string // the runs that looks ahead skip, of all lanes
}

func newClaimColumns(claims []drainer.Claim, lanes []int) (c claimColumns) {
	c.crowd = []string{} // empty instead of null
	for i, lane := range lanes {
		claim := &claims[lane]
		c.providers = append(c.providers, claim.Provider)
		c.servers = append(c.servers, claim.Server)
		c.fallbacks = append(c.fallbacks, claim.Fallback)
		c.limits = append(c.limits, claim.Limit)
		c.bytes = append(c.bytes, cmp.Or(int64(claim.Bytes), math.MaxInt64))
		c.once = append(c.once, claim.ActsOnce)
		parts := claim.Parts
		if len(parts) == 0 {
			parts = []drainer.Part{{Last: drainer.LastTenant, Limit: claim.Limit}}
		}
		for n, part := range parts {
			c.lanes = append(c.lanes, i+1)
			c.firsts, c.lasts = append(c.firsts, part.First), append(c.lasts, part.Last)
			c.rooms = append(c.rooms, part.Limit)
			c.times = append(c.times, timeOf(part.After))
			c.intents = append(c.intents, part.After.IntentID)
			c.ahead, c.crowd = append(c.ahead, part.Ahead), append(c.crowd, part.Crowd...)
			end := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
			if !part.Before.IsZero() {
				end = timeOf(part.Before)
			}
			c.endTimes, c.endIntents = append(c.endTimes, end), append(c.endIntents, cmp.Or(part.Before.IntentID, math.MaxInt64))
			c.more = append(c.more, n > 0 && parts[n-1].First == part.First)
		}
	}
	return c
}

// timeOf returns -infinity for the zero cursor.
func timeOf(cursor drainer.Cursor) pgtype.Timestamptz {
	at := pgtype.Timestamptz{Time: cursor.NextAttemptAt, Valid: true}
	if cursor.NextAttemptAt.IsZero() {
		at.InfinityModifier = pgtype.NegativeInfinity
	}
	return at
}

// columnBytes is how many bytes claim.sql counts for the columns that are never large.
const columnBytes = 512

// claimedRow is a row with its place in the queue, from which the next claim goes on.
type claimedRow struct {
	*drainer.Row

	lane  int // counted from one, among the lanes of the statement
	bytes int // as the statement counts them
	place drainer.Cursor
}

// inOrder sorts rows by the order in which they were due. Sorting here is cheaper than sorting rows with their
// payloads in the database.
func inOrder(found []claimedRow) []claimedRow {
	slices.SortFunc(found, func(a, b claimedRow) int { return a.place.Compare(b.place) })
	return found
}

func takeClaimed(reply *drainer.ClaimReply, parts []drainer.Part, row claimedRow, probes string) {
	reply.Found++
	reply.Bytes += row.bytes
	for i := range parts { // of several parts for one tenant, the row belongs to the one that begins nearest before it
		took := &parts[row.Part]
		if parts[i].Has(row.Tenant) && parts[i].After.Compare(row.place) < 0 &&
			(!took.Has(row.Tenant) || took.After.Compare(row.place) >= 0 || took.After.Compare(parts[i].After) < 0) {
			row.Part = i
		}
	}
	limited := row.Weight < 0
	row.Weight = max(row.Weight, -row.Weight)
	at := slices.IndexFunc(reply.Of, func(t drainer.Taken) bool { return t.Tenant == row.Tenant && t.Part == row.Part })
	if at < 0 {
		at = len(reply.Of)
		reply.Of = append(reply.Of, drainer.Taken{Part: row.Part, Tenant: row.Tenant, Weight: row.Weight, Limited: limited})
	}
	reply.Of[at].Found++
	reply.Of[at].Next = row.place
	if row.ClaimID == 0 { // not claimed but stopped, since its run is closed
		return
	}
	row.Probe = probes
	reply.Rows = append(reply.Rows, row.Row)
}

// claimedScan is the target of all rows of one claim, since each target of a scan is allocated on the heap.
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
		&s.payload, &s.headers, &s.reference, &row.Key.Namespace, &row.Key.Generation, &row.OlderDoubt,
		&row.Tenant, &row.Weight,
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
	return claimedRow{&row, s.lane, columnBytes + len(s.payload) + len(s.headers), drainer.Cursor{NextAttemptAt: s.due, IntentID: row.IntentID}}, err
}

// textValues keeps the headers that are strings. An agent's mistake in its headers does not stop its
// intent.
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

//go:embed sql/due.sql
var dueSQL string

// Due counts, by provider, the due rows that no worker may claim at present, up to [drainer.DueLimit] for each
// provider.
func (s *Store) Due(ctx context.Context, shut, actsOnce []string) (map[string]int, error) {
	rows, _ := s.control.Query(ctx, dueSQL, shut, actsOnce, drainer.DueLimit) // ForEachRow returns the error too
	due := map[string]int{}
	var provider string
	var count int
	if _, err := pgx.ForEachRow(rows, []any{&provider, &count}, func() error {
		due[provider] = count
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count due rows: %w", err)
	}
	return due, nil
}
