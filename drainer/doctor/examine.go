// Package doctor looks an installation over: the database that the daemon
// would use, what lies in the outbox, and the way to each provider. It says
// what is wrong and what to do about it, and changes nothing.
//
//	Patient ──Examine──▶ check, check, check … ──▶ Findings, each with its cure
//
// Checks run side by side, each within a time of its own; one that fails is a
// finding too, and keeps no other from running. No finding shows a payload, a
// run, a key or a password.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/dispatch"
)

// Verdict is the judgement of a check.
type Verdict string

// The verdicts. A warning can wait until the morning; a problem cannot.
const (
	OK         Verdict = "ok"
	Warning    Verdict = "warning"
	Problem    Verdict = "problem"
	NotChecked Verdict = "not_checked"
)

// Finding is one thing that was looked at.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Seen    string  `json:"seen"`           // or why it was not checked
	Cure    string  `json:"cure,omitempty"` // what to do or to type
}

// Count says how many findings have a verdict.
func Count(findings []Finding, verdict Verdict) (n int) {
	for _, finding := range findings {
		if finding.Verdict == verdict {
			n++
		}
	}
	return n
}

func ok(format string, args ...any) Finding {
	return Finding{Verdict: OK, Seen: fmt.Sprintf(format, args...)}
}

func warning(cure, format string, args ...any) Finding {
	return Finding{Verdict: Warning, Seen: fmt.Sprintf(format, args...), Cure: cure}
}

func problem(cure, format string, args ...any) Finding {
	return Finding{Verdict: Problem, Seen: fmt.Sprintf(format, args...), Cure: cure}
}

func notChecked(cure, format string, args ...any) Finding {
	return Finding{Verdict: NotChecked, Seen: fmt.Sprintf(format, args...), Cure: cure}
}

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

// look returns its findings. An error means that it could not look.
type look func(context.Context, *examination) ([]Finding, error)

// check is a row of the tables: its name, how it looks, and what it reports
// where it finds nothing. Verdict and cure are made where the look judges.
type check struct {
	name string
	well string // empty where the look always finds something
	look look
}

// each makes a look of one statement. judge sees each of its rows.
func each[T any](sql string, judge func(*examination, T) []Finding, args ...func(*examination) any) look {
	return func(ctx context.Context, x *examination) (found []Finding, err error) {
		values := make([]any, len(args))
		for i, arg := range args {
			values[i] = arg(x)
		}
		rows, err := read[T](ctx, x, sql, values...)
		for _, row := range rows {
			found = append(found, judge(x, row)...)
		}
		return found, err
	}
}

// checks are in the order in which they are reported: what explains others
// comes first.
func checks() []check {
	return slices.Concat(serverChecks, schemaChecks, tableChecks, outboxChecks)
}

// Examine looks at everything that it can reach. The error is that of
// connecting to the database; it is among the findings, too.
func Examine(ctx context.Context, patient Patient) ([]Finding, error) {
	patient.Limits = patient.Limits.orUsual()
	patient.Lease = cmp.Or(patient.Lease, usualLease)
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
	var connected []Finding
	var err error
	switch {
	case patient.NoLogin != nil:
		err = patient.NoLogin
		connected = []Finding{problem("correct what names the login: database in the configuration, --database-url or DATABASE_URL; run the password_command by hand, as the daemon's user", "%s", err)}
	case patient.Database == nil:
		connected = []Finding{notChecked("say --database-url URL", "%s", patient.WithoutDatabase)}
	default:
		connected, err = x.connect(ctx)
	}
	findings := name("connection", connected)
	if x.pool == nil {
		for _, c := range checks() {
			findings = append(findings, name(c.name, []Finding{notChecked("", "there is no connection")})...)
		}
		return findings, err
	}
	defer x.pool.Close()
	return append(findings, sideBySide(checks(), atOnce, func(c check) []Finding { return name(c.name, x.bounded(ctx, c)) })...), nil
}

// sideBySide looks at so many at once, and reports in their order.
func sideBySide[T any](all []T, most int, look func(T) []Finding) []Finding {
	results := make([][]Finding, len(all))
	var group errgroup.Group
	group.SetLimit(most)
	for i, one := range all {
		group.Go(func() error {
			results[i] = look(one)
			return nil
		})
	}
	_ = group.Wait()
	return slices.Concat(results...)
}

func (x *examination) bounded(ctx context.Context, c check) []Finding {
	ctx, cancel := context.WithTimeout(ctx, x.Limits.Check)
	defer cancel()
	found, err := c.look(ctx, x)
	switch {
	case err != nil:
		return append(found, unable(ctx, err))
	case len(found) == 0:
		return []Finding{ok("%s", c.well)}
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

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// Patient is the installation that is examined.
type Patient struct {
	Database *pgxpool.Config // as the daemon connects; in particular, as the same role; nil: it is not looked at

	WithoutDatabase string // why there is no Database
	NoLogin         error  // why nothing can log in to it: a file or a command gives no password

	Bystander bool                // Database is another login than the daemon's: the role of daemons is judged in its place
	Lease     time.Duration       // a worker without a heartbeat for this long is dead; 0: the usual
	Providers []dispatch.Provider // nil: there is no configuration, and only the database is looked at
	Offline   bool                // no provider is gone to; an adapter may be nil
	Unread    map[string][]string // by provider: references to secrets that were not read
	Now       func() time.Time    // this machine's clock; nil: the real one
	Limits    Limits
}

// Limits are how much is too much. A field that is 0 stands for the usual.
type Limits struct {
	Check      time.Duration // a check may take this long
	Pinned     time.Duration // a snapshot that is held longer than this keeps dead rows from being removed
	DeadTuples int64         // in one hot table
	NotifyFull float64       // how much of the queue of notifications may be in use
}

const (
	usualLease = 15 * time.Second
	sagaAge    = time.Hour       // a saga that is under way longer than this is stuck
	jobAge     = time.Minute     // a job that has been due longer than this is worked by no drainer
	notifyTime = 2 * time.Second // a notification that takes longer than this does not come
)

func (l Limits) orUsual() Limits {
	return Limits{
		Check:      cmp.Or(l.Check, 10*time.Second),
		Pinned:     cmp.Or(l.Pinned, time.Minute),
		DeadTuples: cmp.Or(l.DeadTuples, 100_000),
		NotifyFull: cmp.Or(l.NotifyFull, 0.1),
	}
}
