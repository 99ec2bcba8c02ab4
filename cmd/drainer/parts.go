package main

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/compensations/upkeep"
	"github.com/agentoutbox/drainer/drainer/config"
)

// partsOf is the one list of what River does beside the lanes.
func partsOf(pool *pgxpool.Pool, loaded *config.Config, log *slog.Logger, metrics prometheus.Registerer) ([]jobs.Part, error) {
	saga, err := compensations.New(pool, policiesOf(loaded), log, metrics)
	if err != nil {
		return nil, err
	}
	channels, err := channelsOf(loaded)
	if err != nil {
		return nil, err
	}
	if len(channels) == 0 {
		log.Warn("nobody is told of incidents: name a channel under pages, or watch `drainer incidents list`")
	}
	pager := pages.New(pool, pages.Defaults(channels, providerNames(loaded)), log, metrics)
	maintenance, err := upkeep.New(pool, upkeep.Retention(loaded.Retention), log, metrics)
	if err != nil {
		return nil, err
	}
	return []jobs.Part{saga, pager, maintenance}, nil
}

func policiesOf(loaded *config.Config) compensations.Policies {
	policies := compensations.Policies{}
	for _, provider := range loaded.Providers {
		policies[provider.Name] = provider.Tools
	}
	return policies
}

// sagaTriggers hands over from the lanes, which must not wait, to River. A
// trigger that finds no room is dropped: the sweep finds its saga.
type sagaTriggers struct {
	client *jobs.Client
	log    *slog.Logger
	runs   chan string
}

func newSagaTriggers(client *jobs.Client, log *slog.Logger) *sagaTriggers {
	return &sagaTriggers{client: client, log: log, runs: make(chan string, 1000)}
}

func (s *sagaTriggers) moved(agentRunID string) {
	select {
	case s.runs <- agentRunID:
	default:
	}
}

func (s *sagaTriggers) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case run := <-s.runs:
			if err := compensations.Trigger(ctx, s.client, run); err != nil && ctx.Err() == nil {
				s.log.Warn("cannot trigger a saga now; the sweep will", "error", err)
			}
		}
	}
}
