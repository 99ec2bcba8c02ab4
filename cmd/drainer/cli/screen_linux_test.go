package cli

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal returns one end of a pseudo-terminal of this width.
func terminal(t *testing.T, columns uint16) *os.File {
	t.Helper()
	other, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { other.Close() })
	number, err := unix.IoctlGetInt(int(other.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(other.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := unix.IoctlSetWinsize(int(file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestATerminalSaysItsWidthAndGetsColoursUnlessTheyAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		noColor, term string
		width         uint16
		columns       int
		colours       bool
	}{
		"wide":                   {"", "xterm", 132, 132, true},
		"of unknown width":       {"", "xterm", 0, 80, true},
		"with NO_COLOR":          {"1", "xterm", 132, 132, false},
		"that knows no sequence": {"", "dumb", 132, 132, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_COLOR", test.noColor)
			t.Setenv("TERM", test.term)
			if s := screenOf(terminal(t, test.width)); s.columns != test.columns || s.colours != test.colours {
				t.Errorf("%d columns, colours: %t; want %d, %t", s.columns, s.colours, test.columns, test.colours)
			}
		})
	}
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if s := screenOf(file); s.columns != 0 || s.colours {
		t.Errorf("a file: %d columns, colours: %t", s.columns, s.colours)
	}
}
