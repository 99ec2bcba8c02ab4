package dispatchtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// boaster completes everything and does nothing.
type boaster struct{}

func (boaster) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Completed}
}

var boasting = dispatchtest.Subject{
	Kind: dispatch.Kind{
		Name:     "boaster",
		Settings: struct{}{},
		Tool:     struct{}{},
		New: func(spec dispatch.Spec) (dispatch.Adapter, error) {
			err := errors.Join(spec.Settings.Decode(&struct{}{}), spec.Tools["act"].Settings.Decode(&struct{}{}))
			return boaster{}, err
		},
	},
	Patience: time.Second / 4, // there is nothing to wait for
	Start: func(*testing.T) dispatchtest.Counterpart {
		return dispatchtest.Counterpart{
			Payload:  json.RawMessage(`{}`),
			Received: func() []dispatchtest.Message { return nil },
			Enter:    func(dispatchtest.Situation) {},
		}
	},
	Cannot: map[dispatchtest.Situation]string{dispatchtest.Silent: "it never listens"},
}

const inChild = "DRAINER_TEST_CONFORM_FAILS"

// A test cannot watch itself fail, so another process fails.
func TestConformFailsTheTestOfAnAdapterThatDoesNot(t *testing.T) {
	if os.Getenv(inChild) != "" {
		dispatchtest.Conform(t, boasting)
		return
	}
	t.Parallel()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), inChild+"=1")
	output, err := child.CombinedOutput()
	if failed := new(exec.ExitError); !errors.As(err, &failed) || failed.ExitCode() != 1 {
		t.Fatalf("ended with %v:\n%s", err, output)
	}
	for _, line := range []string{
		"--- PASS: " + t.Name() + "/excuses",
		"--- FAIL: " + t.Name() + "/key_stability",
		"--- FAIL: " + t.Name() + "/severing",
		"--- FAIL: " + t.Name() + "/forbidden",
		"--- SKIP: " + t.Name() + "/silent",
		"--- SKIP: " + t.Name() + "/own_timeout",
	} {
		if !strings.Contains(string(output), line) {
			t.Errorf("no %q in\n%s", line, output)
		}
	}
}

func TestABlockIsStrictAndDiscreet(t *testing.T) {
	t.Parallel()
	var into struct {
		Name  string `yaml:"name"`
		Count int    `yaml:"count"`
	}
	if err := dispatchtest.Block("{name: n, count: 2}").Decode(&into); err != nil || into.Name != "n" || into.Count != 2 {
		t.Errorf("got %+v, %v", into, err)
	}
	if err := dispatchtest.Block("").Decode(&into); err != nil {
		t.Errorf("a block that was left out: %v", err)
	}
	for _, text := range []string{"{title: hushhush}", "{count: hushhush}", "{name: [hushhush", "- hushhush"} {
		err := dispatchtest.Block(text).Decode(&into)
		if err == nil || strings.Contains(err.Error(), "hushhush") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestAnAddressIsKeptWhileNobodyListens(t *testing.T) {
	t.Parallel()
	address := dispatchtest.Address(t)
	for range 3 {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			t.Fatal("the counterpart is there")
		}
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		listener.Close()
	}
}
