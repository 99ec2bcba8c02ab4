// Package cluster_test installs the chart in a real Kubernetes of two nodes on this
// machine, breaks it under load, and audits the provider's ledger.
package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"
)

const (
	chart      = "../helm/drainer"
	postgresIP = "10.96.0.10"
	providerIP = "10.96.0.20"
	password   = "secret-of-this-test"
)

var running struct {
	sync.Once
	*machine
	begun atomic.Bool // there may be something to clear away
	lock  *os.File
	err   error

	skipped atomic.Bool // a test that needs the network has not run
}

func TestMain(m *testing.M) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		finish()
		os.Exit(130)
	}()
	code := m.Run()
	if ran := running.begun.Load(); !finish() {
		code = 1
	} else if code == 0 && ran && !running.skipped.Load() && flag.Lookup("test.run").Value.String() == "" {
		recordPass()
	}
	os.Exit(code)
}

// recordPass records for .ci/run the commit with which all of these tests passed.
func recordPass() {
	changed, err := exec.Command("git", "status", "--porcelain").Output()
	commit, err2 := exec.Command("git", "rev-parse", "HEAD").Output()
	folder, err3 := toolsFolder()
	if errors.Join(err, err2, err3) == nil && len(changed) == 0 {
		_ = os.WriteFile(filepath.Join(filepath.Dir(folder), "passed"), commit, 0o644) // without it the tests run again
	}
}

func finish() bool {
	if !running.begun.Load() {
		return true
	}
	err := errors.Join(sweep(), removeImages())
	if err == nil {
		err = leftovers()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stopping the cluster:", err)
	}
	return err == nil
}

// leftovers returns an error for each part of the cluster that is still on this machine.
func leftovers() error {
	var found []error
	for _, pattern := range []string{home, "/run/netns/" + network + "*", "/sys/fs/cgroup/*/" + network + "*"} {
		if paths, _ := filepath.Glob(pattern); len(paths) > 0 {
			found = append(found, fmt.Errorf("left behind: %v", paths))
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), "drainer-cluster") {
		found = append(found, errors.Join(errors.New("a mount is left behind"), err))
	}
	return errors.Join(found...)
}

// theCluster returns the cluster, and starts it for the first test that needs it.
func theCluster(t *testing.T) *machine {
	t.Helper()
	if reason := missing(); reason != "" {
		t.Skip(reason)
	}
	running.Do(func() { running.err = startCluster(context.Background()) })
	if running.err != nil {
		t.Fatalf("starting the cluster: %v", running.err)
	}
	return running.machine
}

func startCluster(ctx context.Context) error {
	begun := time.Now()
	folder, err := toolsFolder()
	if err != nil {
		return err
	}
	if running.lock, err = takeLock(filepath.Dir(folder)); err != nil {
		return err
	}
	tools, err := buildTools(ctx)
	if err != nil {
		return err
	}
	running.begun.Store(true)
	_ = removeImages() // the images of a run that was killed
	postgres, err := buildImages(ctx, tools)
	if err != nil {
		return err
	}
	built := time.Now()
	if running.machine, err = startMachine(ctx, tools, postgres); err != nil {
		return err
	}
	m := running.machine
	roles, err := os.ReadFile("../compose/postgres/roles.sql")
	if err != nil {
		return err
	}
	ledger := filepath.Join(home, "counterparts")
	if err := errors.Join(os.MkdirAll(ledger, 0o777), m.apply(ctx, "default", fmt.Sprintf(counterparts, postgres, counterpart, ledger, indent(string(roles))))); err != nil {
		return err
	}
	for _, wait := range [][]string{
		{"wait", "--for=condition=Ready", "node/n1", "node/n2", "--timeout=120s"},
		{"rollout", "status", "statefulset/postgres", "deployment/provider", "--timeout=120s"},
	} {
		if _, err := run(m.kubectl(ctx, wait...)); err != nil {
			return err
		}
	}
	for _, address := range []string{postgresIP + ":5432", providerIP + ":8080"} {
		// A ready pod can be reached only when kube-proxy knows of it.
		if err := poll(ctx, time.Minute, address+" is reached", func() error {
			conn, err := dial(ctx, "tcp", address)
			if err != nil {
				return err
			}
			return conn.Close()
		}); err != nil {
			return err
		}
	}
	fmt.Printf("The images were built in %.0f s; the cluster was ready %.0f s later.\n", built.Sub(begun).Seconds(), time.Since(built).Seconds())
	return nil
}

func indent(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }

// counterparts are Postgres and the provider. Their data is in a folder of this machine, so that it survives their
// pods. A StatefulSet starts a pod only after the one before has ended. Two servers on one folder would not know of
// each other, and would lose commits.
const counterparts = `
apiVersion: v1
kind: ConfigMap
metadata: {name: roles}
data:
  roles.sql: |
%[4]s
---
apiVersion: v1
kind: Service
metadata: {name: postgres}
spec: {clusterIP: ` + postgresIP + `, selector: {app: postgres}, ports: [{port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: provider}
spec: {clusterIP: ` + providerIP + `, selector: {app: provider}, ports: [{port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: postgres}
spec:
  serviceName: postgres
  selector: {matchLabels: {app: postgres}}
  template:
    metadata: {labels: {app: postgres}}
    spec:
      nodeName: n1
      terminationGracePeriodSeconds: 20
      containers:
        - name: postgres
          image: %[1]s
          imagePullPolicy: Never
          args: [postgres, -c, max_connections=300]
          env: [{name: POSTGRES_PASSWORD, value: ` + password + `}]
          readinessProbe: {tcpSocket: {port: 5432}, periodSeconds: 1}
          volumeMounts:
            - {name: data, mountPath: /var/lib/postgresql/data}
            - {name: roles, mountPath: /docker-entrypoint-initdb.d}
      volumes:
        - {name: data, hostPath: {path: "%[3]s/postgres", type: DirectoryOrCreate}}
        - {name: roles, configMap: {name: roles}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: provider}
spec:
  selector: {matchLabels: {app: provider}}
  strategy: {type: Recreate}
  template:
    metadata: {labels: {app: provider}}
    spec:
      nodeName: n1
      terminationGracePeriodSeconds: 1
      containers:
        - name: provider
          image: %[2]s
          imagePullPolicy: Never
          args: [provider, ":8080", /ledger/ledger.jsonl]
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
          volumeMounts: [{name: ledger, mountPath: /ledger}]
      volumes: [{name: ledger, hostPath: {path: "%[3]s/ledger", type: DirectoryOrCreate}}]
`

func (m *machine) kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return m.inside(ctx, 1, m.kube("kubectl", args...)...)
}

func (m *machine) apply(ctx context.Context, namespace, manifest string) error {
	command := m.kubectl(ctx, "apply", "--namespace", namespace, "--server-side", "--filename", "-")
	command.Stdin = strings.NewReader(manifest)
	_, err := run(command)
	return err
}

// dial connects from node n1. A thread that has entered its network ends with the goroutine. The connection stays
// in that network.
func dial(ctx context.Context, kind, address string) (net.Conn, error) {
	type dialled struct {
		conn net.Conn
		err  error
	}
	result := make(chan dialled, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends
		space, err := os.Open("/run/netns/" + inNetwork(1))
		if err != nil {
			result <- dialled{err: err}
			return
		}
		defer space.Close()
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- dialled{err: fmt.Errorf("entering the cluster's network: %w", err)}
			return
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, kind, address)
		result <- dialled{conn, err}
	}()
	answer := <-result
	return answer.conn, answer.err
}

func openDatabase(t *testing.T, name string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(databaseURL("postgres", password, name))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DialFunc = dial
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func databaseURL(user, password, name string) string {
	return fmt.Sprintf("postgres://%s:%s@%s:5432/%s?sslmode=disable&connect_timeout=3", user, password, postgresIP, name)
}

// poll calls holds until it returns no error. The other side is another process, which cannot notify the test.
func poll(ctx context.Context, within time.Duration, what string, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %s: %w", within, what, err)
		case <-ticker.C:
		}
	}
}

func eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	if err := poll(t.Context(), 3*time.Minute, what, holds); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (number int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&number); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return number
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
