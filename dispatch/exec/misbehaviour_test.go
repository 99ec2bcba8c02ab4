package exec_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/exec"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestAChildThatCannotServeIsNotSentAnything(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ behaviour, hello, class string }{
		"exits at once":                  {"exits", "", "child_start"},
		"no hello in time":               {"says nothing", "", "start_timeout"},
		"only a later version":           {"says its hello, which is told", `{"protocol":[2],"name":"x"}`, "protocol_version"},
		"no version":                     {"says its hello, which is told", `{"name":"x"}`, "invalid_hello"},
		"no JSON":                        {"says its hello, which is told", `hello`, "invalid_hello"},
		"a class that is none":           {"says its hello, which is told", `{"protocol":[1],"name":"x","operations":{"open":"safe"}}`, "invalid_hello"},
		"promises less than is assumed":  {"says its hello, which is told", `{"protocol":[1],"name":"x","operations":{"open":"non_idempotent"}}`, "class_not_promised"},
		"does not know the operation":    {"says its hello, which is told", `{"protocol":[1],"name":"x","operations":{}}`, "unknown_operation"},
		"a hello that is no line at all": {"says its hello, which is told", strings.Repeat("x", 5000), "child_start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			adapter := impatient(t, spec(test.behaviour, map[string]string{"HELLO": test.hello}, "start_timeout: 3s", "max_message: 4096"))
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, test.class)
		})
	}
	t.Run("does not know one operation", func(t *testing.T) {
		t.Parallel()
		hello := map[string]string{"HELLO": `{"protocol":[1],"name":"x","operations":{"open":"key_idempotent"}}`}
		adapter := started(t, spec("says its hello, which is told", hello))
		missing := request(`{}`)
		missing.Tuple.ToolName = "desk/close"
		got := adapter.Dispatch(t.Context(), missing)
		dispatchtest.Expect(t, got, dispatch.NotSent, "unknown_operation")
		if !got.OfOperation {
			t.Error("it speaks for the whole child, which has the other operation")
		}
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	})
	t.Run("is not there", func(t *testing.T) {
		t.Parallel()
		nowhere := spec("", nil)
		nowhere.Settings = dispatchtest.Block("command: [/nowhere/at/all]")
		adapter := started(t, nowhere)
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "child_start")
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "child_start")
	})
}

// The problem has the child's last line and its exit status, without the secrets of its environment.
func TestWhyAChildCannotServeIsSaid(t *testing.T) {
	t.Parallel()
	const token, key = "token-9d41c07e", "-----BEGIN KEY-----\nbm90IGEga2V5\n-----END KEY-----"
	for name, test := range map[string]struct{ behaviour, token, pad, title, detail string }{
		"ends with a complaint":   {"complains, then exits", token, "x", "the adapter ended: exit status 3", `\x1b[31mKeyError: token=[secret] x`},
		"complains at length":     {"complains, then exits", token, strings.Repeat("y", 5000), "the adapter ended: exit status 3", "a line of more than 4096 bytes"},
		"ends in silence":         {"exits", token, "", "the adapter ended: exit status 3", ""},
		"says no hello":           {"says one line of a key", key, "you", "this line of the adapter is no hello of protocol version 1", `hello\tyou`},
		"says no hello at length": {"says one line of a key", key, strings.Repeat("y", 5000), "this line of the adapter is no hello of protocol version 1", "a line of 5006 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			adapter := impatient(t, spec(test.behaviour, map[string]string{"TOKEN": test.token, "PAD": test.pad}))
			for range 2 { // the second is refused without a start, for the same reason
				p := adapter.Dispatch(t.Context(), request(`{}`)).Problem
				if p == nil || p.Title != test.title || p.Detail != test.detail {
					t.Fatalf("it says %+v, want %s: %s", p, test.title, test.detail)
				}
			}
		})
	}
	t.Run("is not there", func(t *testing.T) {
		t.Parallel()
		nowhere := spec("", nil)
		nowhere.Settings = dispatchtest.Block("command: [/nowhere/at/all]")
		p := started(t, nowhere).Dispatch(t.Context(), request(`{}`)).Problem
		if p == nil || p.Title != "the adapter cannot be started" || !strings.Contains(p.Detail, "/nowhere/at/all: no such file") {
			t.Errorf("it says %+v", p)
		}
	})
}

func TestHowAChildEndedIsSaidOfWhatItLeftInDoubt(t *testing.T) {
	t.Parallel()
	for signal, how := range map[string]string{"9": "signal: killed", "15": "signal: terminated"} {
		adapter := impatient(t, spec("complains and dies at a request", map[string]string{"SIGNAL": signal, "TOKEN": "token-9d41c07e"}))
		got := adapter.Dispatch(t.Context(), request(`{}`))
		if dispatchtest.Expect(t, got, dispatch.Ambiguous, "child_died"); got.Problem == nil || got.Problem.Title != "the adapter ended: "+how || got.Problem.Detail != "panic: lost [secret]" {
			t.Errorf("it says %+v", got.Problem)
		}
		next := adapter.Dispatch(t.Context(), request(`{}`))
		if dispatchtest.Expect(t, next, dispatch.NotSent, "child_down"); next.Problem == nil || *next.Problem != *got.Problem {
			t.Errorf("then it says %+v", next.Problem)
		}
	}
}

// A program whose stderr is discarded is quoted nowhere.
func TestADiscardedStderrIsNotKept(t *testing.T) {
	t.Parallel()
	adapter := impatient(t, spec("complains, then exits", map[string]string{"TOKEN": "token-9d41c07e"}, "stderr: discard"))
	if p := adapter.Dispatch(t.Context(), request(`{}`)).Problem; p == nil || p.Detail != "" || p.Title != "the adapter ended: exit status 3" {
		t.Errorf("it says %+v", p)
	}
}

func TestAChildMayPromiseMoreThanIsAssumed(t *testing.T) {
	t.Parallel()
	for _, hello := range []string{
		`{"protocol":[1,2],"name":"x","operations":{"open":"key_idempotent"}}`,
		`{"protocol":[7,1],"name":"x","operations":{"open":"naturally_idempotent"},"motto":"unknown fields are ignored"}`,
		`{"protocol":[1],"name":"x","operations":null}`,
	} {
		adapter := started(t, spec("says its hello, which is told", map[string]string{"HELLO": hello}))
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	}
}

func TestAChildThatFailsAfterTheRequestLeavesDoubt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ behaviour, says, class string }{
		"dies":                  {"dies at a request", "", "child_died"},
		"half an answer":        {"writes half an answer and dies", "", "child_died"},
		"a line without end":    {"writes without end", "", "line_too_long"},
		"no JSON":               {"says what it is told", "Traceback (most recent call last):", "protocol"},
		"an empty line":         {"says what it is told", "", "protocol"},
		"JSON that is no reply": {"says what it is told", "[]", "protocol"},
		"an unknown id":         {"says what it is told", `{"id":"x","outcome":"completed"}`, "protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			adapter := impatient(t, spec(test.behaviour, nil))
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(toJSON(test.says))), dispatch.Ambiguous, test.class)
		})
	}
}

func TestASecondAnswerEndsTheChildAndLeavesTheOthersInDoubt(t *testing.T) {
	t.Parallel()
	adapter := impatient(t, spec("answers the second twice", nil))
	results := make(chan dispatch.Result)
	for range 2 {
		go func() { results <- adapter.Dispatch(t.Context(), request(`{}`)) }()
	}
	second, first := <-results, <-results
	if second.Outcome != dispatch.Completed {
		second, first = first, second
	}
	dispatchtest.Expect(t, first, dispatch.Ambiguous, "protocol")
	if dispatchtest.Expect(t, second, dispatch.Completed, ""); string(second.Response) != "1" {
		t.Errorf("the second answer %s was taken for the first", second.Response)
	}
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "child_down")
}

func TestADeadChildIsReplacedAfterAWhile(t *testing.T) {
	t.Parallel()
	adapter := started(t, spec("dies, once", map[string]string{"MARK": filepath.Join(t.TempDir(), "died")}))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, "child_died")
	eventually(t, adapter)
}

func TestAnAnswerBeforeTheDeathCounts(t *testing.T) {
	t.Parallel()
	for range 20 {
		adapter := started(t, spec("answers at length, then dies", nil))
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	}
}

func TestAHungChildIsReplaced(t *testing.T) {
	t.Parallel()
	adapter := impatient(t, spec("answers only some", nil))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`true`)), dispatch.Completed, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { dispatchtest.Expect(t, adapter.Dispatch(ctx, request(`false`)), dispatch.Ambiguous, "timeout") })
	all.Go(func() {
		got := adapter.Dispatch(t.Context(), request(`false`)) // its own deadline is far away
		dispatchtest.Expect(t, got, dispatch.Ambiguous, "child_hung")
	})
	all.Wait()
}

func TestAChildThatReadsNothingHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	adapter := impatient(t, spec("hello, and reads no more", nil))
	large := toJSON(strings.Repeat("x", 1<<20)) // more than a pipe holds
	results := make(chan dispatch.Result)
	for range 5 {
		go func() { results <- adapter.Dispatch(t.Context(), request(large)) }()
	}
	outcomes := map[dispatch.Outcome]int{}
	for range 5 {
		got := <-results
		outcomes[got.Outcome]++
		if got.Outcome == dispatch.Ambiguous && got.ErrorClass != "child_stalled" || got.Outcome == dispatch.NotSent && got.ErrorClass != "child_down" {
			t.Errorf("%+v", got)
		}
	}
	if outcomes[dispatch.Ambiguous] != 1 || outcomes[dispatch.NotSent] != 4 {
		t.Errorf("one began to write, so %v is wrong", outcomes)
	}
}

func TestAChildThatClosesItsStdinIsReplaced(t *testing.T) {
	t.Parallel()
	adapter := impatient(t, spec("hello, and closes its stdin", nil))
	for t.Context().Err() == nil {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		got := adapter.Dispatch(ctx, request(`{}`)) // the first dispatch may come before the child closes stdin
		cancel()
		if got.Outcome == dispatch.NotSent && got.RetryAfter > 0 {
			return
		}
	}
}

func TestAChildThatForgetsManyRequestsIsReplacedThoughItAnswersOthers(t *testing.T) {
	t.Parallel()
	adapter := started(t, spec("answers only some", nil))
	forgotten := 0
	forget := func(count int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all sync.WaitGroup
		for range count {
			all.Go(func() {
				dispatchtest.Expect(t, adapter.Dispatch(ctx, request(`false`)), dispatch.Ambiguous, "cancelled")
			})
		}
		for forgotten += count; string(adapter.Dispatch(t.Context(), request(`true`)).Response) != strconv.Itoa(forgotten); {
		}
		cancel()
		all.Wait()
	}
	forget(1000)
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`true`)), dispatch.Completed, "")
	forget(1)
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`true`)), dispatch.NotSent, "child_down")
}

func TestALineThatWaitedForItsTurnInVainIsNotSent(t *testing.T) {
	t.Parallel()
	adapter := started(t, spec("answers one, and reads no more", nil))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`1`)), dispatch.Completed, "")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	large := toJSON(strings.Repeat("x", 1<<20))
	results := make(chan dispatch.Result)
	for range 2 {
		go func() { results <- adapter.Dispatch(ctx, request(large)) }()
	}
	outcomes := map[dispatch.Outcome]string{}
	for range 2 {
		got := <-results
		outcomes[got.Outcome] = got.ErrorClass
	}
	if outcomes[dispatch.Ambiguous] != "timeout" || outcomes[dispatch.NotSent] == "" {
		t.Errorf("%v", outcomes)
	}
}

func TestAGigabyteOfNoiseIsNotKept(t *testing.T) {
	t.Parallel()
	adapter := impatient(t, spec("writes without end", nil, "max_message: 65536"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, "line_too_long")
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("%d bytes more are held", grown)
	}
}

func TestCloseEndsAChildThatWillNotLeave(t *testing.T) {
	t.Parallel()
	adapter, err := exec.NewImpatient(spec("will not leave", nil), 100*time.Millisecond, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	if err := adapter.Close(); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("closed with %v", err)
	}
}

func TestWhatTheChildComplainsOfIsPassedOnWithinBounds(t *testing.T) {
	t.Parallel()
	var passed bytes.Buffer
	adapter, err := exec.NewImpatient(spec("complains", nil), 5*time.Second, &passed)
	if err != nil {
		t.Fatal(err)
	}
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	if err := adapter.Close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(passed.String(), "\n")
	if len(lines) != 4 || lines[0] != "desk: first [31m" || len(lines[1]) > 5000 || lines[2] != "desk: last" {
		t.Errorf("%d lines: %.200q", len(lines), lines)
	}
}

// A daemon that is killed cannot close its adapters.
func TestTheChildDiesWithTheDaemon(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux notifies a child of its parent's death")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	daemon := osexec.Command(os.Args[0])
	daemon.Env = append(os.Environ(), "BEHAVIOUR=daemon", "ADDRESS="+listener.Addr().String())
	stdout, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if said, _ := io.ReadAll(io.LimitReader(stdout, int64(len("completed")))); string(said) != "completed" {
		t.Fatalf("the daemon said %q", said)
	}
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
	_ = conn.SetReadDeadline(time.Now().Add(drainertest.Patience))
	if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the child lives on: %v", err)
	}
}

// beDaemon dispatches once and stays until it is killed.
func beDaemon() {
	adapter, err := exec.New(spec("is connected", map[string]string{"ADDRESS": os.Getenv("ADDRESS")}))
	if err != nil {
		panic(err)
	}
	got := adapter.Dispatch(context.Background(), request(`{}`))
	_, _ = os.Stdout.WriteString(string(got.Outcome))
	select {}
}
