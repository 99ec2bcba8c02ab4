package nemesis_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// silence is for how long a pager with pages to come may hear nothing: longer
// than the interval at which stuck jobs are looked for.
const silence = 45 * time.Second

// assertPaged waits until the pager knows of every incident that is open.
func (a *arena) assertPaged() {
	a.t.Helper()
	open, err := a.openings()
	if err != nil {
		a.t.Fatal(err)
	}
	begun := time.Now()
	unheard := a.pager.listen(open)
	a.t.Logf("%d incidents are open, and paged after %s", len(open)-len(unheard), time.Since(begun).Round(100*time.Millisecond))
	if len(unheard) > 0 {
		a.t.Errorf("nobody was paged for %d of %d open incidents: %v", len(unheard), len(open), unheard[:min(len(unheard), 5)])
	}
	if len(open) == 0 {
		a.t.Error("no incident is open: pages were not put to the test")
	}
}

// openings are those of incidents that nobody has. Pages whose sender was killed
// count as being sent for minutes; here these pass at once.
func (a *arena) openings() ([]opening, error) {
	_, err := a.DB.Exec(context.Background(), `
		UPDATE outbox.river_job SET attempted_at = attempted_at - interval '5 minutes' WHERE state = 'running' AND kind = 'page_send'`)
	if err != nil {
		return nil, err
	}
	rows, err := a.DB.Query(context.Background(), `SELECT id, generation FROM outbox.incident WHERE acknowledged_at IS NULL AND resolved_at IS NULL`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[opening])
}

// listen returns what it has not heard of once it knows of all, or has heard
// nothing more of them for too long.
func (p *pager) listen(openings []opening) []opening {
	left, last := p.unheard(openings), time.Now()
	for len(left) > 0 && time.Since(last) < silence {
		time.Sleep(100 * time.Millisecond)
		if now := p.unheard(openings); len(now) < len(left) {
			left, last = now, time.Now()
		}
	}
	return left
}
