package history_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/integration/history"
)

// commits is a database whose COMMIT ends so, or to which nobody can connect.
type commits struct {
	pgx.Tx
	connect, commit error
}

func (c commits) Begin(context.Context) (pgx.Tx, error) { return c, c.connect }

func (c commits) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, nil
}

func (c commits) Commit(context.Context) error   { return c.commit }
func (c commits) Rollback(context.Context) error { return nil }

var (
	unreachable = commits{connect: errors.New("no connection")}
	well        = commits{}
	cut         = commits{commit: io.ErrUnexpectedEOF}
	refused     = commits{commit: &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40001"}}
	ended       = commits{commit: &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}}
)

func TestAnAgentKnowsOnlyWhatItWasTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		databases []commits // that it asked, one after the other
		want      history.Answer
	}{
		"committed":                       {[]commits{well}, history.Committed},
		"no connection":                   {[]commits{unreachable}, history.Refused},
		"refused":                         {[]commits{refused}, history.Refused},
		"cut off":                         {[]commits{cut}, history.Unheard},
		"the session was ended":           {[]commits{ended}, history.Unheard},
		"cut off, then committed":         {[]commits{cut, well}, history.Committed},
		"cut off, then no connection":     {[]commits{cut, unreachable}, history.Unheard},
		"no connection, then cut off":     {[]commits{unreachable, cut}, history.Unheard},
		"committed, then asked for again": {[]commits{well, cut, refused}, history.Committed},
	} {
		var clients history.Clients
		intent := dispatch.Tuple{AgentRunID: "run", StepID: "step", ToolName: "tool", BusinessScope: "scope"}
		for _, database := range c.databases {
			clients.Enqueue(t.Context(), database, intent, nil)
		}
		if got := clients.Answers()[intent.IdempotencyKey()]; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
