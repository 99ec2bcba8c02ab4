package pages

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/agentoutbox/drainer/compensations/jobs"
)

const (
	// perLook bounds what a channel has to do: a thousand incidents of one
	// outage must neither flood a pager nor, while it is down, the workers. Looks
	// that overlap may each bring as many.
	perLook = 10
	// maxSends ends a job, not the page: a later look starts another, and pages
	// that a channel refuses make room meanwhile.
	maxSends = 3
)

// lookArgs is the leader's job that finds out who is to be told what.
type lookArgs struct{}

func (lookArgs) Kind() string { return "page_look" }

// InsertOpts leave out retries: the next look comes soon.
func (lookArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

type lookWorker struct {
	river.WorkerDefaults[lookArgs]
	pager *Pager
}

// Work takes its steps whether or not the one before failed: not being able to
// notice one thing must not keep another from being told.
func (w *lookWorker) Work(ctx context.Context, _ *river.Job[lookArgs]) error {
	p, told := w.pager, w.pager.audience.Load()
	errs := []error{p.store.notice(ctx, told.providers)}
	for _, channel := range told.channels {
		errs = append(errs, p.enqueue(ctx, channel))
	}
	err := errors.Join(errs...)
	if err != nil && ctx.Err() == nil {
		p.log.Error("cannot look after incidents; the next look will try again", "error", err)
	}
	return err
}

// enqueue inserts a job for each page, unless there is one that has not ended.
func (p *Pager) enqueue(ctx context.Context, channel Channel) error {
	underWay, err := p.store.underWay(ctx, channel)
	if err != nil || underWay >= perLook {
		return err
	}
	due, err := p.store.due(ctx, channel, perLook-underWay)
	if err != nil || len(due) == 0 {
		return err
	}
	inserts := make([]river.InsertManyParams, len(due))
	for i, page := range due {
		inserts[i] = river.InsertManyParams{Args: sendArgs{channel.Name, page.IncidentID, page.Generation}}
	}
	if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertMany(ctx, inserts); err != nil {
		return fmt.Errorf("insert page jobs: %w", err)
	}
	return nil
}

// sendArgs is the job that tells one channel how one opening of an incident
// stands.
type sendArgs struct {
	Channel    string `json:"channel"`
	IncidentID int64  `json:"incident_id"`
	Generation int    `json:"generation"`
}

func (sendArgs) Kind() string { return "page_send" }

// InsertOpts let one job at a time tell a channel of an incident.
func (sendArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue:       jobs.QueuePages,
		MaxAttempts: maxSends,
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRunning,
			rivertype.JobStateRetryable, rivertype.JobStateScheduled,
		}},
	}
}
