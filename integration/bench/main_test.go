// Package bench_test measures the drainer as it is deployed: the program in its own process, with its metrics, its
// log and a durable Postgres.
//
// Most goals are ratios. The two contenders take turns on the same machine, each round has its ratio, and the median
// of the ratios counts. It is reported with its interval. The median rates are reported too, but they depend on the
// machine. WAL, pick-up, status and memory are measured without another contender.
package bench_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/child"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// roleVariable names the role of a process of this binary.
const roleVariable = "BENCH_ROLE"

// roles are the programs that this binary can run when it starts itself again.
var roles = map[string]func() int{
	"drainer":  drainerMain,
	"river":    riverMain,
	"provider": providerMain,
}

func TestMain(m *testing.M) {
	if role, is := roles[os.Getenv(roleVariable)]; is {
		os.Exit(role())
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		shared.stop()
		os.Exit(1)
	}()
	code := m.Run()
	shared.stop()
	os.Exit(code)
}

// serverVariable names the variable with the URL of your own server to measure on.
const serverVariable = "BENCH_DATABASE_URL"

// settings are the server's settings for all contenders. The server is durable, has room for the measured data, and
// starts no checkpoint of its own during a round, because a checkpoint would slow down one contender by chance.
var settings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "2GB", "max_wal_size": "32GB", "checkpoint_timeout": "1h",
	"max_connections": "200",
}

// shared is the server of this run.
var shared server

type server struct {
	once      sync.Once
	url       string
	err       error
	throwaway *throwaway.Server // nil where the server is yours
}

func (s *server) start() (string, error) {
	s.once.Do(func() {
		if s.url = os.Getenv(serverVariable); s.url != "" {
			return
		}
		if s.throwaway, s.err = throwaway.Start(context.Background(), throwaway.WithSettings(settings)); s.err == nil {
			s.url = s.throwaway.URL
		}
	})
	return s.url, s.err
}

func (s *server) stop() {
	if s.throwaway == nil {
		return
	}
	if err := s.throwaway.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping Postgres:", err)
	}
}

// database is the database of one contender for one round.
type database struct {
	*pgxpool.Pool

	b    testing.TB
	url  string
	name string
}

// newDatabase returns an empty database, which the caller drops.
func newDatabase(b testing.TB) *database {
	b.Helper()
	serverURL, err := shared.start()
	if err != nil {
		b.Fatal(err)
	}
	d := &database{b: b, name: "drainerbench_" + strings.ToLower(rand.Text())}
	if err := onServer("CREATE DATABASE " + d.name); err != nil {
		b.Fatal(err)
	}
	u, err := url.Parse(serverURL)
	if err != nil {
		b.Fatal(errors.New(serverVariable + " is not a URL"))
	}
	u.Path = "/" + d.name
	d.url = u.String()
	if d.Pool, err = pgxpool.New(context.Background(), d.url); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(d.drop)
	return d
}

// drop drops the database, so that vacuum has no work during the next round. Dropping it again does nothing.
func (d *database) drop() {
	d.b.Helper()
	d.Close()
	if err := onServer("DROP DATABASE IF EXISTS " + d.name + " WITH (FORCE)"); err != nil {
		d.b.Error(err)
	}
}

func onServer(sql string) error {
	conn, err := pgx.Connect(context.Background(), shared.url)
	if err != nil {
		return fmt.Errorf("connecting to the server: %w", err)
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), sql)
	return err
}

func (d *database) exec(sql string, arguments ...any) {
	d.b.Helper()
	drainertest.Exec(d.b, d, sql, arguments...)
}

// read returns one value.
func read[V any](d *database, sql string, arguments ...any) V {
	d.b.Helper()
	return drainertest.Value[V](d.b, d, sql, arguments...)
}

// walPosition returns the position in the log, in bytes.
func (d *database) walPosition() float64 {
	return read[float64](d, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`)
}

// newOutbox returns a new database with the drainer's schema.
func newOutbox(b testing.TB) *outbox {
	b.Helper()
	d := newDatabase(b)
	if _, err := migrations.Up(b.Context(), d.url); err != nil {
		b.Fatal(err)
	}
	return &outbox{d}
}

// setupVariable names the variable with the setup of a process, as JSON.
const setupVariable = "BENCH_SETUP"

// patience bounds every wait. It is far longer than a slow machine needs.
const patience = 20 * time.Minute

// process is a process of this binary in another role. Its output goes to a file, as in production a log collector
// writes it.
type process struct {
	b     testing.TB
	role  string
	child *child.Process
	log   string
}

// spawn starts a process that runs until end is called, or until the benchmark ends.
func spawn(b testing.TB, role string, setup any, arguments ...string) *process {
	b.Helper()
	encoded, err := json.Marshal(setup)
	if err != nil {
		b.Fatal(err)
	}
	log, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	command := exec.Command(os.Args[0], arguments...)
	command.Env = append(os.Environ(), roleVariable+"="+role, setupVariable+"="+string(encoded))
	command.Stdout, command.Stderr = log, log
	started, err := child.Start(command, syscall.SIGKILL)
	if err != nil {
		b.Fatalf("starting a %s: %v", role, err)
	}
	p := &process{b: b, role: role, child: started, log: log.Name()}
	b.Cleanup(p.kill)
	return p
}

// setupOf reads the setup that spawn passed to this process.
func setupOf[S any]() (setup S, err error) {
	err = json.Unmarshal([]byte(os.Getenv(setupVariable)), &setup)
	return setup, err
}

// awaitLog returns the match of the pattern's group, once the log has it.
func (p *process) awaitLog(pattern string) string {
	p.b.Helper()
	expression := regexp.MustCompile(pattern)
	var found [][]byte
	p.await("logs "+pattern, func() bool {
		log, err := os.ReadFile(p.log)
		if err != nil {
			p.b.Fatal(err)
		}
		found = expression.FindSubmatch(log)
		return found != nil
	})
	return string(found[len(found)-1])
}

// await returns once the condition holds, and fails if the process ends first.
func (p *process) await(what string, condition func() bool) {
	p.b.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-p.child.Ended():
			p.b.Fatalf("the %s ended before it %s: %v\n%s", p.role, what, p.child.Failure(), p.lastWords())
		case <-deadline:
			p.b.Fatalf("the %s never %s\n%s", p.role, what, p.lastWords())
		}
	}
}

func (p *process) lastWords() []byte {
	log, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(log[max(0, len(log)-2000):])
}

// end asks the process to finish, and waits.
func (p *process) end() {
	p.b.Helper()
	if err := p.child.End(syscall.SIGTERM, time.Minute); err != nil {
		p.b.Error(err)
	}
	if err := p.child.Failure(); err != nil {
		p.b.Errorf("the %s ended badly: %v\n%s", p.role, err, p.lastWords())
	}
	_ = os.Remove(p.log) // the log has hundreds of megabytes, which would burden the next round
}

func (p *process) kill() {
	_ = p.child.Signal(syscall.SIGKILL)
	<-p.child.Ended()
}

// complain reports the error of a process in its role, and returns its exit code.
func complain(role string, err error) int {
	fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
	return 1
}

// residence is the resident memory of a process, in megabytes.
type residence struct {
	own         float64 // of the process alone
	withProgram float64 // with the pages of the program's file, which the kernel can take back at any time
}

// memory returns the present memory of the process. It is zero without /proc.
func (p *process) memory() residence {
	p.b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.child.Pid()))
	if err != nil {
		return residence{}
	}
	megabytes := func(field string) float64 {
		found := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(status)
		if found == nil {
			return 0
		}
		kilobytes, _ := strconv.ParseFloat(string(found[1]), 64)
		return kilobytes * 1024 / 1e6
	}
	return residence{own: megabytes("RssAnon"), withProgram: megabytes("VmRSS")}
}

// rounds is how often each contender runs. With fewer than six a ratio has no interval.
const rounds = 11

// series holds the figure of one contender in each round.
type series []float64

// race lets the contenders take turns, and returns the figures of each.
func race(rounds int, contenders ...func() float64) []series {
	results := make([]series, len(contenders))
	for range rounds {
		for i, run := range contenders {
			results[i] = append(results[i], run())
		}
	}
	return results
}

func (s series) median() float64 { return quantile(s, 0.5) }

// times returns the ratio of each round's figure to the other contender's figure in that round. A shared machine
// changes its speed from second to second, but the contenders of one round run on it at nearly the same time.
func (s series) times(other series) series {
	ratios := make(series, len(s))
	for round := range s {
		ratios[round] = s[round] / other[round]
	}
	return ratios
}

// interval returns bounds between which the true median lies with a probability of at least 95 %, for any
// distribution of the figures. Each figure lies above or below the median with equal chances, like a coin toss. So
// each bound is a figure with so few figures beyond it that coin tosses give so few in less than 2.5 % of the cases.
// With fewer than six figures there is no interval.
func (s series) interval() (from, to float64, known bool) {
	beyond, throws, left := -1, 1.0, 0.0
	for total := math.Exp2(float64(len(s))); (left+throws)/total <= 0.025; beyond++ {
		left += throws
		throws = throws * float64(len(s)-beyond-1) / float64(beyond+2)
	}
	if beyond < 0 {
		return 0, 0, false
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[beyond], sorted[len(sorted)-1-beyond], true
}

func TestAnIntervalLeavesOutWhatFairThrowsSeldomReach(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][2]float64{5: {}, 6: {1, 6}, 8: {1, 8}, 9: {2, 8}, 11: {2, 10}, 21: {6, 16}, 31: {10, 22}} {
		figures := make(series, n)
		for i := range figures {
			figures[i] = float64(n - i)
		}
		if from, to, known := figures.interval(); [2]float64{from, to} != want || known != (n > 5) {
			t.Errorf("of 1 to %d: %v to %v (%v), want %v", n, from, to, known, want)
		}
	}
}

// reportRatio reports the median of the rounds' ratios, and its interval.
func reportRatio(b *testing.B, unit string, ratios series) {
	b.Helper()
	b.ReportMetric(ratios.median(), unit)
	if from, to, known := ratios.interval(); known {
		b.ReportMetric(from, unit+"-from")
		b.ReportMetric(to, unit+"-to")
	}
}

// quantile returns the sample that is larger than that share of the samples.
func quantile(samples []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

// sizeVariable names the variable with the rows of one drain, which scales all sizes.
const sizeVariable = "BENCH_ROWS"

const fullRows = 200_000

// rows scales full, a number of rows for which the goals are stated.
func rows(b testing.TB, full int) int {
	b.Helper()
	text, given := os.LookupEnv(sizeVariable)
	if !given {
		return full
	}
	size, err := strconv.Atoi(text)
	if err != nil || size < 1 {
		b.Fatalf("%s is %q; write the number of rows of one drain, such as 20000", sizeVariable, text)
	}
	return max(1, int(float64(full)*float64(size)/fullRows))
}
