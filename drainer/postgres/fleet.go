package postgres

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/jackc/pgx/v5"
)

var (
	//go:embed sql/fleet.sql
	fleetSQL string
	//go:embed sql/closed.sql
	closedSQL string
	//go:embed sql/breaker.sql
	breakerSQL string
)

// Gates reads those of all providers, not only of those configured here.
func (s *Store) Gates(ctx context.Context, worker string) ([]drainer.Gate, error) {
	rows, _ := s.control.Query(ctx, fleetSQL, worker) // CollectRows returns the error too
	gates, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (gate drainer.Gate, err error) {
		var openFor *float64
		err = row.Scan(&gate.Provider, &gate.Paused, &gate.Breaker, &openFor, &gate.Workers, &gate.Rank)
		gate.OpenFor = seconds(openFor)
		return gate, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the gates: %w", err)
	}
	return gates, nil
}

// Closed reads runs that take no further step since the worker's oldest claim.
func (s *Store) Closed(ctx context.Context, worker string) ([]string, error) {
	rows, _ := s.control.Query(ctx, closedSQL, worker)
	runs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read which runs were closed: %w", err)
	}
	return runs, nil
}

// queueBreakers adds what the settled attempts mean for the breakers. It comes
// before the claims of the same turn: they heed it already.
func queueBreakers(batch *pgx.Batch, worker string, settlements []drainer.Settlement) {
	var providers []string
	var opens, probes []bool
	var forSeconds []float64
	said := map[drainer.BreakerChange]bool{}
	for i := range settlements {
		change := settlements[i].Breaker
		if change == nil || said[*change] {
			continue
		}
		said[*change] = true
		providers = append(providers, change.Provider)
		opens = append(opens, change.Open)
		forSeconds = append(forSeconds, change.For.Seconds())
		probes = append(probes, change.Probe)
	}
	if len(providers) > 0 {
		batch.Queue(breakerSQL, worker, providers, opens, forSeconds, probes)
	}
}
