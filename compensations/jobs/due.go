package jobs

import (
	"context"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// dueByDatabase has a job that is to run at once be due by the database's clock.
// River would take that of the process that inserts it: where that one is ahead,
// nobody works the job until the database's has caught up.
type dueByDatabase struct{ river.MiddlewareDefaults }

var _ rivertype.JobInsertMiddleware = (*dueByDatabase)(nil)

func (*dueByDatabase) InsertMany(ctx context.Context, inserts []*rivertype.JobInsertParams,
	insert func(context.Context) ([]*rivertype.JobInsertResult, error),
) ([]*rivertype.JobInsertResult, error) {
	for _, job := range inserts {
		if job.State == rivertype.JobStateAvailable {
			job.CreatedAt, job.ScheduledAt = &time.Time{}, &time.Time{} // for the zero time, River's SQL has now()
		}
	}
	return insert(ctx)
}
