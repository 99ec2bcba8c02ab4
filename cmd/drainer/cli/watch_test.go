package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
)

// reader is somebody who reads along, and interrupts when he has seen enough.
type reader struct {
	mu      sync.Mutex
	text    string
	reading func(text string)
}

func (r *reader) Write(octets []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text += string(octets)
	r.reading(r.text)
	return len(octets), nil
}

// watchStatus runs until the reader has seen enough, and returns what he saw.
func watchStatus(t *testing.T, reading func(text string, interrupt func()), args ...string) (text string, code int) {
	t.Helper()
	ctx, interrupt := context.WithTimeout(t.Context(), time.Minute)
	defer interrupt()
	out := &reader{reading: func(text string) { reading(text, interrupt) }}
	root := newRoot(builtins(t))
	root.SetOut(out)
	root.SetErr(&bytes.Buffer{})
	code = execute(ctx, root, append([]string{"status", "--watch"}, args...))
	return out.text, code
}

func TestWatchingAppendsALineASecondUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `SELECT outbox.enqueue('r', 's', 'bank/pay', 'b', '{}')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.provider (name, paused) VALUES ('shop', true)`)
	text, code := watchStatus(t, func(text string, interrupt func()) {
		if strings.Count(text, "\n") == 2 {
			interrupt()
		}
	}, "--database-url", url)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if code != exitOK || len(lines) != 2 {
		t.Fatalf("exit %d, %q", code, text)
	}
	for _, line := range lines {
		for _, want := range []string{"pending 1 ", "due 1 ", "in progress 0 ", "enqueued ", "settled ", "workers 0", "bank not configured", "shop paused"} {
			if !strings.Contains(line, want) {
				t.Errorf("%q says nothing of %q", line, want)
			}
		}
	}
}

func TestWatchingForAProgramWritesAnObjectALine(t *testing.T) {
	t.Parallel()
	url, _ := newOutbox(t)
	text, code := watchStatus(t, func(text string, interrupt func()) { interrupt() }, "--database-url", url, "-o", "json")
	var seen glance
	if err := json.Unmarshal([]byte(text), &seen); code != exitOK || err != nil || seen.At.IsZero() || strings.Count(text, "\n") != 1 {
		t.Errorf("exit %d, %v, %q", code, err, text)
	}
}

func TestADatabaseThatGoesAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	databaseURL, db := newOutbox(t)
	away, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(away.Path, "/")
	away.Path = "/postgres"
	admin, err := pgx.Connect(t.Context(), away.String())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	db.Close()

	gone, back := false, false
	_, code := watchStatus(t, func(text string, interrupt func()) {
		switch {
		case !gone:
			gone = true
			drainertest.Exec(t, admin, fmt.Sprintf(`ALTER DATABASE %s ALLOW_CONNECTIONS false`, name))
			drainertest.Exec(t, admin, fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%s'`, name))
		case !back && strings.Contains(text, "the database cannot be reached"):
			back = true
			drainertest.Exec(t, admin, fmt.Sprintf(`ALTER DATABASE %s ALLOW_CONNECTIONS true`, name))
		case back && strings.Contains(text[strings.LastIndex(text, "cannot be reached"):], "pending"):
			interrupt()
		}
	}, "--database-url", databaseURL)
	if code != exitOK || !back {
		t.Errorf("exit %d", code)
	}
}

func TestADatabaseThatWasNeverThereIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	text, code := watchStatus(t, func(string, func()) {}, "--database-url", "postgres://127.0.0.1:1/x")
	if code != exitDatabaseUnreachable || text != "" {
		t.Errorf("exit %d, %q", code, text)
	}
}

func TestAScreenIsRedrawnInPlaceAndCutToFit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	screen := screenView{&out, func() (int, int) { return 12, 5 }}
	seen := glance{At: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
	for _, name := range []string{"bank", "shöp", "mail", "dock"} {
		seen.Providers = append(seen.Providers, operator.ProviderOverview{Provider: name, Pending: 7})
	}
	if err := screen.show(seen); err != nil {
		t.Fatal(err)
	}
	want := "\x1b[H2030-01-02T0\x1b[K\r\n\x1b[K\r\nPROVIDER  PE\x1b[K\r\n…\x1b[K\r\n\x1b[J"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func newOutbox(t *testing.T) (url string, db *pgxpool.Pool) {
	t.Helper()
	url = drainertest.Database(t)
	return url, drainertest.Connect(t, url)
}
