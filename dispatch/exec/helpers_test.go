package exec_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/exec"
)

func TestMain(m *testing.M) {
	switch behaviour := os.Getenv("BEHAVIOUR"); {
	case behaviour == "daemon":
		beDaemon()
	case behaviour != "":
		if !slices.Contains(names(), behaviour) {
			panic("no such behaviour: " + behaviour)
		}
		behaviours[behaviour](&peer{in: bufio.NewReader(os.Stdin), out: os.Stdout})
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// block is configuration as a user writes it.
type block string

func (b block) Decode(into any) error {
	return yaml.UnmarshalWithOptions([]byte(b), into, yaml.Strict())
}

var tuple = dispatch.Tuple{AgentRunID: "run-001", StepID: "step-1", ToolName: "desk/open", BusinessScope: "case_7"}

func request(payload string) dispatch.Request {
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

// spec is a provider whose child is this test binary.
func spec(behaviour string, env map[string]string, settings ...string) dispatch.Spec {
	all := map[string]string{"BEHAVIOUR": behaviour, "GORACE": "atexit_sleep_ms=0"}
	if folder, measured := os.LookupEnv("GOCOVERDIR"); measured {
		all["GOCOVERDIR"] = folder
	}
	for name, value := range env {
		all[name] = value
	}
	text := fmt.Sprintf("command: [%q]\nenv: %s\n%s", os.Args[0], toJSON(all), strings.Join(settings, "\n"))
	return dispatch.Spec{
		Provider: "desk",
		Timeout:  10 * time.Second,
		Settings: block(text),
		Tools: map[string]dispatch.ToolSpec{
			"open":  {Class: dispatch.KeyIdempotent},
			"close": {Class: dispatch.NonIdempotent},
			"find":  {Class: dispatch.ReadOnly, AnswersLookups: true},
		},
	}
}

func started(t *testing.T, spec dispatch.Spec) *exec.Adapter {
	t.Helper()
	adapter, err := exec.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := adapter.Close(); err != nil {
			t.Error(err)
		}
	})
	return adapter
}

// impatient waits for nothing longer than a moment.
func impatient(t *testing.T, spec dispatch.Spec) *exec.Adapter {
	t.Helper()
	adapter, err := exec.NewImpatient(spec, 200*time.Millisecond, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = adapter.Close() })
	return adapter
}

func expect(t *testing.T, got dispatch.Result, outcome dispatch.Outcome, class string) {
	t.Helper()
	if got.Outcome != outcome || got.ErrorClass != class {
		t.Errorf("%s %q, want %s %q", got.Outcome, got.ErrorClass, outcome, class)
	}
}

// eventually dispatches until it is answered, as often as the adapter asks for.
func eventually(t *testing.T, adapter *exec.Adapter) dispatch.Result {
	t.Helper()
	for {
		got := adapter.Dispatch(t.Context(), request(`{}`))
		if got.Outcome == dispatch.Completed {
			return got
		}
		if got.Outcome != dispatch.NotSent || t.Context().Err() != nil {
			t.Fatalf("%+v", got)
		}
		<-time.After(got.RetryAfter)
	}
}
