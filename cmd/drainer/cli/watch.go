package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/migrations"
)

const (
	lookEvery   = time.Second
	lookTimeout = 5 * time.Second // so that a connection that hangs is given up
	ratesOver   = 10              // looks
)

// glance is one look at the outbox.
type glance struct {
	At time.Time `json:"at"`
	operator.Overview
	operator.Rates
}

// watcher looks again and again, over one connection while it lasts.
type watcher struct {
	url     string
	console *operator.Console   // nil while there is none
	earlier []operator.Counters // the oldest first
}

// watch ends without an error when it is interrupted. What is wrong at the
// first look is wrong with the command; later it is news.
func (o *options) watch(command *cobra.Command) error {
	ctx := command.Context()
	url, err := o.findDatabase(command)
	if err != nil {
		return err
	}
	w := &watcher{url: url}
	defer w.disconnect(ctx)
	view := newView(command.OutOrStdout(), o.output)
	defer view.leave()
	for first := true; ; first = false {
		began := time.Now()
		seen, err := w.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (first || errors.Is(err, migrations.ErrBehind)):
			return err
		case err != nil:
			err = view.lost(time.Now(), err)
		default:
			err = view.show(seen)
		}
		if err != nil {
			return fmt.Errorf("printing the status: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause(time.Since(began))):
		}
	}
}

// pause keeps the looks to a quarter of the time of a database that is slow.
func pause(took time.Duration) time.Duration { return max(lookEvery-took, 3*took) }

func (w *watcher) look(ctx context.Context) (glance, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	seen, err := w.tryLook(ctx)
	if err != nil {
		w.disconnect(ctx)
	}
	return seen, err
}

func (w *watcher) tryLook(ctx context.Context) (seen glance, err error) {
	if w.console == nil {
		var conn *pgx.Conn
		if conn, err = connectCurrent(ctx, w.url); err != nil {
			return seen, err
		}
		w.console = operator.Open(conn)
	}
	seen.At = time.Now().UTC()
	if seen.Overview, err = w.console.Overview(ctx); err != nil {
		return seen, err
	}
	now, err := w.console.Counters(ctx)
	if err != nil {
		return seen, err
	}
	seen.Rates = w.rates(now)
	return seen, nil
}

func (w *watcher) rates(now operator.Counters) (rates operator.Rates) {
	if len(w.earlier) > 0 {
		rates = now.Since(w.earlier[0])
	}
	w.earlier = append(w.earlier, now)
	if len(w.earlier) > ratesOver {
		w.earlier = w.earlier[1:]
	}
	return rates
}

func (w *watcher) disconnect(ctx context.Context) {
	if w.console == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	w.console.Close(ctx)
	w.console, w.earlier = nil, nil
}
