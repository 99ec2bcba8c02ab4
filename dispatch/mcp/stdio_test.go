package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/mcp"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestAChildInheritsNothingButThePath(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://canary")
	n := newNursery(t)
	adapter := adapterFor(t, n.settings(t, nil), "{}", dispatch.KeyIdempotent)
	if got := adapter.Dispatch(t.Context(), intent("1")); got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	var names []string
	for _, variable := range strings.Fields(n.lines("environments")[0]) {
		name, _, _ := strings.Cut(variable, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"GORACE", "MCP_TEST_FOLDER", "MCP_TEST_ROLE", "PATH", "TOKEN"}) {
		t.Errorf("the child has %v", names)
	}
}

func TestAChildIsStartedOnceAndEndsWithTheAdapter(t *testing.T) {
	t.Parallel()
	n := newNursery(t)
	adapter, err := mcp.New(specFor(n.settings(t, nil), "{}", dispatch.KeyIdempotent))
	if err != nil {
		t.Fatal(err)
	}
	if len(n.lines("pids")) != 0 {
		t.Error("New started a child")
	}
	for step := range 3 {
		if got := adapter.Dispatch(t.Context(), intent(fmt.Sprint(step))); got.Outcome != dispatch.Completed || got.HTTPStatus != 0 {
			t.Fatalf("got %+v", got)
		}
	}
	if err := adapter.Close(); err != nil {
		t.Error(err)
	}
	if pids := n.pids(t); len(pids) != 1 || syscall.Kill(pids[0], 0) != syscall.ESRCH {
		t.Errorf("children %v, the first still there: %t", pids, syscall.Kill(pids[0], 0) == nil)
	}
}

func TestADeadChildIsStartedAgain(t *testing.T) {
	t.Parallel()
	n := newNursery(t)
	adapter := adapterFor(t, n.settings(t, nil), "{}", dispatch.KeyIdempotent)
	adapter.Dispatch(t.Context(), intent("1"))
	n.enter(t, dispatchtest.Severing)
	if got := adapter.Dispatch(t.Context(), intent("2")); got.Outcome != dispatch.Ambiguous || got.ErrorClass != "reset" {
		t.Errorf("a child that died of the call: %+v", got)
	}
	n.enter(t, dispatchtest.Answering)
	drainertest.Eventually(t, "a new child answers", func() bool {
		return adapter.Dispatch(t.Context(), intent("3")).Outcome == dispatch.Completed
	})
}

func TestAChildThatCannotBeStartedIsNotSent(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{"no such program": "/no/such/program", "no server": "true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			adapter := adapterFor(t, "{command: ["+command+"]}", "{}", dispatch.KeyIdempotent)
			got := adapter.Dispatch(t.Context(), intent("1"))
			if got.Outcome != dispatch.NotSent || got.ErrorClass == "" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A message is a line, whatever its payload looks like.
func TestAPayloadWithLineBreaksIsOneLine(t *testing.T) {
	t.Parallel()
	n := newNursery(t)
	request := intent("1")
	request.Payload = json.RawMessage("{\n  \"amount\": 1,\r\n  \"memo\": \"a\\nb\"\n}\n")
	got := adapterFor(t, n.settings(t, nil), "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), request)
	if got.Outcome != dispatch.Completed || len(n.calls()) != 1 {
		t.Errorf("%d calls, %+v", len(n.calls()), got)
	}
}

// Restarts come slower and slower: a child that dies of every call must not
// keep the machine busy.
func TestAChildThatKeepsDyingRests(t *testing.T) {
	t.Parallel()
	n := newNursery(t)
	n.enter(t, dispatchtest.Severing)
	adapter := adapterFor(t, n.settings(t, nil), "{}", dispatch.KeyIdempotent)
	start := time.Now()
	drainertest.Eventually(t, "four children have died", func() bool {
		adapter.Dispatch(t.Context(), intent("1"))
		return len(n.lines("pids")) == 4
	})
	if took := time.Since(start); took < 300*time.Millisecond { // 0 + 100 + 200
		t.Errorf("four children in %s", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := adapter.Dispatch(ctx, intent("last")); got.Outcome != dispatch.NotSent {
		t.Errorf("got %+v", got)
	}
}

// A child that stops reading blocks whoever writes to it.
func TestAChildThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	n := newNursery(t)
	adapter := adapterFor(t, n.settings(t, nil), "{}", dispatch.KeyIdempotent)
	adapter.Dispatch(t.Context(), intent("0"))
	n.enter(t, deaf)
	ctx, cancel := context.WithCancel(t.Context())
	go adapter.Dispatch(ctx, intent("1")) // it reads no further than this
	drainertest.Eventually(t, "the child is deaf", func() bool { return len(n.calls()) == 2 })
	cancel()
	large := intent("2")
	large.Payload = json.RawMessage(`{"text":"` + strings.Repeat("x", 200<<10) + `"}`)
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got := adapter.Dispatch(ctx, large); got.Outcome != dispatch.Ambiguous || got.ErrorClass != "timeout" {
		t.Errorf("half a line: %+v", got)
	}
	n.enter(t, dispatchtest.Answering)
	drainertest.Eventually(t, "a new child answers", func() bool {
		return adapter.Dispatch(t.Context(), intent("3")).Outcome == dispatch.Completed
	})
}

// playDaemon dispatches once and then waits to be killed.
func playDaemon() {
	adapter, err := mcp.New(specFor(os.Getenv("MCP_TEST_SETTINGS"), "{}", dispatch.KeyIdempotent))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(adapter.Dispatch(context.Background(), intent("1")).Outcome)
	linger()
}

func TestAChildDiesWithAKilledDaemon(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a child of its parent's death")
	}
	t.Parallel()
	n := newNursery(t)
	daemon := exec.Command(os.Args[0])
	daemon.Env = append(os.Environ(), "MCP_TEST_ROLE=daemon", "MCP_TEST_SETTINGS="+n.settings(t, map[string]any{
		"env": map[string]string{"MCP_TEST_ROLE": "server", "MCP_TEST_FOLDER": n.folder, "MCP_TEST_STAY": "yes"},
	}))
	output, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill() })
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != string(dispatch.Completed) {
		t.Fatalf("the daemon said %q, %v", line, err)
	}
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait()
	awaitGone(t, n.pids(t)[0])
}
