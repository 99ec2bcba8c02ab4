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

// parts are what River does beside the lanes.
type parts struct {
	saga   *compensations.Saga
	pager  *pages.Pager
	upkeep *upkeep.Upkeep
}

func partsOf(pool *pgxpool.Pool, loaded *config.Config, log *slog.Logger, metrics prometheus.Registerer) (*parts, error) {
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
	return &parts{saga, pager, maintenance}, nil
}

func (p *parts) list() []jobs.Part { return []jobs.Part{p.saga, p.pager, p.upkeep} }

// prepare readies every part for another configuration, or none. They go by it
// once use is called.
func (p *parts) prepare(loaded *config.Config) (use func(), err error) {
	usePolicies, err := p.saga.Prepare(policiesOf(loaded))
	if err != nil {
		return nil, err
	}
	channels, err := channelsOf(loaded)
	if err != nil {
		return nil, err
	}
	useRetention, err := p.upkeep.Prepare(loaded.Retentions())
	if err != nil {
		return nil, err
	}
	return func() {
		usePolicies()
		p.pager.Use(channels, providerNames(loaded))
		useRetention()
	}, nil
}

func policiesOf(loaded *config.Config) compensations.Policies {
	policies := compensations.Policies{}
	for _, provider := range loaded.Providers {
		policies[provider.Name] = provider.Tools
	}
	return policies
}
