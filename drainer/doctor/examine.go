package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

const (
	connectTimeout = 5 * time.Second
	atOnce         = 4 // checks of the database, with a connection each
)

// examination is a patient on the table. Its pool speaks to the database in a
// way that every pooler understands, whatever the daemon's URL says.
type examination struct {
	Patient
	pool *pgxpool.Pool
}

// check looks at one thing. An error means that it could not.
type check struct {
	name string
	look func(context.Context, *examination) ([]Finding, error)
}

// Examine looks at everything that it can reach. The error is that of
// connecting to the database; the findings tell of it, too.
func Examine(ctx context.Context, patient Patient) ([]Finding, error) {
	patient.Limits = patient.Limits.orUsual()
	fill(&patient.Lease, usualLease)
	if patient.Now == nil {
		patient.Now = time.Now
	}
	var group errgroup.Group
	var outside []Finding
	group.Go(func() error {
		outside = reachProviders(ctx, patient)
		return nil
	})
	inside, err := examineDatabase(ctx, patient)
	_ = group.Wait()
	return append(inside, outside...), err
}

func examineDatabase(ctx context.Context, patient Patient) ([]Finding, error) {
	x := &examination{Patient: patient}
	connected, err := x.connect(ctx)
	findings := name("connection", connected)
	if err != nil {
		for _, c := range checks() {
			findings = append(findings, name(c.name, []Finding{notChecked("", "there is no connection")})...)
		}
		return findings, err
	}
	defer x.pool.Close()
	return append(findings, x.run(ctx, checks())...), nil
}

// checks are in the order in which they are reported: what explains others
// comes first.
func checks() []check {
	return []check{
		{"tls", lookAtTLS},
		{"server", lookAtServer},
		{"round trip", lookAtRoundTrip},
		{"clock", lookAtClock},
		{"writable", lookWhetherWritable},
		{"durability", lookAtDurability},
		{"session limits", lookAtSessionLimits},
		{"room", lookAtRoom},
		{"pooler", lookAtPooler},
		{"notifications", lookAtNotifications},
		{SchemaCheck, lookAtSchema},
		{"ownership", lookAtOwnership},
		{"daemon's grants", lookAtDaemonGrants},
		{"agents' grants", lookAtAgentGrants},
		{"pinned xmin", lookAtPinnedXmin},
		{"dead tuples", lookAtDeadTuples},
		{"autovacuum", lookAtAutovacuum},
		{"workers", lookAtWorkers},
		{"claims", lookAtClaims},
		{"unconfigured", lookForUnconfigured},
		{"providers' gates", lookAtGates},
		{"incidents", lookAtIncidents},
		{"sagas", lookAtSagas},
	}
}

func (x *examination) run(ctx context.Context, all []check) (findings []Finding) {
	results := make([][]Finding, len(all))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, c := range all {
		group.Go(func() error {
			results[i] = name(c.name, x.bounded(ctx, c))
			return nil
		})
	}
	_ = group.Wait()
	for _, found := range results {
		findings = append(findings, found...)
	}
	return findings
}

func (x *examination) bounded(ctx context.Context, c check) []Finding {
	ctx, cancel := context.WithTimeout(ctx, x.Limits.Check)
	defer cancel()
	found, err := c.look(ctx, x)
	if err != nil {
		return append(found, unable(ctx, err))
	}
	return found
}

// unable explains a check that failed. What Postgres says of the doctor's own
// statements names tables and no data.
func unable(ctx context.Context, err error) Finding {
	var refusal *pgconn.PgError
	switch {
	case ctx.Err() != nil:
		return notChecked("run it again; if it stays so, the server is overloaded or a lock is held", "it took too long")
	case errors.As(err, &refusal) && refusal.Code == insufficientPrivilege:
		return notChecked("see the daemon's grants", "%s", refusal.Message)
	case errors.As(err, &refusal) && (refusal.Code == undefinedTable || refusal.Code == undefinedFunction || refusal.Code == undefinedColumn):
		return notChecked("see schema", "%s", refusal.Message)
	case errors.As(err, &refusal):
		return notChecked("", "%s (%s)", refusal.Message, refusal.Code)
	}
	return notChecked("run it again", "the connection was lost")
}

// SQLSTATE codes, PostgreSQL documentation, appendix A.
const (
	insufficientPrivilege = "42501"
	undefinedTable        = "42P01"
	undefinedFunction     = "42883"
	undefinedColumn       = "42703"
)

func name(check string, findings []Finding) []Finding {
	for i := range findings {
		findings[i].Check = check
	}
	return findings
}

// read collects the rows of a statement.
func read[T any](ctx context.Context, x *examination, sql string, args ...any) ([]T, error) {
	rows, _ := x.pool.Query(ctx, sql, args...) // CollectRows returns the error too
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// readOne reads a statement's only row.
func readOne[T any](ctx context.Context, x *examination, sql string, args ...any) (T, error) {
	rows, _ := x.pool.Query(ctx, sql, args...)
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
}
