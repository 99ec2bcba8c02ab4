package demo

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestATripEndsAsFarBackAsItCanBeTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number int
		saga   string
		wants  []string // of its steps
	}{
		{0, "", []string{"completed", "completed", "completed", "completed", "completed"}},
		{1, "compensated", []string{"compensated", "compensated", "compensated", "compensated", "failed"}},
		{ferryTrip, "compensation_failed", []string{"completed", "completed", "compensation_failed", "compensated", "failed"}},
	} {
		trip := tripNumber(c.number)
		var endings []string
		for _, step := range append(trip.bookings(), trip.payment()) {
			endings = append(endings, trip.ending(step.tuple.StepID))
		}
		if trip.saga() != c.saga || !slices.Equal(endings, c.wants) {
			t.Errorf("trip %d: %q, %q, want %q, %q", c.number, trip.saga(), endings, c.saga, c.wants)
		}
		if len(endings) != stepsOfTrip {
			t.Errorf("trip %d takes %d steps, want %d", c.number, len(endings), stepsOfTrip)
		}
	}
}

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
