package exec_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/exec"
)

func TestAnAdapterSaysWhatItStarts(t *testing.T) {
	t.Parallel()
	adapter, err := exec.New(dispatch.Spec{Settings: dispatchtest.Block("command: [python3, /opt/tickets.py]")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = adapter.Close() })
	want := []dispatch.Destination{{Network: "program", Address: "python3"}}
	if got := adapter.Destinations(); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
