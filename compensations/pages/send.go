package pages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/internal/failpoint"

	"github.com/riverqueue/river"
)

// sendTimeout bounds a job: far more than the channel's answer and the database
// take together.
const sendTimeout = 30 * time.Second

// recordTimeout lets a page that was delivered be recorded during a shutdown.
const recordTimeout = 5 * time.Second

type sendWorker struct {
	river.WorkerDefaults[sendArgs]
	pager *Pager
}

// Timeout is how long a page may be under way.
func (w *sendWorker) Timeout(*river.Job[sendArgs]) time.Duration { return sendTimeout }

// NextRetry is the settings' policy.
func (w *sendWorker) NextRetry(job *river.Job[sendArgs]) time.Time {
	return time.Now().Add(w.pager.settings.Retry(job.Attempt))
}

// Work sends what the tables say now, and nothing if somebody has sent it, or
// acknowledged it, meanwhile.
func (w *sendWorker) Work(ctx context.Context, job *river.Job[sendArgs]) error {
	channel, configured := w.pager.audience.Load().channel(job.Args.Channel)
	if !configured {
		return nil // a process with another configuration knows it, and looks again
	}
	page, due, err := w.pager.store.dueOf(ctx, channel, job.Args.IncidentID, job.Args.Generation)
	if err != nil || !due {
		return err
	}
	return w.pager.deliver(ctx, channel, page)
}

func (p *Pager) deliver(ctx context.Context, channel Channel, page Page) error {
	if err := p.store.begin(ctx, channel.Name, page); err != nil {
		return err
	}
	if err := channel.Sender.Send(ctx, page); err != nil {
		p.metrics.sent(channel.Name, outcomeOf(err))
		p.log.Warn("a page was not delivered; it will be tried again", "channel", channel.Name,
			"incident_id", page.IncidentID, "intent_id", page.IntentID, "error", err)
		return fmt.Errorf("page through %s: %w", channel.Name, err)
	}
	failpoint.PageSent.Hit()
	p.metrics.sent(channel.Name, delivered)
	p.log.Info("paged", "channel", channel.Name, "incident_id", page.IncidentID, "intent_id", page.IntentID,
		"kind", string(page.Kind), "state", string(page.State))
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	return p.store.told(recording, channel.Name, page)
}

func outcomeOf(err error) outcome {
	if errors.As(err, new(*RefusedError)) {
		return refused
	}
	return unreached
}
