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
	//go:embed sql/probe.sql
	probeSQL string
	//go:embed sql/breaker.sql
	breakerSQL string
)

// Fleet reads the gates of all providers, not only of those configured here.
func (s *Store) Fleet(ctx context.Context, worker string) (drainer.Fleet, error) {
	var fleet drainer.Fleet
	rows, err := s.control.Query(ctx, fleetSQL, worker)
	if err != nil {
		return fleet, fmt.Errorf("read the fleet: %w", err)
	}
	var gate drainer.Gate
	var openFor *float64
	_, err = pgx.ForEachRow(rows, []any{&fleet.Workers, &fleet.Rank, &gate.Provider, &gate.Paused, &gate.Breaker, &openFor}, func() error {
		gate.OpenFor = seconds(openFor)
		fleet.Gates = append(fleet.Gates, gate)
		return nil
	})
	if err != nil {
		return drainer.Fleet{}, fmt.Errorf("read the fleet: %w", err)
	}
	return fleet, nil
}

// queueBreakers adds what the settled attempts mean for the breakers. It comes
// before the claims of the same turn: they heed it already.
func queueBreakers(batch *pgx.Batch, worker string, settlements []drainer.Settlement) {
	changes := map[string]*drainer.BreakerChange{}
	for i := range settlements {
		if change := settlements[i].Breaker; change != nil {
			changes[change.Provider] = change
		}
	}
	if len(changes) == 0 {
		return
	}
	var providers []string
	var opens []bool
	var forSeconds []float64
	for name, change := range changes {
		providers = append(providers, name)
		opens = append(opens, change.Open)
		forSeconds = append(forSeconds, change.For.Seconds())
	}
	batch.Queue(breakerSQL, worker, providers, opens, forSeconds)
}
