package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

// A page must not be read with a login that can change something.
func TestTheConsolesLoginForViewersCanOnlyRead(t *testing.T) {
	t.Parallel()
	databaseURL := drainertest.Database(t)
	own, viewer := drainertest.Login(t, databaseURL, "outbox_operator"), drainertest.Login(t, databaseURL, "outbox_auditor")
	start := []string{"console", "--database-url", own, "--listen", "127.0.0.1:0", "--viewer-database"}
	if got := run(t, append(start, own)...); got.code != exitUsage || !strings.Contains(got.stderr, "outbox_auditor alone") {
		t.Errorf("%+v", got)
	}
	ctx, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	said := endsOnce{word: "The console is at", end: end}
	root := newRoot(builtins(t))
	root.SetErr(&said)
	if code := execute(ctx, root, append(start, "${file:"+write(t, "url", viewer)+"}")); code != exitOK || !strings.Contains(said.String(), "The console is at") {
		t.Errorf("%d: %s", code, said.String())
	}
}

// endsOnce keeps what a command says, and ends the command at a word.
type endsOnce struct {
	bytes.Buffer

	word string
	end  func()
}

func (e *endsOnce) Write(said []byte) (int, error) {
	defer func() {
		if strings.Contains(e.String(), e.word) {
			e.end()
		}
	}()
	return e.Buffer.Write(said)
}
