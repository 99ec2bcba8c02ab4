package postgres

import (
	_ "embed"
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

// queueClaim makes the claims with these indices with one statement. It takes the
// time since the one before it.
func queueClaim(batch *pgx.Batch, worker string, claims []drainer.Claim, lanes []int, replies []drainer.ClaimReply, before *time.Time) {
	statement, probeFor := claimSQL, claims[lanes[0]].ProbeFor
	if probeFor > 0 {
		statement = probeSQL
	}
	c := newClaimColumns(claims, lanes)
	batch.Queue(statement, worker, c.providers, c.limits, c.times, c.intents, c.servers, c.fallbacks, probeFor.Seconds()).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, newClaimedScan(time.Now()).row)
		if err != nil {
			return fmt.Errorf("claimed row: %w", err)
		}
		took := time.Since(*before)
		for _, lane := range lanes {
			replies[lane] = drainer.ClaimReply{Took: took, Rows: make([]*drainer.Row, 0, min(claims[lane].Limit, len(found)))}
		}
		for _, row := range inOrder(found) {
			takeClaimed(&replies[lanes[row.lane-1]], row, probeFor > 0)
		}
		*before = time.Now()
		return nil
	})
}

// claimColumns are claims turned on their side: one array a column of claim.sql.
type claimColumns struct {
	providers, servers, fallbacks []string
	limits                        []int
	times                         []pgtype.Timestamptz
	intents                       []int64
}

func newClaimColumns(claims []drainer.Claim, lanes []int) (c claimColumns) {
	for _, lane := range lanes {
		claim := &claims[lane]
		c.providers = append(c.providers, claim.Provider)
		c.servers = append(c.servers, claim.Server)
		c.fallbacks = append(c.fallbacks, claim.Fallback)
		c.limits = append(c.limits, claim.Limit)
		c.times = append(c.times, timeOf(claim.After))
		c.intents = append(c.intents, claim.After.IntentID)
	}
	return c
}

// timeOf is before all others for the zero cursor.
func timeOf(cursor drainer.Cursor) pgtype.Timestamptz {
	at := pgtype.Timestamptz{Time: cursor.NextAttemptAt, Valid: true}
	if cursor.NextAttemptAt.IsZero() {
		at.InfinityModifier = pgtype.NegativeInfinity
	}
	return at
}
