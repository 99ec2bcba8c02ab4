package compensations

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// censusInterval is how often sagas are counted, by every process.
const censusInterval = 15 * time.Second

// census shows how many sagas wait for something, or for somebody.
type census struct {
	pool  *pgxpool.Pool
	sagas *prometheus.GaugeVec
	due   time.Time
}

func newCensus(pool *pgxpool.Pool, registerer prometheus.Registerer) *census {
	c := &census{pool: pool, sagas: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "drainer", Name: "sagas", Help: "Agent runs that go back, or could not, counted to a bound; take the maximum over replicas.",
	}, []string{"state"})}
	c.show(0, 0)
	registerer.MustRegister(c.sagas)
	return c
}

func (c *census) show(begun, failed int) {
	c.sagas.WithLabelValues("begun").Set(float64(begun))
	c.sagas.WithLabelValues("compensation_failed").Set(float64(failed))
}

// take counts when it is time to.
func (c *census) take(ctx context.Context) error {
	if time.Now().Before(c.due) {
		return nil
	}
	var begun, failed int
	err := c.pool.QueryRow(ctx, `SELECT
		(SELECT count(*) FROM (SELECT FROM outbox.saga WHERE state = 'begun' LIMIT 10000) b),
		(SELECT count(*) FROM (SELECT FROM outbox.saga WHERE state = 'compensation_failed' LIMIT 10000) f)`).Scan(&begun, &failed)
	if err != nil {
		return fmt.Errorf("count sagas: %w", err)
	}
	c.show(begun, failed)
	c.due = time.Now().Add(censusInterval)
	return nil
}
