package pages

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	//go:embed sql/due.sql
	dueSQL string
	//go:embed sql/under_way.sql
	underWaySQL string
	//go:embed sql/begin.sql
	beginSQL string
	//go:embed sql/told.sql
	toldSQL string
	//go:embed sql/collided.sql
	collidedSQL string
	//go:embed sql/unconfigured.sql
	unconfiguredSQL string
)

// unconfiguredAfter leaves time to deploy the agent before its drainer.
const unconfiguredAfter = 5 * time.Minute

// store is what this package asks of the outbox.
type store struct{ pool *pgxpool.Pool }

// due lists what a channel is to be told and no job is about to tell it. Of nine
// pages about four are new to it, two it missed before, two are ends, and one is a
// repetition, as long as there are such.
func (s store) due(ctx context.Context, channel Channel, limit int) ([]Page, error) {
	return s.pages(ctx, channel, nil, nil, limit)
}

// underWay counts the jobs that have still to tell the channel something. One
// that runs beyond its time is of a process that died, and keeps nobody out.
func (s store) underWay(ctx context.Context, channel Channel) (jobs int, err error) {
	err = s.pool.QueryRow(ctx, underWaySQL, sendArgs{}.Kind(), channel.Name, sendTimeout.Seconds()).Scan(&jobs)
	if err != nil {
		return 0, fmt.Errorf("count page jobs: %w", err)
	}
	return jobs, nil
}

// dueOf reports whether a channel is to be told anything of one incident.
func (s store) dueOf(ctx context.Context, channel Channel, incidentID int64, generation int) (Page, bool, error) {
	pages, err := s.pages(ctx, channel, &incidentID, &generation, 1)
	if err != nil || len(pages) == 0 {
		return Page{}, false, err
	}
	return pages[0], true, nil
}

func (s store) pages(ctx context.Context, channel Channel, incidentID *int64, generation *int, limit int) ([]Page, error) {
	// CollectRows returns the error too.
	rows, _ := s.pool.Query(ctx, dueSQL, channel.Name, channel.Repeat.Seconds(), incidentID, generation, limit, sendArgs{}.Kind())
	pages, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Page, err error) {
		err = row.Scan(&p.IncidentID, &p.Generation, &p.State, &p.Kind, &p.IntentID, &p.ToolName, &p.IdempotencyKey,
			&p.OpenedAt, &p.By, &p.Sends)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for due pages: %w", err)
	}
	return pages, nil
}

// begin says that the channel may hear of the page from now on.
func (s store) begin(ctx context.Context, channel string, page Page) error {
	return s.execute(ctx, "begin a page", beginSQL, channel, page.IncidentID, page.Generation)
}

// told says that it did.
func (s store) told(ctx context.Context, channel string, page Page) error {
	return s.execute(ctx, "record a page", toldSQL, channel, page.IncidentID, page.Generation, page.State, page.Sends)
}

// notice opens and resolves the incidents that no commit of the engine can.
func (s store) notice(ctx context.Context, configured []string) error {
	if err := s.execute(ctx, "look for key collisions", collidedSQL); err != nil {
		return err
	}
	return s.execute(ctx, "look for unconfigured providers", unconfiguredSQL, configured, unconfiguredAfter.Seconds())
}

func (s store) execute(ctx context.Context, what, sql string, args ...any) error {
	if _, err := s.pool.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
