package cli

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

// An operator with a legitimate retention of thirty days writes it into the
// file, and has the owner say so too.
func TestTheOwnerPublishesTheRetentionOfAFile(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	db := drainertest.Connect(t, url)
	kept := func(tool string) int {
		t.Helper()
		return drainertest.Value[int](t, db, `SELECT outbox.retention_floor($1)::int / 86400`, tool)
	}
	publish := func(retention, ownRetention string) result {
		t.Helper()
		file := write(t, "drainer.yaml", "version: 1\nretention: "+retention+`
providers:
  log: {adapter: log, tools: {log: {idempotency: {class: non_idempotent}, compensation: none`+ownRetention+`}, other: {idempotency: {class: non_idempotent}, compensation: none}}}
`)
		got := run(t, "migrate", "retention", "--config", file, "--database-url", url)
		if got.code != exitOK {
			t.Fatal(got.stderr)
		}
		return got
	}
	if kept("log/log") != 90 {
		t.Error("without a word of the owner it is not 90 days")
	}
	publish("30d", ", retention: 7d")
	if kept("log/log") != 7 || kept("log") != 7 || kept("log/other") != 30 || kept("another/tool") != 30 {
		t.Error("the floors are not those of the file")
	}
	if got := publish("36h", ""); !strings.Contains(got.stdout, "retention_floor/log/log") || !strings.Contains(got.stdout, "removed") {
		t.Errorf("it says %s, want what was removed", got.stdout)
	}
	if left := drainertest.Value[string](t, db, `SELECT string_agg(name || ' ' || value, ',') FROM outbox.setting`); left != "retention_floor 129600 seconds" {
		t.Errorf("the settings are %s", left)
	}
	if got := publish("36h", ""); got.stdout != "nothing to do\n" {
		t.Errorf("it says %s", got.stdout)
	}
}

func TestARefusedCommandNamesTheRoleThatIsMissing(t *testing.T) {
	url, _ := stuck(t)
	login := drainertest.Login(t, url, "outbox_drainer")
	for _, args := range [][]string{
		{"incidents", "ack", "1", "--reason", "mine"}, {"sagas", "resolve", "doomed", "--reason", "mine"},
	} {
		got := run(t, append(args, "--database-url", login)...)
		if got.code != exitFailed || !strings.Contains(got.stderr+got.stdout, "GRANT outbox_operator TO") {
			t.Errorf("%v exits with %d and says %s%s", args, got.code, got.stdout, got.stderr)
		}
	}
	if got := run(t, "intents", "list", "--database-url", login); got.code != exitOK {
		t.Errorf("the daemon's login may not read: %s", got.stderr)
	}
}
