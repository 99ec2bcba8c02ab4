package saga_test

import (
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore/exploretest"
	"github.com/agentoutbox/drainer/model/saga"
)

var (
	keyed        = saga.Model{Class: dispatch.KeyIdempotent}
	once         = saga.Model{Class: dispatch.NonIdempotent}
	asked        = saga.Model{Class: dispatch.NonIdempotent, Lookup: true}
	irreversible = saga.Model{Class: dispatch.NonIdempotent, Irreversible: true}
	unattended   = saga.Model{Class: dispatch.NonIdempotent, Unattended: true}
)

func TestNoOrderOfEventsBreaksAPromise(t *testing.T) {
	t.Parallel()
	for name, model := range map[string]saga.Model{
		"key_idempotent":                 keyed,
		"non_idempotent":                 once,
		"non_idempotent, with a lookup":  asked,
		"non_idempotent, not reversible": irreversible,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := exploretest.Holds(t, model.Explored())
			t.Logf("%s: %d states, %d steps", name, report.States, report.Steps)
		})
	}
}
