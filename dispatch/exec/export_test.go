package exec

import (
	"io"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// NewImpatient is New with all patience cut to the given time.
func NewImpatient(spec dispatch.Spec, patient time.Duration, stderr io.Writer) (*Adapter, error) {
	return build(spec, patience{stalled: patient, silent: patient, leaving: patient, drained: patient}, stderr)
}
