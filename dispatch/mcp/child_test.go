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
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// The test binary plays the child, and the daemon that is killed.
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

// childServer is an MCP server on stdin and stdout. A folder tells it how to
// behave, and shows what it did.
type childServer struct{ folder string }

func (c *childServer) run() error {
	c.append("pids", strconv.Itoa(os.Getpid()))
	c.append("environments", strings.Join(os.Environ(), " "))
	if c.situation() == dispatchtest.Unreachable {
		return nil
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

// filter takes calls as the situation wants, and hands on everything else.
func (c *childServer) filter(into *io.PipeWriter) {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if os.Getenv("MCP_TEST_STAY") != "" {
				linger() // a server that does not care that nobody is there
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
		_, _ = into.Write(line)
	}
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
		os.Exit(1)
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

// linger waits to be killed, as a process that has something to wait for.
func linger() { time.Sleep(time.Hour) }

// deaf is a child that reads no more.
const deaf dispatchtest.Situation = "deaf"

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

// nursery is the parent's side of the folder.
type nursery struct {
	folder string
	mu     sync.Mutex
}

func newNursery(t *testing.T) *nursery {
	t.Helper()
	return &nursery{folder: t.TempDir()}
}

// settings are JSON, which YAML contains.
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
