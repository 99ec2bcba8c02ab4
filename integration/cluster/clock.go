package cluster

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/internal/throwaway"
)

//go:embed clock/clock.c
var clockSource string

// Clock is the time of day as one server sees it: now(), clock_timestamp(),
// every default and every timer. It goes as fast as any other.
type Clock struct {
	t      testing.TB
	offset string // path of the file that the server's processes share
}

// NewClock shows the real time. The test is skipped where no C compiler makes
// the library that stands before the server's own.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	folder, err := os.MkdirTemp("", "drainer-clock-") // a t.TempDir is closed to the server's owner
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	c := &Clock{t: t, offset: filepath.Join(folder, "offset")}
	c.SetOff(0)
	source := filepath.Join(folder, "clock.c")
	if err := os.WriteFile(source, []byte(clockSource), 0o644); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-O1", "-o", c.library(), source).CombinedOutput(); err != nil {
		t.Skipf("no clock can be built here: %v\n%s", err, said)
	}
	return c
}

// Of is the option of the server whose clock this is.
func (c *Clock) Of() throwaway.Option {
	return throwaway.WithEnvironment("LD_PRELOAD="+c.library(), "CLOCK_OFFSET="+c.offset)
}

// SetOff makes the clock jump to that much after the real time, or before it.
func (c *Clock) SetOff(by time.Duration) {
	c.t.Helper()
	file, err := os.OpenFile(c.offset, os.O_CREATE|os.O_WRONLY, 0o644) // not truncated: the server has it in its memory
	if err != nil {
		c.t.Fatal(err)
	}
	defer file.Close()
	if err := binary.Write(file, binary.NativeEndian, by.Microseconds()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Clock) library() string { return filepath.Join(filepath.Dir(c.offset), "clock.so") }
