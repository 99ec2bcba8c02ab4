package demo

import (
	"bytes"
	"strings"
	"testing"
)

func TestScreenRedrawsItsBlockOnATerminalOnly(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{true, false} {
		var out bytes.Buffer
		screen := NewScreen(&out, terminal)
		screen.Show(Progress{Wanted: 100, Enqueued: 50})
		screen.Say("half-way")
		screen.Show(Progress{Wanted: 100, Enqueued: 100})
		screen.Close()
		if redrawn := strings.Contains(out.String(), "\x1b["); redrawn != terminal {
			t.Errorf("terminal %t: redrawn %t", terminal, redrawn)
		}
		if !strings.Contains(out.String(), "half-way\n") || !strings.Contains(out.String(), "50") {
			t.Errorf("terminal %t: said %q", terminal, out.String())
		}
	}
}
