package nemesis_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

// mine is a failpoint that goes off at a hit of up to within, or at each.
type mine struct {
	point  failpoint.Point
	action string
	within int // 0: each
}

// Points that rows pass by the second go off later than those of rare moments.
var minefield = []mine{
	{failpoint.ClaimCommitted, "kill", 10},
	{failpoint.ClaimCommitted, "stop", 10},
	{failpoint.BeforeSend, "kill", 10},
	{failpoint.BeforeSend, "hold", 10},
	{failpoint.AfterReply, "kill", 10},
	{failpoint.AfterReply, "stop", 10},
	{failpoint.SettleCommitted, "kill", 10},
	{failpoint.SettleCommitted, "hold", 10},
	{failpoint.TurnReply, "fail", 20},
	{failpoint.TurnReply, "fail", 20},
	{failpoint.Heartbeat, "fail", 0},
	{failpoint.ClaimsLocked, "kill", 2},
	{failpoint.ClaimsRead, "kill", 2},
	{failpoint.SagaLocked, "kill", 5},
	{failpoint.SagaLocked, "stop", 5},
	{failpoint.UndoWritten, "kill", 3},
	{failpoint.PageSent, "kill", 3},
}

// mines are laid for the daemons to come, until there are to be no more.
type mines struct {
	seed      uint64
	chronicle *chronicle
	swept     atomic.Bool

	mu    sync.Mutex
	lives map[string]uint64 // of each replica, so far
}

func newMines(seed uint64, chronicle *chronicle) *mines {
	return &mines{seed: seed, chronicle: chronicle, lives: map[string]uint64{}}
}

// next is for a replica's next daemon; two thirds of them get one.
func (m *mines) next(replica string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lives[replica]++
	random := rand.New(rand.NewPCG(m.seed, hashed(replica)+m.lives[replica]))
	if m.swept.Load() || random.IntN(3) == 0 {
		return ""
	}
	mine := minefield[random.IntN(len(minefield))]
	if mine.within == 0 {
		return fmt.Sprintf("%s=%s@*", mine.point, mine.action)
	}
	return fmt.Sprintf("%s=%s@%d", mine.point, mine.action, 1+random.IntN(mine.within))
}

// wentOff counts, and lets what stopped or waits go on: suspended for longer
// than its lease, but not for so long that its rows were looked up in vain.
func (m *mines) wentOff(daemon *program.Daemon, line string) {
	m.chronicle.note(failpoints, strings.TrimPrefix(line, "failpoint "), nil)
	switch {
	case strings.HasSuffix(line, " stop"):
		time.AfterFunc(suspension, func() { _ = daemon.Send(syscall.SIGCONT) })
	case strings.HasSuffix(line, " hold"):
		time.AfterFunc(suspension, func() { _ = daemon.Send(syscall.SIGUSR1) })
	}
}
