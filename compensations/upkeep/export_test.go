package upkeep

import (
	"context"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// Hurry makes slices of one transaction each, and transactions of a few looks.
func (u *Upkeep) Hurry(looks int) { u.pace = pace{looks: looks, slice: time.Nanosecond} }

// Work takes the slice of a job with that metadata.
func (u *Upkeep) Work(ctx context.Context, metadata string) error {
	job := &river.Job[pruneArgs]{JobRow: &rivertype.JobRow{Metadata: []byte(metadata)}}
	return (&pruneWorker{upkeep: u}).Work(ctx, job)
}

// Rest pauses between batches.
var Rest = rest
