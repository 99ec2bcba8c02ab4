package exec_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/exec"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
)

func TestMain(m *testing.M) {
	switch behaviour := os.Getenv("BEHAVIOUR"); behaviour {
	case "":
	case "daemon":
		beDaemon()
	default:
		play, known := behaviours[behaviour]
		if !known {
			panic("no such behaviour: " + behaviour)
		}
		play(&peer{in: bufio.NewReader(os.Stdin), out: os.Stdout})
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func request(payload string) dispatch.Request {
	return dispatchtest.Intent("desk/open", "step-1", payload)
}

// spec returns a provider whose child is this test binary.
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
		Settings: dispatchtest.Block(text),
		Tools: map[string]dispatch.ToolSpec{
			"open":  {Class: dispatch.KeyIdempotent},
			"close": {Class: dispatch.NonIdempotent},
			"find":  {Class: dispatch.ReadOnly, AnswersLookups: true},
		},
	}
}

func started(t *testing.T, spec dispatch.Spec) *exec.Adapter {
	t.Helper()
	return dispatchtest.Build(t, exec.New, spec)
}

// impatient returns an adapter that waits for a child at most a moment.
func impatient(t *testing.T, spec dispatch.Spec) *exec.Adapter {
	t.Helper()
	return dispatchtest.Build(t, func(spec dispatch.Spec) (*exec.Adapter, error) {
		return exec.NewImpatient(spec, 200*time.Millisecond, io.Discard)
	}, spec)
}

// eventually dispatches until an attempt is completed. Between two attempts it waits as long as the adapter asks
// for.
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

func TestAnAdapterSaysWhatItStarts(t *testing.T) {
	t.Parallel()
	dispatchtest.ConnectsTo(t, exec.Kind(), map[string][]dispatch.Destination{
		"command: [python3, /opt/tickets.py]": {{Network: "program", Address: "python3"}},
	})
}

func TestTheExecAdapterConforms(t *testing.T) {
	for _, class := range []dispatch.Class{dispatch.KeyIdempotent, dispatch.NonIdempotent} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			cannot := map[dispatchtest.Situation]string{dispatchtest.Forbidden: "a child is reached through pipes"}
			if class == dispatch.NonIdempotent {
				cannot[dispatchtest.Busy] = "an operation that must not be repeated is not asked to repeat"
			}
			dispatchtest.Conform(t, dispatchtest.Subject{Kind: exec.Kind(), Class: class, Start: startPlayer, Cannot: cannot})
		})
	}
}

func startPlayer(t *testing.T) dispatchtest.Counterpart {
	stage := protocoltest.NewStage(t)
	env := map[string]string{"BEHAVIOUR": "does as it is directed", "STAGE": stage.Path(), "TOKEN": "token-9d41c07e", "GORACE": "atexit_sleep_ms=0"}
	return dispatchtest.Counterpart{
		Settings: fmt.Sprintf("command: [%q]\nenv: %s", os.Args[0], toJSON(env)),
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		Secrets:  []string{"token-9d41c07e"},
		Received: stage.Received,
		Enter:    stage.Enter,
	}
}

// beDirected handles each request as a stage in the test's process directs.
func beDirected(p *peer) {
	stage := protocoltest.Play(os.Getenv("STAGE"))
	p.hello(`{"protocol":[1],"name":"player"}`)
	p.each(func(_ map[string]any, line string) {
		direction := stage.Ask([]byte(line))
		if direction.Die {
			os.Exit(1)
		}
		if direction.Say != "" {
			p.say(direction.Say)
		}
	})
}

func TestTheChildSeesTheWholeRequest(t *testing.T) {
	t.Parallel()
	adapter := started(t, spec("echo", nil))
	asked := request(`{"b": 1.0, "a":9007199254740993,"e":1e400,"a":"<&>é\u0000"}`)
	asked.Attempt = 3
	asked.Tuple.ToolName = "desk/find"
	asked.ProviderRef = "T-7"
	asked.Headers = map[string]string{"traceparent": "00-ab", "authorization": "not ours to forward"}
	got := adapter.Dispatch(t.Context(), asked)
	dispatchtest.Expect(t, got, dispatch.Completed, "")

	var seen struct {
		Payload    json.RawMessage `json:"payload"`
		DeadlineMS int             `json:"deadline_ms"`
	}
	if err := json.Unmarshal(got.Response, &seen); err != nil {
		t.Fatalf("%s: %v", got.Response, err)
	}
	if want := `"payload":{"b":1.0,"a":9007199254740993,"e":1e400,"a":"<&>é`; !strings.Contains(string(got.Response), want) {
		t.Errorf("the child saw %s", got.Response)
	}
	if seen.DeadlineMS < 1 || seen.DeadlineMS > 10_000 {
		t.Errorf("%d ms are left of 10 s", seen.DeadlineMS)
	}
	for _, part := range []string{
		`"operation":"find"`, `"idempotency_key":"` + request("").IdempotencyKey + `"`, `"attempt":3`, `"provider_ref":"T-7"`,
		`"tuple":{"agent_run_id":"run-001","step_id":"step-1","tool_name":"desk/find","business_scope":"invoice_442"}`,
		`"headers":{"traceparent":"00-ab"}`,
	} {
		if !strings.Contains(string(got.Response), part) {
			t.Errorf("%s is missing from %s", part, got.Response)
		}
	}
}

func TestNothingStartsBeforeTheFirstDispatch(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "started")
	nosy := spec("", nil)
	nosy.Settings = dispatchtest.Block(fmt.Sprintf("command: [touch, %s]", mark))
	adapter := started(t, nosy)
	if _, err := os.Stat(mark); err == nil {
		t.Error("New started the program")
	}
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "child_start")
	if _, err := os.Stat(mark); err != nil {
		t.Error("the first dispatch started nothing")
	}
}

func TestAnAnswerGoesToWhoAsked(t *testing.T) {
	t.Parallel()
	adapter := started(t, spec("in pairs, second first", nil))
	var all sync.WaitGroup
	for number := range 100 {
		all.Go(func() {
			payload := fmt.Sprintf(`{"number":%d,"filling":%q}`, number, strings.Repeat("x", 10_000))
			got := adapter.Dispatch(t.Context(), request(payload))
			var seen struct{ Number int }
			if err := json.Unmarshal(got.Response, &seen); err != nil || seen.Number != number {
				t.Errorf("request %d was answered with %d, %+v, %v", number, seen.Number, got.Outcome, err)
			}
		})
	}
	all.Wait()
}

func TestALateAnswerIsDroppedAndTheChildKept(t *testing.T) {
	t.Parallel()
	adapter := started(t, spec("holds an answer back until the next", nil))
	first := adapter.Dispatch(t.Context(), request(`1`))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	dispatchtest.Expect(t, adapter.Dispatch(ctx, request(`"hold"`)), dispatch.Ambiguous, "timeout")
	for range 2 {
		got := adapter.Dispatch(t.Context(), request(`2`))
		if dispatchtest.Expect(t, got, dispatch.Completed, ""); string(got.Response) != string(first.Response) {
			t.Errorf("child %s answered %s", first.Response, got.Response)
		}
	}
}

func TestWhatTheChildSaysBecomesTheResult(t *testing.T) {
	t.Parallel()
	adapter := started(t, spec("says what it is told", nil))
	for line, want := range map[string]dispatch.Result{
		`{"id":"ID","outcome":"completed","provider_ref":"T-1","response":{"n":9007199254740993},"replayed":true,"http_status":200}`: {
			Outcome: dispatch.Completed, ProviderRef: "T-1", Response: json.RawMessage(`{"n":9007199254740993}`), Replayed: true, HTTPStatus: 200,
		},
		`{"id":"ID","outcome":"throttled","retry_after_ms":1500,"error_class":"quota","http_status":429}`: {
			Outcome: dispatch.Throttled, RetryAfter: 1500 * time.Millisecond, ErrorClass: "quota", HTTPStatus: 429,
		},
		`{"id":"ID","outcome":"rejected","problem":{"type":"about:blank","title":"No","detail":"never"},"error_class":null}`: {
			Outcome: dispatch.Rejected, ErrorClass: "rejected", Problem: &dispatch.Problem{Type: "about:blank", Title: "No", Detail: "never"},
		},
		`{"id":"ID","outcome":"ambiguous","final":true,"error_class":"saved_500"}`:        {Outcome: dispatch.Ambiguous, Final: true, ErrorClass: "saved_500"},
		`{"id":"ID","outcome":"not_sent","error_class":"dns"}`:                            {Outcome: dispatch.NotSent, ErrorClass: "dns"},
		`{"id":"ID","outcome":"absent"}`:                                                  {Outcome: dispatch.Absent, ErrorClass: "absent"},
		`{"id":"ID","outcome":"in_flight"}`:                                               {Outcome: dispatch.InFlight, ErrorClass: "in_flight"},
		`{"id":"ID","outcome":"throttled","retry_after_ms":1e300}`:                        {Outcome: dispatch.Throttled, ErrorClass: "throttled", RetryAfter: 365 * 24 * time.Hour},
		`{"id":"ID","outcome":"completed","response":null,"problem":null,"unknown":true}`: {Outcome: dispatch.Completed},
		`{"id":"ID","outcome":"released"}`:                                                {Outcome: dispatch.Ambiguous, ErrorClass: "invalid_result"},
		`{"id":"ID"}`:                                                                     {Outcome: dispatch.Ambiguous, ErrorClass: "invalid_result"},
		`{"id":"ID","outcome":"rejected","error_class":"Customer Jane Doe was refused"}`:  {Outcome: dispatch.Ambiguous, ErrorClass: "invalid_result"},
		`{"id":"ID","outcome":"rejected","retry_after_ms":-1}`:                            {Outcome: dispatch.Ambiguous, ErrorClass: "invalid_result"},
		`{"id":"ID","outcome":"rejected","http_status":7}`:                                {Outcome: dispatch.Ambiguous, ErrorClass: "invalid_result"},
		`{"id":"ID","outcome":"rejected","final":"yes"}`:                                  {Outcome: dispatch.Ambiguous, ErrorClass: "invalid_result"},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			got := adapter.Dispatch(t.Context(), request(toJSON(line)))
			if toJSON(got) != toJSON(want) {
				t.Errorf("%s, want %s", toJSON(got), toJSON(want))
			}
		})
	}
}

func TestInFlightIsDoubtWhereACallMustNotBeRepeated(t *testing.T) {
	t.Parallel()
	adapter := started(t, spec("says what it is told", nil))
	asked := request(toJSON(`{"id":"ID","outcome":"in_flight"}`))
	asked.Tuple.ToolName = "desk/close"
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), asked), dispatch.Ambiguous, "in_flight")
}

func TestTheChildSeesOnlyTheEnvironmentItIsGiven(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://secret")
	t.Setenv("LANG", "C.UTF-8")
	got := started(t, spec("environment", map[string]string{"TOKEN": "t0", "TZ": "Asia/Tokyo"})).Dispatch(t.Context(), request(`{}`))
	var seen []string
	if err := json.Unmarshal(got.Response, &seen); err != nil {
		t.Fatal(err)
	}
	environment := strings.Join(seen, "\n") + "\n"
	for _, part := range []string{"TOKEN=t0\n", "TZ=Asia/Tokyo\n", "LANG=C.UTF-8\n", "PATH="} {
		if !strings.Contains(environment, part) {
			t.Errorf("%s is missing from %s", part, environment)
		}
	}
	if strings.Contains(environment, "DATABASE_URL") || strings.Contains(environment, "secret") {
		t.Errorf("the child sees %s", environment)
	}
}

func TestWhatIsWrongWithTheSettingsIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	wrong := dispatch.Spec{
		Settings: dispatchtest.Block("command: [./tickets.py]\ndirectory: here\nstart_timeout: -1s\nmax_message: 7\nstderr: shout\nenv: {A=B: x}"),
		Tools:    map[string]dispatch.ToolSpec{"open": {Settings: dispatchtest.Block("map: .payload")}},
	}
	_, err := exec.New(wrong)
	for _, want := range []string{"command:", "directory", "start_timeout", "max_message", "stderr", "env:", "tool open:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is missing from %v", want, err)
		}
	}
	for settings, want := range map[string]string{
		`command: ["tickets\0canary"]`:          "command: an argument holds a NUL",
		`{command: [x], env: {A: "\0canary"}}`:  "env: the value of A holds a NUL",
		`{command: [x], env: {"\0": "canary"}}`: "env: a name is empty, or holds a NUL or =",
	} {
		if _, err := exec.New(dispatch.Spec{Settings: dispatchtest.Block(settings)}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
	if _, err := exec.New(dispatch.Spec{}); err == nil || !strings.Contains(err.Error(), "command is missing") {
		t.Errorf("%v", err)
	}
}
