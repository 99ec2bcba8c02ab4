// Package doctor examines an installation: the database that the daemon
// would use, the contents of the outbox, and the connection to each provider. It says
// which problems there are and what to do about them, and changes nothing.
//
//	Patient ──Examine──▶ check, check, check … ──▶ Findings, each with its cure
//
// Checks run at the same time, each with a timeout of its own. A check that fails is a
// finding too, and the others still run. No finding shows a payload, a
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

// These are the verdicts. A warning can wait until the morning, but a problem cannot.
const (
	OK         Verdict = "ok"
	Warning    Verdict = "warning"
	Problem    Verdict = "problem"
	NotChecked Verdict = "not_checked"
)

// Finding is one result of a check.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Seen    string  `json:"seen"`           // the facts, or why there was no check
	Cure    string  `json:"cure,omitempty"` // the remedy: an instruction or a command
}

// Count returns how many findings have a verdict.
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
	atOnce         = 4 // how many checks of the database run at once, with a connection each
)

// examination is an examination of a patient. Independently of the daemon's URL, its pool uses a query mode
// that works with each pooler.
type examination struct {
	Patient
	pool *pgxpool.Pool
}

// look returns the findings of a check. An error means that the check was not possible.
type look func(context.Context, *examination) ([]Finding, error)

// check is one check. Its look makes the findings, with verdict and cure.
type check struct {
	name string
	well string // reported as OK if the look returns no finding; empty if it always returns one
	look look
}

// each returns a look that runs one statement and calls judge for each of its rows. args make the arguments.
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

// checks returns the checks in the order of the report: a check that can explain others
// comes first.
func checks() []check {
	return slices.Concat(serverChecks, schemaChecks, tableChecks, outboxChecks)
}

// Examine makes all checks that are possible. It returns an error only if it cannot connect to the database. That error
// is also one of the findings.
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

// sideBySide looks at all items, and at up to most of them at the same time. It returns the findings in the order of the
// items.
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

// unable explains a check that failed. It may repeat the messages of Postgres, since the doctor's own statements
// contain names of tables but no data.
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

// These are SQLSTATE codes: PostgreSQL documentation, appendix A.
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

// read returns the rows of a statement.
func read[T any](ctx context.Context, x *examination, sql string, args ...any) ([]T, error) {
	rows, _ := x.pool.Query(ctx, sql, args...) // CollectRows returns the error too
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// Patient is the installation that is examined.
type Patient struct {
	Database *pgxpool.Config // as the daemon connects, and with its role; nil: the database is not examined

	WithoutDatabase string // why Database is nil
	NoLogin         error  // why no login to the database is possible: a file or a command gives no password

	Bystander bool                // Database has another login than the daemon, so the role of daemons is judged instead
	Lease     time.Duration       // a worker without a heartbeat for this long is dead; 0: the usual lease
	Providers []dispatch.Provider // nil: there is no configuration, and only the database is examined
	Offline   bool                // make no connection to providers; an adapter may be nil
	Unread    map[string][]string // by provider: references to secrets that were not read
	Now       func() time.Time    // this machine's clock; nil: time.Now
	Limits    Limits
}

// Limits are the thresholds of warnings and timeouts. 0 means the usual value.
type Limits struct {
	Check      time.Duration // timeout of a check
	Pinned     time.Duration // how long a snapshot may be held, since it keeps dead rows from being removed
	DeadTuples int64         // how many dead rows a hot table may have
	NotifyFull float64       // which part of the queue of notifications may be in use, from 0 to 1
}

const (
	usualLease = 15 * time.Second
	sagaAge    = time.Hour       // a saga that has been begun for longer is stuck
	jobAge     = time.Minute     // if a job has been due for longer, no drainer works it
	notifyTime = 2 * time.Second // a notification that has not arrived by then is lost
)

func (l Limits) orUsual() Limits {
	return Limits{
		Check:      cmp.Or(l.Check, 10*time.Second),
		Pinned:     cmp.Or(l.Pinned, time.Minute),
		DeadTuples: cmp.Or(l.DeadTuples, 100_000),
		NotifyFull: cmp.Or(l.NotifyFull, 0.1),
	}
}
