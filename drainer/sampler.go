package drainer

import (
	"context"
	"time"
)

const (
	sampleInterval = 15 * time.Second
	// reminderInterval spaces the warnings of what only a human can end.
	reminderInterval = time.Minute
)

// sample keeps the backlog's gauges fresh. A sample that fails leaves the last
// values standing: the gauges' staleness is the database's to alarm.
func (o *observer) sample(ctx context.Context, store backlogStore) {
	var last Backlog
	var reminded time.Time
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, turnTimeout)
		backlog, err := store.Backlog(bounded, last.Until)
		cancel()
		switch {
		case err == nil:
			o.show(backlog, last)
			last = backlog
			if time.Since(reminded) >= reminderInterval && o.remind(backlog) {
				reminded = time.Now()
			}
		case ctx.Err() == nil:
			o.log.Warn("cannot sample the backlog; its gauges are stale", "error", err)
		}
		pause(ctx, sampleInterval)
	}
}

// show heeds one configuration throughout: what it has set of a provider that
// is not configured any more is concealed afterwards.
func (o *observer) show(now, last Backlog) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, backlog := range o.byLabel(now.Providers) {
		o.metrics.rows.WithLabelValues(name, "pending").Set(float64(backlog.Pending))
		o.metrics.rows.WithLabelValues(name, "in_progress").Set(float64(backlog.InProgress))
		o.metrics.dueRows.WithLabelValues(name).Set(float64(backlog.Due))
		o.metrics.oldestDueAge.WithLabelValues(name).Set(backlog.OldestDueAge.Seconds())
		o.metrics.oldestInProgress.WithLabelValues(name).Set(backlog.OldestInProgressAge.Seconds())
		o.metrics.duplicates.WithLabelValues(name).Add(float64(backlog.Duplicates))
	}
	if last.Until.IsZero() {
		return // what happened before this process started is no increase
	}
	collided := max(0, now.Collisions.Total-last.Collisions.Total)
	o.metrics.collisions.WithLabelValues(o.label(now.Collisions.LastProvider)).Add(float64(collided))
}

// remind warns of rows that no lane of this process looks at. Their provider is
// a part of a key, so it is not named.
func (o *observer) remind(backlog Backlog) bool {
	waiting := o.byLabel(backlog.Providers)[unconfigured].Pending
	if waiting > 0 {
		o.log.Warn("rows wait for a provider that is not configured here; drainer status names it", "rows", waiting)
	}
	return waiting > 0
}

// byLabel has an entry for every configured provider, so that an emptied queue
// shows as zero, and one for all the others together.
func (o *observer) byLabel(providers []ProviderBacklog) map[string]ProviderBacklog {
	labelled := map[string]ProviderBacklog{unconfigured: {}}
	for name := range o.configured() {
		labelled[name] = ProviderBacklog{}
	}
	for _, backlog := range providers {
		sum := labelled[o.label(backlog.Provider)]
		sum.Pending += backlog.Pending
		sum.Due += backlog.Due
		sum.InProgress += backlog.InProgress
		sum.Duplicates += backlog.Duplicates
		sum.OldestDueAge = max(sum.OldestDueAge, backlog.OldestDueAge)
		sum.OldestInProgressAge = max(sum.OldestInProgressAge, backlog.OldestInProgressAge)
		labelled[o.label(backlog.Provider)] = sum
	}
	return labelled
}

func (o *observer) label(provider string) string {
	if _, configured := o.configured()[provider]; configured {
		return provider
	}
	return unconfigured
}
