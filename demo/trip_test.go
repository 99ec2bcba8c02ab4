package demo

import (
	"slices"
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
