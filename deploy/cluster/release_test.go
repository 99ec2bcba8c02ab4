package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// release is an installation of the chart, in a Kubernetes namespace and a database of its own.
type release struct {
	t         *testing.T
	cluster   *machine
	namespace string
	database  *pgxpool.Pool
	values    map[string]any
	load      *load
}

// object is a part of the chart's values.
type object = map[string]any

func newRelease(t *testing.T, namespace string) *release {
	t.Helper()
	r := &release{t: t, cluster: theCluster(t), namespace: namespace}
	admin := openDatabase(t, "postgres")
	login := "drainer_" + namespace
	for _, statement := range []string{
		"CREATE DATABASE " + namespace,
		"GRANT CREATE ON DATABASE " + namespace + " TO outbox_owner",
		"CREATE ROLE " + login + " LOGIN PASSWORD 'first' IN ROLE outbox_drainer",
		"GRANT pg_read_all_stats TO " + login,
		"ALTER ROLE " + login + " SET search_path = pg_catalog, pg_temp",
		"REVOKE TEMPORARY ON DATABASE " + namespace + " FROM PUBLIC",
	} {
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	r.database = openDatabase(t, namespace)
	r.kubectl("create", "namespace", namespace)
	t.Cleanup(func() {
		if t.Failed() {
			r.tellMore()
		}
		if _, err := run(r.cluster.kubectl(context.Background(), "delete", "namespace", namespace, "--timeout=120s")); err != nil {
			t.Error(err)
		}
		r.database.Close()
		if _, err := admin.Exec(context.Background(), "DROP DATABASE "+namespace+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	r.setPassword("first")
	r.values = object{
		"image":      object{"repository": strings.TrimSuffix(image, ":test"), "tag": "test", "pullPolicy": "Never"},
		"database":   object{"secret": "outbox", "key": "daemon-url"},
		"migrations": object{"secret": "outbox", "key": "owner-url", "backoffLimit": 0},
		"validation": object{"activeDeadlineSeconds": 60},
		"resources":  object{"requests": object{"cpu": "10m", "memory": "32Mi"}, "limits": object{"memory": "256Mi"}},
		"config": object{
			"worker": object{"heartbeat": "1s", "lease": "5s", "shutdown_timeout": "10s"},
			"providers": object{"pay": object{
				"adapter": "http", "concurrency": 16, "timeout": "5s", "http": object{"base_url": "http://" + providerIP + ":8080"},
				"tools": object{
					"act":  tool("/act", object{"class": "key_idempotent", "ttl": "24h", "scope": "account"}),
					"once": tool("/once", object{"class": "non_idempotent"}),
					"slow": tool("/slow", object{"class": "key_idempotent", "ttl": "24h", "scope": "account"}),
				},
			}},
		},
	}
	return r
}

func tool(path string, idempotency object) object {
	return object{
		"http": object{"path": path, "response": object{"ref": ".id"}}, "idempotency": idempotency, "compensation": "none",
		"retry": object{"max_attempts": 50, "base": "50ms", "cap": "1s"},
	}
}

// setPassword writes the Secret that the chart's values name.
func (r *release) setPassword(password string) {
	r.t.Helper()
	secret := object{
		"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": "outbox"},
		"stringData": object{
			"owner-url":  databaseURL("outbox_owner", globalPassword, r.namespace),
			"daemon-url": databaseURL("drainer_"+r.namespace, password, r.namespace),
		},
	}
	if err := r.cluster.apply(r.t.Context(), r.namespace, asJSON(r.t, secret)); err != nil {
		r.t.Fatal(err)
	}
}

const globalPassword = password // the password of the logins that roles.sql creates

// set sets one value of the release, by its path.
func (r *release) set(path string, value any) {
	keys := strings.Split(path, ".")
	at := r.values
	for _, key := range keys[:len(keys)-1] {
		inner, _ := at[key].(object)
		inner = maps.Clone(inner)
		if inner == nil {
			inner = object{}
		}
		at[key] = inner
		at = inner
	}
	at[keys[len(keys)-1]] = value
}

func (r *release) kubectl(args ...string) string {
	r.t.Helper()
	output, err := r.tryKubectl(args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return output
}

func (r *release) tryKubectl(args ...string) (string, error) {
	output, err := run(r.cluster.kubectl(r.t.Context(), append([]string{"--namespace", r.namespace}, args...)...))
	return strings.TrimSpace(string(output)), err
}

func (r *release) tryHelm(args ...string) error {
	command := append([]string{filepath.Join(r.cluster.tools, "helm"), "--namespace", r.namespace}, args...)
	_, err := run(r.cluster.inside(r.t.Context(), 1, command...))
	return err
}

func (r *release) helm(args ...string) {
	r.t.Helper()
	if err := r.tryHelm(args...); err != nil {
		r.t.Fatal(err)
	}
}

// tryUpgrade installs the chart with the present values, or upgrades to them.
func (r *release) tryUpgrade(args ...string) error {
	file := filepath.Join(r.t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(asJSON(r.t, r.values)), 0o600); err != nil {
		return err
	}
	folder, err := filepath.Abs(chart)
	if err != nil {
		return err
	}
	return r.tryHelm(append([]string{"upgrade", "--install", "drainer", folder, "--values", file, "--wait", "--timeout", "3m"}, args...)...)
}

func (r *release) upgrade(args ...string) {
	r.t.Helper()
	if err := r.tryUpgrade(args...); err != nil {
		r.t.Fatal(err)
	}
}

const ledgerFile = home + "/counterparts/ledger/ledger.jsonl"

const daemons = "app.kubernetes.io/name=drainer,app.kubernetes.io/component=daemon"

// pods returns the names of the daemon's pods that run or end.
func (r *release) pods() []string {
	r.t.Helper()
	return strings.Fields(r.kubectl("get", "pods", "--selector", daemons, "--output", "jsonpath={.items[*].metadata.name}"))
}

// tellMore logs the state that a person would inspect.
func (r *release) tellMore() {
	for _, look := range [][]string{
		{"get", "pods,jobs", "--output", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp", "--output", "custom-columns=K:.involvedObject.name,R:.reason,M:.message"},
		{"logs", "--selector", "app.kubernetes.io/name=drainer", "--tail=5", "--prefix", "--ignore-errors"},
	} {
		output, err := run(r.cluster.kubectl(context.Background(), append([]string{"--namespace", r.namespace}, look...)...))
		r.t.Logf("kubectl %s: %v\n%s", strings.Join(look, " "), err, tail(string(output)))
	}
}

// load commits intents, as agents do, until it is stopped.
type load struct {
	stop      context.CancelFunc
	ended     sync.WaitGroup
	committed []int64 // the intents of which the commit was answered
	failed    int
	more      chan struct{} // a batch was committed
}

// All tests share one ledger, so the run is named for the database.
const enqueueBoth = `SELECT intent_id FROM unnest(ARRAY['pay/act', 'pay/once']) tool, unnest($1::text[]) step,
	LATERAL outbox.enqueue(current_database(), step, tool, 'order-' || step, jsonb_build_object('step', step))`

// startLoad returns once the first intents are committed.
func (r *release) startLoad() {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	r.load = &load{stop: stop, more: make(chan struct{}, 1)}
	r.t.Cleanup(stop)
	r.load.ended.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond) // the rate of the load
		defer ticker.Stop()
		for batch := 0; ctx.Err() == nil; batch++ {
			r.load.commit(ctx, r.database, batch)
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	<-r.load.more
}

func (l *load) commit(ctx context.Context, database *pgxpool.Pool, batch int) {
	steps := make([]string, 3)
	for i := range steps {
		steps[i] = fmt.Sprintf("%d-%d", batch, i)
	}
	rows, _ := database.Query(ctx, enqueueBoth, steps) // CollectRows returns the error too
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		l.failed++ // Postgres did not answer, or its answer was lost
		return
	}
	l.committed = append(l.committed, ids...)
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// underLoad waits until this many more intents are completed.
func (r *release) underLoad(more int) {
	r.t.Helper()
	const completed = `SELECT count(*) FROM outbox.status WHERE status = 'completed'`
	least := more
	if had, err := r.ask(completed); err == nil {
		least += had
	}
	eventually(r.t, fmt.Sprintf("%d more intents are completed", more), func() error {
		has, err := r.ask(completed)
		if err == nil && has < least {
			err = fmt.Errorf("%d of %d are", has, least)
		}
		return err
	})
}

func (r *release) ask(sql string) (number int, err error) {
	err = r.database.QueryRow(r.t.Context(), sql).Scan(&number)
	return number, err
}

// audit ends the load, waits until no work is left, and compares the intents with the provider's ledger. No intent
// may be lost, and none that is not idempotent may have been requested twice. Only intents that a killed pod had in
// flight may be in doubt: at most doubts.
func (r *release) audit(doubts int) {
	r.t.Helper()
	if r.load != nil {
		r.load.stop()
		r.load.ended.Wait()
	}
	eventually(r.t, "nothing is left to do", func() error {
		left, err := r.ask(`SELECT (SELECT count(*) FROM outbox.queue) + (SELECT count(*) FROM outbox.claim)`)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d rows are left", left)
		}
		return err
	})
	ledger, err := dispatchtest.ReadLedger(ledgerFile)
	if err != nil {
		r.t.Fatal(err)
	}
	seen := ledger.Audit()
	known := map[int64]bool{}
	statuses := map[string]int{}
	var (
		id                int64
		name, key, status string
		wrong             []error
	)
	rows, _ := r.database.Query(r.t.Context(), `SELECT intent_id, tool_name, idempotency_key, status FROM outbox.status`) // ForEachRow returns the error too
	_, err = pgx.ForEachRow(rows, []any{&id, &name, &key, &status}, func() error {
		known[id] = true
		requests, effects := seen.Requests[key], seen.Effects[key]
		statuses[strings.TrimPrefix(name, "pay/")+" "+status]++
		switch {
		case status == "completed" && effects == 1 && (name != "pay/once" || requests == 1):
		case status == "unknown" && name == "pay/once" && requests <= 1:
		default:
			wrong = append(wrong, fmt.Errorf("intent %d of %s is %s: %d requests, %d effects", id, name, status, requests, effects))
		}
		return nil
	})
	if err = errors.Join(append(wrong[:min(len(wrong), 10)], err)...); err != nil {
		r.t.Errorf("%d intents are wrong: %v", len(wrong), err)
	}
	if unknown := statuses["once unknown"]; unknown > doubts {
		r.t.Errorf("%d intents are in doubt, and at most %d may be", unknown, doubts)
	}
	if r.load != nil {
		for _, id := range r.load.committed {
			if !known[id] {
				r.t.Errorf("intent %d was committed, and is lost", id)
			}
		}
		r.t.Logf("committed %d intents (%d batches failed): %v", len(r.load.committed), r.load.failed, statuses)
	}
}
