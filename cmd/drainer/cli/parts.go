package cli

import (
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/compensations/upkeep"
	"github.com/agentoutbox/drainer/drainer/census"
	"github.com/agentoutbox/drainer/drainer/config"
)

// parts are what goes on beside the lanes: what River does, and the counting.
type parts struct {
	saga   *compensations.Saga
	pager  *pages.Pager
	upkeep *upkeep.Upkeep
	census *census.Census
}

// pools are the parts' connections, apart from the lanes'.
type pools struct{ jobs, census *pgxpool.Pool }

func partsOf(pools pools, loaded *config.Config, log *slog.Logger, metrics prometheus.Registerer) (*parts, error) {
	saga, err := compensations.New(pools.jobs, policiesOf(loaded), log, metrics)
	if err != nil {
		return nil, err
	}
	channels, err := channelsOf(loaded)
	if err != nil {
		return nil, err
	}
	pager := pages.New(pools.jobs, pages.Defaults(channels, providerNames(loaded)), log, metrics)
	maintenance, err := upkeep.New(pools.jobs, loaded.Retentions(), log, metrics)
	if err != nil {
		return nil, err
	}
	return &parts{saga, pager, maintenance, census.New(pools.census, countedOf(loaded), log, metrics)}, nil
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
		p.census.Use(countedOf(loaded))
	}, nil
}

// countedOf says what the census needs to know of each provider.
func countedOf(loaded *config.Config) []census.Provider {
	providers := make([]census.Provider, len(loaded.Providers))
	for i, provider := range loaded.Providers {
		providers[i] = census.Provider{Name: provider.Name, RetryWindows: map[string]time.Duration{}}
		for operation, policy := range provider.Tools {
			if window, ends := policy.RetryWindow(); ends {
				providers[i].RetryWindows[provider.Name+"/"+operation] = window
			}
		}
	}
	return providers
}

func policiesOf(loaded *config.Config) compensations.Policies {
	policies := compensations.Policies{}
	for _, provider := range loaded.Providers {
		policies[provider.Name] = provider.Tools
	}
	return policies
}
