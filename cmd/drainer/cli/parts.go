package cli

import (
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
	pager := pages.New(pool, pages.Defaults(channels, providerNames(loaded)), log, metrics)
	maintenance, err := upkeep.New(pool, loaded.Retentions(), log, metrics)
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
