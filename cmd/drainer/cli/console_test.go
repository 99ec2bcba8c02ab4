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
	ctx, end := context.WithTimeout(t.Context(), 3*time.Second)
	defer end()
	var said bytes.Buffer
	root := newRoot(builtins(t))
	root.SetErr(&said)
	if code := execute(ctx, root, append(start, "${file:"+write(t, "url", viewer)+"}")); code != exitOK || !strings.Contains(said.String(), "The console is at") {
		t.Errorf("%d: %s", code, said.String())
	}
}
