package pages

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Another replica may have counted since.
func TestACountThatIsOldIsNotShown(t *testing.T) {
	t.Parallel()
	gauge := newOpenGauge()
	gauge.set(map[Kind]int{OutcomeUnknown: 1})
	for age, want := range map[time.Duration]int{0: len(Kinds()), sampleLife + time.Second: 0} {
		gauge.countedAt = time.Now().Add(-age)
		shown := make(chan prometheus.Metric, 100)
		gauge.Collect(shown)
		if len(shown) != want {
			t.Errorf("after %v it shows %d series, want %d", age, len(shown), want)
		}
	}
}
