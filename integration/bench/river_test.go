package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// River was fastest here with these settings.
const (
	riverWorkers     = 1000
	riverMoreWorkers = 256 // over HTTP, where the workers share the connections to the provider
	riverConnections = 10
)

// riverSetup is the setup of a River process.
type riverSetup struct {
	DatabaseURL string
	Jobs        int    // the process prints a line after this many jobs
	ProviderURL string // if empty, the jobs do nothing
	MaxWorkers  int
	Connections int
}

// riverMain works jobs as fast as River can. The settings were found by trying. docs/benchmarks.md describes them.
func riverMain() int {
	setup, err := setupOf[riverSetup]()
	if err != nil {
		return complain("river", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := workJobs(ctx, setup); err != nil {
		return complain("river", err)
	}
	return 0
}

func workJobs(ctx context.Context, setup riverSetup) error {
	config, err := pgxpool.ParseConfig(setup.DatabaseURL)
	if err != nil {
		return err
	}
	config.MaxConns = int32(setup.Connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	workers := river.NewWorkers()
	river.AddWorker(workers, &jobWorker{setup: setup, client: newClient()})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: setup.MaxWorkers}},
		FetchCooldown:     time.Millisecond,
		FetchPollInterval: 5 * time.Millisecond,
		Workers:           workers,
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-client.Stopped()
	return nil
}

type jobArgs struct {
	Order    string    `json:"order"`
	Amount   int       `json:"amount"`
	Currency string    `json:"currency"`
	Capture  bool      `json:"capture"`
	Customer string    `json:"customer"`
	Items    []jobItem `json:"items"`
	Note     string    `json:"note"`
}

type jobItem struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

func (jobArgs) Kind() string { return "act" }

type jobWorker struct {
	river.WorkerDefaults[jobArgs]

	setup  riverSetup
	client *http.Client
	worked atomic.Int64
}

func (w *jobWorker) Work(ctx context.Context, job *river.Job[jobArgs]) error {
	if w.setup.ProviderURL != "" {
		if err := call(ctx, w.client, w.setup.ProviderURL, job.EncodedArgs); err != nil {
			return err
		}
	}
	if w.worked.Add(1) == int64(w.setup.Jobs) {
		fmt.Fprintln(os.Stdout, allWorked)
	}
	return nil
}

const allWorked = "all jobs worked"

// riverDatabase has only River's schema.
type riverDatabase struct{ *database }

func newRiverDatabase(b testing.TB) *riverDatabase {
	b.Helper()
	d := newDatabase(b)
	migrator, err := rivermigrate.New(riverpgxv5.New(d.Pool), nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := migrator.Migrate(b.Context(), rivermigrate.DirectionUp, nil); err != nil {
		b.Fatal(err)
	}
	return &riverDatabase{d}
}

// withoutGIN drops two indexes that are not used for working jobs.
func (d *riverDatabase) withoutGIN() *riverDatabase {
	d.exec(`DROP INDEX river_job_args_index, river_job_metadata_index`)
	return d
}

func (d *riverDatabase) insert(jobs int) {
	d.b.Helper()
	d.exec(`CHECKPOINT`)
	d.exec(`INSERT INTO river_job (kind, args, max_attempts) SELECT 'act', `+payload+`, 25 FROM generate_series(1, $1::int) n`, jobs)
}

// jobsPerSecond works all jobs. It returns their rate from the start of the first job to the end of the last job.
func (d *riverDatabase) jobsPerSecond(setup riverSetup) float64 {
	d.b.Helper()
	setup.DatabaseURL = d.url
	worker := spawn(d.b, "river", setup)
	worker.awaitLog(allWorked)
	worker.await("completed all jobs", func() bool {
		return read[int](d.database, `SELECT count(*) FROM river_job WHERE state = 'completed'`) == setup.Jobs
	})
	worker.end()
	return read[float64](d.database, `
		SELECT count(*) / extract(epoch FROM max(finalized_at) - min(attempted_at))::float8 FROM river_job`)
}

// call sends one request as a plain client does. It reads the whole answer, but checks only its status.
func call(ctx context.Context, client *http.Client, url string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/act", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the provider answers %s", response.Status)
	}
	return nil
}
