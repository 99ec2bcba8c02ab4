package doctor

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
)

// Patient is what is examined.
type Patient struct {
	Database  *pgxpool.Config  // as the daemon connects; in particular, as the same role
	Lease     time.Duration    // a worker without a heartbeat for this long is dead; 0: the usual
	Providers []Provider       // nil: there is no configuration, and only the database is looked at
	Now       func() time.Time // this machine's clock; nil: the real one
	Limits    Limits
}

// Provider is one of the configuration.
type Provider struct {
	Name       string
	Operations []string
	Timeout    time.Duration // the longest one dispatch may take
	Adapter    dispatch.Adapter
	Network    dispatch.Network
}

// Limits are how much is too much. A field that is 0 stands for the usual.
type Limits struct {
	Check      time.Duration // a check may take this long
	Pinned     time.Duration // a snapshot that is held longer than this keeps dead rows from being removed
	DeadTuples int64         // in one hot table
	SagaAge    time.Duration // a saga that is under way longer than this is stuck
	Notify     time.Duration // a notification that takes longer than this does not come
}

const usualLease = 15 * time.Second

var usualLimits = Limits{
	Check:      10 * time.Second,
	Pinned:     time.Minute,
	DeadTuples: 100_000,
	SagaAge:    time.Hour,
	Notify:     2 * time.Second,
}

func (l Limits) orUsual() Limits {
	fill(&l.Check, usualLimits.Check)
	fill(&l.Pinned, usualLimits.Pinned)
	fill(&l.DeadTuples, usualLimits.DeadTuples)
	fill(&l.SagaAge, usualLimits.SagaAge)
	fill(&l.Notify, usualLimits.Notify)
	return l
}

func fill[N ~int64](field *N, usual N) {
	if *field == 0 {
		*field = usual
	}
}
