package census

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/agentoutbox/drainer/dispatch"
)

//go:embed sql/minute.sql
var minuteSQL string

// minutes writes once a minute what this process attempted, and what the leader saw of
// queues: the console's last hour. It is counted where attempts are made, because to count
// them in the table would cost the more, the faster it drains.
type minutes struct {
	counters prometheus.Gatherer // of attempts and of how long they took; nil: this process attempts nothing
	written  time.Time           // the minute, as the local clock has it
	before   map[string]activity // what was counted by then
	oldest   map[string]float64  // seconds, at most since then
}

// activity counts one provider's attempts.
type activity struct {
	completed, refused, busy, inDoubt int64
	took                              []int64 // by the buckets of the histogram
}

// Count takes this process's attempts from the counters of its daemon. Call it before [Census.Run].
func (c *Census) Count(counters prometheus.Gatherer) { c.minutes.counters = counters }

// saw keeps the age of each provider's oldest due row.
func (m *minutes) saw(rows map[string]*providerRows) {
	for label, row := range rows {
		if label != unconfigured {
			m.oldest[label] = max(m.oldest[label], row.oldestDue.Seconds())
		}
	}
}

// write is for the minute that has ended. What it cannot write is in the next one.
func (c *Census) write(ctx context.Context) error {
	m := &c.minutes
	counted, err := m.count()
	if err != nil {
		return fmt.Errorf("count the attempts of a minute: %w", err)
	}
	var names, took []string
	var completed, refused, busy, inDoubt []int64
	var oldest []float64
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		now := counted[name].since(m.before[name])
		if age, seen := m.oldest[name]; seen || now.completed+now.refused+now.busy+now.inDoubt > 0 {
			names, took, oldest = append(names, name), append(took, literal(now.took)), append(oldest, age)
			completed, refused, busy, inDoubt = append(completed, now.completed), append(refused, now.refused), append(busy, now.busy), append(inDoubt, now.inDoubt)
		}
	}
	if len(names) > 0 {
		if _, err := c.store.pool.Exec(ctx, minuteSQL, names, completed, refused, busy, inDoubt, took, oldest); err != nil {
			return fmt.Errorf("write the last minute: %w", err)
		}
	}
	m.before, m.oldest = counted, map[string]float64{}
	return nil
}

// count has an entry for each provider of which anything is known.
func (m *minutes) count() (map[string]activity, error) {
	all := map[string]activity{}
	for name := range m.oldest {
		all[name] = activity{}
	}
	if m.counters == nil {
		return all, nil
	}
	families, err := m.counters.Gather()
	if err != nil {
		return nil, err
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			provider, outcome := label(metric, "provider"), label(metric, "outcome")
			if provider == unconfigured {
				continue
			}
			one := all[provider]
			one.add(dispatch.Outcome(outcome), int64(metric.GetCounter().GetValue()))
			if histogram := metric.GetHistogram(); histogram != nil {
				one.took = buckets(histogram)
			}
			all[provider] = one
		}
	}
	return all, nil
}

func label(metric *dto.Metric, name string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

func (a *activity) add(outcome dispatch.Outcome, count int64) {
	switch outcome {
	case dispatch.Completed:
		a.completed += count
	case dispatch.Rejected, dispatch.CredentialsRefused, dispatch.Forbidden, dispatch.Absent:
		a.refused += count
	case dispatch.NotSent, dispatch.Throttled, dispatch.InFlight:
		a.busy += count
	case dispatch.Ambiguous, dispatch.Lost:
		a.inDoubt += count
	case dispatch.Released: // nothing was attempted
	}
}

func buckets(histogram *dto.Histogram) (counts []int64) {
	var below uint64
	for _, bucket := range histogram.GetBucket() {
		counts = append(counts, int64(bucket.GetCumulativeCount()-below))
		below = bucket.GetCumulativeCount()
	}
	return append(counts, int64(histogram.GetSampleCount()-below))
}

func (a activity) since(before activity) activity {
	grown := activity{completed: a.completed - before.completed, refused: a.refused - before.refused, busy: a.busy - before.busy, inDoubt: a.inDoubt - before.inDoubt, took: slices.Clone(a.took)}
	for i := range min(len(grown.took), len(before.took)) {
		grown.took[i] -= before.took[i]
	}
	return grown
}

// literal writes an array as Postgres reads it.
func literal(counts []int64) string {
	texts := make([]string, len(counts))
	for i, count := range counts {
		texts[i] = strconv.FormatInt(count, 10)
	}
	return "{" + strings.Join(texts, ",") + "}"
}
