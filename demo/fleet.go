package demo

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/internal/child"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

const (
	joinPoll = 20 * time.Millisecond
	logTail  = 2 << 10
)

// fleet holds the processes that run `drainer run`.
type fleet struct {
	program     string
	config      string
	logs        string // the folder of their logs
	environment []string

	all    []*drainer
	failed chan error // the first unexpected end of a drainer
}

// watch runs the story, and ends it early if a drainer ends unexpectedly.
func (f *fleet) watch(ctx context.Context, story func(context.Context) error) error {
	f.failed = make(chan error, 1)
	group, ctx := errgroup.WithContext(ctx)
	told := make(chan struct{})
	group.Go(func() error {
		defer close(told)
		return story(ctx)
	})
	group.Go(func() error {
		select {
		case err := <-f.failed:
			return err
		case <-told:
			return nil
		}
	})
	return group.Wait()
}

// start starts a drainer and returns once it has joined.
func (f *fleet) start(ctx context.Context, pool *pgxpool.Pool) (*drainer, error) {
	log, err := os.Create(filepath.Join(f.logs, fmt.Sprintf("drainer-%d.log", len(f.all)+1)))
	if err != nil {
		return nil, err
	}
	known, err := workers(ctx, pool, nil)
	if err != nil {
		return nil, err
	}
	command := exec.Command(f.program, "run", "--config", f.config)
	command.Env = append(os.Environ(), f.environment...)
	command.Stderr = log
	started, err := spawn(command, log, f.ended)
	if err != nil {
		return nil, fmt.Errorf("starting a drainer: %w", err)
	}
	f.all = append(f.all, started)
	started.worker, err = awaitJoin(ctx, pool, known)
	return started, err
}

func (f *fleet) ended(unasked error) {
	select {
	case f.failed <- unasked:
	default:
	}
}

// stop asks every drainer to shut down, and waits.
func (f *fleet) stop() error {
	var group errgroup.Group
	for _, drainer := range f.all {
		group.Go(drainer.stop)
	}
	return group.Wait()
}

func (f *fleet) kill() error {
	var problems []error
	for _, drainer := range f.all {
		problems = append(problems, drainer.kill())
	}
	return errors.Join(problems...)
}

// printLogs prints the end of each drainer's log.
func (f *fleet) printLogs(to io.Writer) {
	if to == nil {
		return
	}
	for _, drainer := range f.all {
		said, err := os.ReadFile(drainer.log.Name())
		if err != nil {
			continue
		}
		fmt.Fprintf(to, "--- the end of the log of drainer %d ---\n%s\n", drainer.process.Pid(), said[max(0, len(said)-logTail):])
	}
}

// awaitJoin returns the id of a worker that is not in known.
func awaitJoin(ctx context.Context, pool *pgxpool.Pool, known []string) (string, error) {
	poll := time.NewTicker(joinPoll)
	defer poll.Stop()
	for {
		joined, err := workers(ctx, pool, known)
		if err != nil {
			return "", err
		}
		if len(joined) > 0 {
			return joined[0], nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for a drainer to join: %w", ctx.Err())
		}
	}
}

// drainer is one process.
type drainer struct {
	worker  string // the id of its worker
	process *child.Process
	log     *os.File
	asked   atomic.Bool // to end: a kill or a stop was requested
}

// spawn starts a process, and calls unasked if it ends without a request.
func spawn(command *exec.Cmd, log *os.File, unasked func(error)) (*drainer, error) {
	process, err := child.Start(command, syscall.SIGKILL)
	if err != nil {
		_ = log.Close()
		return nil, err
	}
	d := &drainer{log: log, process: process}
	go func() {
		_ = process.Failure()
		_ = log.Close()
		if !d.asked.Load() {
			unasked(fmt.Errorf("drainer %d ended by itself: %s", process.Pid(), command.ProcessState))
		}
	}()
	return d, nil
}

func (d *drainer) freeze() error { return d.process.Signal(syscall.SIGSTOP) }
func (d *drainer) thaw() error   { return d.process.Signal(syscall.SIGCONT) }

// kill ends the process by SIGKILL.
func (d *drainer) kill() error {
	d.asked.Store(true)
	err := d.process.Signal(syscall.SIGKILL)
	<-d.process.Ended()
	return err
}

// stop shuts the process down, and returns an error if the exit code is not 0.
func (d *drainer) stop() error {
	if d.asked.Swap(true) {
		return nil
	}
	if err := d.process.End(syscall.SIGTERM, stopTimeout); err != nil {
		return err
	}
	if err := d.process.Failure(); err != nil {
		return fmt.Errorf("drainer %d did not shut down well: %w", d.process.Pid(), err)
	}
	return nil
}

const (
	agentCount = 8
	// commitTime is how long the agents take to commit all their intents, so that drainers work at the same time.
	commitTime = 4 * time.Second
)

// agents decide on steps, and commit each step with its intent.
type agents struct {
	pool      *pgxpool.Pool
	intents   int
	seed      uint64
	rollbacks atomic.Int64
}

func newAgents(pool *pgxpool.Pool, options Options) *agents {
	return &agents{pool: pool, intents: options.Intents, seed: options.Seed}
}

// work returns when every intent is committed.
func (a *agents) work(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for number := range agentCount {
		group.Go(func() error { return a.workAs(ctx, number) })
	}
	return group.Wait()
}

// workAs plays one agent. Its number determines which steps it takes.
func (a *agents) workAs(ctx context.Context, number int) error {
	luck := rand.New(rand.NewPCG(a.seed, uint64(number)))
	pause := commitTime * agentCount / time.Duration(a.intents)
	for n := number; n < a.intents; n += agentCount {
		if err := a.take(ctx, stepNumber(n), luck.Float64()); err != nil {
			return fmt.Errorf("an agent cannot commit: %w", err)
		}
		if err := think(ctx, time.Duration(luck.Float64()*float64(2*pause))); err != nil {
			return err
		}
	}
	return nil
}

func think(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take commits a step. The luck, from 0 to 1, determines which failure happens on the agent's side.
func (a *agents) take(ctx context.Context, s step, luck float64) error {
	switch {
	case luck < 0.05: // rolls back, and then takes the step after all
		return errors.Join(a.abandon(ctx, s, pgx.Tx.Rollback), a.commit(ctx, s))
	case luck < 0.10: // dies before its commit; its successor takes the step again
		return errors.Join(a.abandon(ctx, s, cutConnection), a.commit(ctx, s))
	case luck < 0.20: // dies after its commit; its successor repeats the step
		return errors.Join(a.commit(ctx, s), a.commit(ctx, s))
	case luck < 0.25: // seemed dead, so that two processes take the step
		return a.commitTwice(ctx, s)
	default:
		return a.commit(ctx, s)
	}
}

func (a *agents) commitTwice(ctx context.Context, s step) error {
	var twins errgroup.Group
	for range 2 {
		twins.Go(func() error { return a.commit(ctx, s) })
	}
	return twins.Wait()
}

func (a *agents) commit(ctx context.Context, s step) error {
	return pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error { return s.write(ctx, tx) })
}

// abandon writes the step, and then ends the transaction without a commit.
func (a *agents) abandon(ctx context.Context, s step, end func(pgx.Tx, context.Context) error) error {
	tx, err := a.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // returns the connection to the pool, even a broken one
	if err := s.write(ctx, tx); err != nil {
		return err
	}
	a.rollbacks.Add(1)
	return end(tx, ctx)
}

// cutConnection closes the connection as if the process had died.
func cutConnection(tx pgx.Tx, _ context.Context) error { return tx.Conn().PgConn().Conn().Close() }

// agentState creates the agents' own table. Each row is committed in one transaction with its intent.
const agentState = `CREATE TABLE agent_state (
	agent_run_id text, step_id text, decided text NOT NULL, PRIMARY KEY (agent_run_id, step_id))`

// database is a migrated database that is removed when it is closed.
type database struct {
	url  string
	pool *pgxpool.Pool
	drop func() error // drops the database, or stops its throwaway server
}

// openDatabase returns a new migrated database: on the server at serverURL, or on a throwaway server if that is
// empty.
func openDatabase(ctx context.Context, serverURL string) (*database, error) {
	d := &database{}
	var err error
	if serverURL == "" {
		err = d.startServer(ctx)
	} else {
		err = d.create(ctx, serverURL)
	}
	if err == nil {
		err = d.prepare(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *database) startServer(ctx context.Context) error {
	server, err := throwaway.Start(ctx)
	if err != nil {
		return fmt.Errorf("%w\nor name a server that runs: drainer demo --database-url URL", err)
	}
	d.url, d.drop = server.URL, server.Stop
	return nil
}

func (d *database) create(ctx context.Context, serverURL string) error {
	name := "drainer_demo_" + strings.ToLower(cryptorand.Text()[:10])
	if err := execOnce(ctx, serverURL, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("creating the demo's own database: %w", err)
	}
	d.url = withDatabase(serverURL, name)
	d.drop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := execOnce(ctx, serverURL, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			return fmt.Errorf("dropping database %s: %w", name, err)
		}
		return nil
	}
	return nil
}

func (d *database) prepare(ctx context.Context) error {
	if _, err := migrations.Up(ctx, d.url); err != nil {
		return err
	}
	var err error
	if d.pool, err = pgxpool.New(ctx, d.url); err != nil {
		return fmt.Errorf("connecting to the demo's database: %w", err)
	}
	return nil
}

func (d *database) close() error {
	if d.pool != nil {
		d.pool.Close()
	}
	if d.drop == nil {
		return nil
	}
	return d.drop()
}

func execOnce(ctx context.Context, databaseURL, sql string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

// withDatabase returns a URL, or a keyword string, that names another database.
func withDatabase(server, name string) string {
	parsed, err := url.Parse(server)
	if err != nil || !strings.HasPrefix(parsed.Scheme, "postgres") {
		return server + " dbname=" + name
	}
	parsed.Path = "/" + name
	return parsed.String()
}
