package upkeep_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/compensations/upkeep"
)

func TestAPruneThatFailsSaysWhatFailed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.settled("noop/x", 0, 20)
	part := o.upkeep()
	part.Hurry(3)
	for want, metadata := range map[string]string{
		"read where the prune was: ": `{"output": "nowhere"}`,
		"note where the prune is: ":  `{}`, // which takes a job of River's
	} {
		if err := part.Work(t.Context(), metadata); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("with %s it says %v, want %q", metadata, err, want)
		}
	}
	o.exec(`ALTER FUNCTION outbox.prune RENAME TO away`)
	before := o.count(`SELECT count(*) FROM outbox.intent`)
	if err := part.Work(t.Context(), `{}`); err == nil || !strings.HasPrefix(err.Error(), "prune: ") {
		t.Errorf("it says %v, want that it could not prune", err)
	}
	if left := o.count(`SELECT count(*) FROM outbox.intent`); left != before {
		t.Errorf("%d intents are left of %d", left, before)
	}
}

func TestARestEndsWithItsJob(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	end()
	began := time.Now()
	upkeep.Rest(over, time.Hour)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it rested for %s", took)
	}
}
