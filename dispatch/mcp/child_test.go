package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/mcp"
	"github.com/agentoutbox/drainer/drainertest"
)

// The test binary is also the child, and the daemon that a test kills.
func TestMain(m *testing.M) {
	switch os.Getenv("MCP_TEST_ROLE") {
	case "server":
		if err := (&childServer{folder: os.Getenv("MCP_TEST_FOLDER")}).run(); err != nil {
			log.Fatal(err)
		}
	case "daemon":
		playDaemon()
	default:
		drainertest.Main(m)
	}
}

// childServer is an MCP server on stdin and stdout. Files in a folder set its behaviour, and it records its calls
// there.
type childServer struct{ folder string }

func (c *childServer) run() error {
	c.append("pids", strconv.Itoa(os.Getpid()))
	c.append("environments", strings.Join(os.Environ(), " "))
	switch c.situation() {
	case dispatchtest.Unreachable:
		return nil
	case complaining:
		c.complain()
	case slow:
		time.Sleep(1500 * time.Millisecond)
	}
	till := newTill()
	pay := func(ctx context.Context, request *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		key, _ := request.Params.Meta[keyMeta].(string)
		c.append("executions", key)
		return till.pay(ctx, request)
	}
	toServer, fromParent := io.Pipe()
	go c.filter(fromParent)
	return newServer(pay).Run(context.Background(), &sdk.IOTransport{Reader: toServer, Writer: os.Stdout})
}

// filter handles calls as the situation demands, and passes all other messages on.
func (c *childServer) filter(into *io.PipeWriter) {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if os.Getenv("MCP_TEST_STAY") != "" {
				linger() // a server that does not end with its client
			}
			_ = into.Close()
			return
		}
		if _, isCall := readCall(line); isCall {
			c.append("calls", string(bytes.TrimSpace(line)))
			if c.handles(line) {
				continue
			}
		}
		if c.isSilentTo(line) {
			continue
		}
		_, _ = into.Write(line)
	}
}

// isSilentTo reports whether the child leaves a line unanswered. An older server does not know server/discover.
func (c *childServer) isSilentTo(line []byte) bool {
	if !bytes.Contains(line, []byte(`"server/discover"`)) {
		return false
	}
	c.append("discoveries", "asked")
	return os.Getenv("MCP_TEST_OLDER") != ""
}

func (c *childServer) handles(line []byte) bool {
	var request struct {
		ID json.RawMessage `json:"id"`
	}
	_ = json.Unmarshal(line, &request)
	switch c.situation() {
	case dispatchtest.Throttling:
		fmt.Println(fault(request.ID, throttlingCode, "slow down"))
	case dispatchtest.Rejecting:
		fmt.Println(fault(request.ID, -32602, "no such account"))
	case dispatchtest.Busy:
		fmt.Println(fault(request.ID, busyCode, "still at it"))
	case dispatchtest.Severing:
		c.complain()
	case dispatchtest.Silent:
	case deaf:
		linger()
	case dispatchtest.Babbling:
		fmt.Println("listening on port 3000")
	default:
		return false
	}
	return true
}

const (
	throttlingCode = -32029
	busyCode       = -32010
)

// complain ends the child with the output of an exception.
func (c *childServer) complain() {
	fmt.Fprintf(os.Stderr, "Traceback:\nKeyError: %s\n\n", os.Getenv("TOKEN"))
	os.Exit(3)
}

// linger waits to be killed. The runtime does not take a sleep for a deadlock.
func linger() { time.Sleep(time.Hour) }

const (
	deaf        dispatchtest.Situation = "deaf"        // a child that reads no more
	slow        dispatchtest.Situation = "slow"        // one that takes longer than a second to start
	complaining dispatchtest.Situation = "complaining" // one that ends instead of serving
)

func (c *childServer) append(file, line string) {
	f, err := os.OpenFile(filepath.Join(c.folder, file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(line + "\n"); err != nil {
		log.Fatal(err)
	}
}

func (c *childServer) situation() dispatchtest.Situation {
	text, err := os.ReadFile(filepath.Join(c.folder, "situation"))
	if err != nil {
		return dispatchtest.Answering
	}
	return dispatchtest.Situation(text)
}

// nursery is a folder through which a test controls its children.
type nursery struct {
	folder string
	mu     sync.Mutex
}

func newNursery(t *testing.T) *nursery {
	t.Helper()
	return &nursery{folder: t.TempDir()}
}

// settings returns JSON, which is valid YAML.
func (n *nursery) settings(t *testing.T, more map[string]any) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]any{
		"command": []string{program},
		"env":     map[string]string{"MCP_TEST_ROLE": "server", "MCP_TEST_FOLDER": n.folder, "TOKEN": token, "GORACE": "atexit_sleep_ms=0"},
	}
	for name, value := range more {
		settings[name] = value
	}
	text, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (n *nursery) lines(file string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	text, err := os.ReadFile(filepath.Join(n.folder, file))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func (n *nursery) calls() (messages []dispatchtest.Message) {
	for _, line := range n.lines("calls") {
		message, _ := readCall([]byte(line))
		messages = append(messages, message)
	}
	return messages
}

func (n *nursery) enter(t *testing.T, situation dispatchtest.Situation) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.folder, "situation"), []byte(situation), 0o600); err != nil {
		t.Fatal(err)
	}
	if situation == dispatchtest.Unreachable {
		n.kill(t)
	}
}

func (n *nursery) pids(t *testing.T) (pids []int) {
	t.Helper()
	for _, line := range n.lines("pids") {
		pid, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// kill ends the newest child and waits until it is gone.
func (n *nursery) kill(t *testing.T) {
	t.Helper()
	pids := n.pids(t)
	if len(pids) == 0 {
		return
	}
	_ = syscall.Kill(pids[len(pids)-1], syscall.SIGKILL) // it may be gone already
	awaitGone(t, pids[len(pids)-1])
}

func awaitGone(t *testing.T, pid int) {
	t.Helper()
	drainertest.Eventually(t, "the child is gone", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
}

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
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent("2")), dispatch.Ambiguous, "reset")
	n.enter(t, dispatchtest.Answering)
	drainertest.Eventually(t, "a new child answers", func() bool {
		return adapter.Dispatch(t.Context(), intent("3")).Outcome == dispatch.Completed
	})
}

// The start may even take longer than the timeout of a dispatch.
func TestAChildThatStartsSlowlyIsWaitedFor(t *testing.T) {
	t.Parallel()
	n := newNursery(t)
	n.enter(t, slow)
	spec := specFor(n.settings(t, nil), "{}", dispatch.KeyIdempotent)
	spec.Timeout = time.Second
	adapter := build(t, spec)
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent("1")), dispatch.NotSent, "timeout")
	drainertest.Eventually(t, "the child serves", func() bool {
		return adapter.Dispatch(t.Context(), intent("2")).Outcome == dispatch.Completed
	})
	if starts, discoveries := len(n.lines("pids")), len(n.lines("discoveries")); starts != 1 || discoveries != 1 {
		t.Errorf("%d children were started and asked %d times", starts, discoveries)
	}
}

func TestASlowStartDoesNotProveThatAServerIsOlder(t *testing.T) {
	t.Parallel()
	n := newNursery(t)
	n.enter(t, slow)
	adapter := adapterFor(t, n.settings(t, nil), "{}", dispatch.KeyIdempotent)
	adapter.BePatient(time.Second)
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent("1")), dispatch.Completed, "")
	before := len(n.lines("discoveries"))
	n.enter(t, dispatchtest.Answering)
	n.kill(t)
	drainertest.Eventually(t, "another child serves", func() bool {
		return adapter.Dispatch(t.Context(), intent("2")).Outcome == dispatch.Completed
	})
	if len(n.lines("discoveries")) == before {
		t.Error("it was not asked again")
	}
}

func TestAChildThatCannotBeStartedIsNotSent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ command, title, detail string }{
		"no such program": {"/no/such/program", "the server cannot be started", "/no/such/program: no such file or directory"},
		"no server":       {"true", "the server ended: exit status 0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := adapterFor(t, "{command: ["+test.command+"]}", "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
			dispatchtest.Expect(t, got, dispatch.NotSent, "child_start")
			if p := got.Problem; p == nil || p.Title != test.title || !strings.HasSuffix(p.Detail, test.detail) {
				t.Errorf("it says %+v, want %s: %s", p, test.title, test.detail)
			}
		})
	}
}

// The problem has the child's last line, without the secrets of its environment.
func TestHowAChildEndedIsSaid(t *testing.T) {
	t.Parallel()
	want := dispatch.Problem{Title: "the server ended: exit status 3", Detail: "KeyError: [secret]"}
	check := func(t *testing.T, got dispatch.Result, outcome dispatch.Outcome, class string) {
		t.Helper()
		if dispatchtest.Expect(t, got, outcome, class); got.Problem == nil || *got.Problem != want {
			t.Errorf("it says %+v, want %+v", got.Problem, want)
		}
	}
	t.Run("at the start, and until the next", func(t *testing.T) {
		t.Parallel()
		n := newNursery(t)
		n.enter(t, complaining)
		spec := specFor(n.settings(t, nil), "{}", dispatch.KeyIdempotent)
		check(t, build(t, spec).Dispatch(t.Context(), intent("1")), dispatch.NotSent, "child_start")
		spec.Timeout = 500 * time.Millisecond
		adapter := build(t, spec)
		var last dispatch.Result
		drainertest.Eventually(t, "the child rests for longer than a dispatch has", func() bool {
			last = adapter.Dispatch(t.Context(), intent("1"))
			return last.ErrorClass == "child_backoff"
		})
		check(t, last, dispatch.NotSent, "child_backoff")
	})
	t.Run("at a call", func(t *testing.T) {
		t.Parallel()
		n := newNursery(t)
		n.enter(t, dispatchtest.Severing)
		check(t, adapterFor(t, n.settings(t, nil), "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1")), dispatch.Ambiguous, "reset")
	})
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

// The pauses between restarts grow, because a child that dies at every call must not keep the machine busy.
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

// A child that stops reading blocks the goroutine that writes to it.
func TestAChildThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	n := newNursery(t)
	adapter := adapterFor(t, n.settings(t, nil), "{}", dispatch.KeyIdempotent)
	adapter.Dispatch(t.Context(), intent("0"))
	n.enter(t, deaf)
	ctx, cancel := context.WithCancel(t.Context())
	go adapter.Dispatch(ctx, intent("1")) // the child reads nothing after this call
	drainertest.Eventually(t, "the child is deaf", func() bool { return len(n.calls()) == 2 })
	cancel()
	large := intent("2")
	large.Payload = json.RawMessage(`{"text":"` + strings.Repeat("x", 200<<10) + `"}`)
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	dispatchtest.Expect(t, adapter.Dispatch(ctx, large), dispatch.Ambiguous, "timeout")
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
		t.Skip("only Linux notifies a child of its parent's death")
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
