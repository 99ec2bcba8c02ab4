package demo_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/demo"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

func TestNothingIsLostOrDoubledThoughADrainerIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	options := stage(t, 300)
	var said bytes.Buffer
	options.Screen = demo.NewScreen(&said, false)

	seen := 0 // the number of intents that Afterwards finds
	options.Afterwards = func(ctx context.Context, _ demo.Report, databaseURL string) error {
		conn, err := pgx.Connect(ctx, databaseURL)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		return conn.QueryRow(ctx, `SELECT count(*) FROM outbox.intent WHERE EXISTS (SELECT FROM outbox.worker)`).Scan(&seen)
	}

	report, err := demo.Run(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}

	if !report.Passed {
		t.Errorf("the audit failed: %v", report.Violations)
	}
	// Of 40 trips 20 are not paid. The 76 bookings of 19 trips and one booking of the last trip are cancelled.
	if report.Intents != 500 || report.Effects != 557 || report.Completed != 402 {
		t.Errorf("%d intents, %d effects, %d completed, want 500, 557 and 402", report.Intents, report.Effects, report.Completed)
	}
	if seen < report.Intents {
		t.Errorf("%d intents were there to be looked at", seen)
	}
	if want := (demo.Sagas{Compensated: 19, UndoEffects: 77, Failed: 1, Pages: 1}); report.Sagas != want {
		t.Errorf("of the runs that were rolled back: %+v, want %+v", report.Sagas, want)
	}
	if report.Retries == 0 || report.DuplicatesAbsorbed == 0 || report.Rollbacks == 0 {
		t.Errorf("%d retries, %d duplicates, %d rollbacks: nothing went wrong, so nothing is shown",
			report.Retries, report.DuplicatesAbsorbed, report.Rollbacks)
	}
	if !strings.Contains(said.String(), "with SIGKILL while it held") {
		t.Errorf("no drainer was killed:\n%s", said.String())
	}
}

func TestInterruptLeavesNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	options := stage(t, 300)
	ctx, interrupt := context.WithCancel(t.Context())
	options.Screen = demo.NewScreen(writerFunc(func(text []byte) (int, error) {
		if bytes.Contains(text, []byte("Agents commit")) {
			interrupt()
		}
		return len(text), nil
	}), false)

	if _, err := demo.Run(ctx, options); !errors.Is(err, demo.ErrInterrupted) {
		t.Errorf("ended with %v, want ErrInterrupted alone", err)
	}
}

// stage returns the options of a demo. At the test's end it checks that no file and no database is left.
func stage(t *testing.T, intents int) demo.Options {
	t.Helper()
	databaseURL := drainertest.EmptyDatabase(t)
	before := demoDatabases(t, databaseURL)
	scratch, program := t.TempDir(), buildDrainer(t)
	t.Setenv("TMPDIR", scratch)
	t.Cleanup(func() {
		if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
			t.Errorf("files are left: %v (%v)", left, err)
		}
		if after := demoDatabases(t, databaseURL); after > before {
			t.Errorf("%d databases are left", after-before)
		}
	})
	return demo.Options{DatabaseURL: databaseURL, Drainer: program, Intents: intents, Seed: 1, Logs: t.Output()}
}

func buildDrainer(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "drainer")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/drainer").CombinedOutput(); err != nil {
		t.Fatalf("building drainer: %v\n%s", err, out)
	}
	return program
}

func demoDatabases(t *testing.T, databaseURL string) int {
	t.Helper()
	ctx := context.Background() // the test's own context has ended when this runs last
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	return drainertest.Value[int](t, conn, `SELECT count(*) FROM pg_database WHERE datname LIKE 'drainer\_demo\_%'`)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

// The sandbox's next steps enqueue and run with the drainer.yaml of the folder.
func TestASandboxRefusesTheConfigurationOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	const foreign = "version: 1\ndatabase: {url: \"${env:DATABASE_URL}\"}\n"
	config := filepath.Join(folder, "drainer.yaml")
	if err := os.WriteFile(config, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	sandbox, err := demo.OpenSandbox(t.Context(), folder, "127.0.0.1:0", drainertest.EmptyDatabase(t))
	if err == nil {
		_ = sandbox.Close()
		t.Fatal("it was opened")
	}
	if !strings.Contains(err.Error(), "--folder") {
		t.Errorf("it says no way out: %v", err)
	}
	if kept, err := os.ReadFile(config); err != nil || string(kept) != foreign {
		t.Errorf("the configuration became %q, %v", kept, err)
	}
}

func TestASandboxKeepsWhatWasAddedToItsConfiguration(t *testing.T) {
	t.Parallel()
	folder, server := t.TempDir(), drainertest.EmptyDatabase(t)
	wrote := func() bool {
		t.Helper()
		sandbox, err := demo.OpenSandbox(t.Context(), folder, "127.0.0.1:0", server)
		if err != nil {
			t.Fatal(err)
		}
		if err := sandbox.Close(); err != nil {
			t.Error(err)
		}
		return sandbox.IsNew
	}
	if !wrote() {
		t.Error("the first sandbox wrote no configuration")
	}
	config := filepath.Join(folder, "drainer.yaml")
	written, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	added := string(written) + "# mine\n"
	if err := os.WriteFile(config, []byte(added), 0o600); err != nil {
		t.Fatal(err)
	}
	if wrote() {
		t.Error("the second sandbox wrote a configuration")
	}
	if kept, err := os.ReadFile(config); err != nil || string(kept) != added {
		t.Errorf("the configuration became %q, %v", kept, err)
	}
}
