package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// columns are minutes drawn as columns of stacked parts, in the units of the SVG's viewBox.
type columns struct {
	Title, Told   string
	Width, Height float64
	Parts         []column
	From, To      string
	Most          string // the tallest column
	Keys          []key
}

type column struct {
	X, Y, Wide, Tall float64
	Class, Title     string
}

type key struct{ Class, Name string }

const (
	minuteWidth  = 8.0
	columnHeight = 72.0
)

var outcomeKeys = []key{{"completed", "completed"}, {"retry", "out of reach or busy"}, {"failed", "refused"}, {"decided", "in doubt"}}

// hourCharts are none before a daemon has written a minute.
func hourCharts(hour []operator.Minute) []columns {
	var done, outcomes, oldest [][]float64
	var attempts, completed float64
	written := false
	for _, m := range hour {
		if m.Completed == nil {
			done, outcomes, oldest = append(done, nil), append(outcomes, nil), append(oldest, nil)
			continue
		}
		written = true
		ends := []float64{float64(*m.Completed), float64(*m.Busy), float64(*m.Refused), float64(*m.InDoubt)}
		completed += ends[0]
		attempts += ends[0] + ends[1] + ends[2] + ends[3]
		done, outcomes, oldest = append(done, ends[:1]), append(outcomes, ends), append(oldest, []float64{*m.Oldest})
	}
	if !written {
		return nil
	}
	count := func(n float64) string { return group(int(n)) }
	return []columns{
		drawHour("Completed a minute", group(int(completed))+" in the last hour", hour, done, outcomeKeys[:1], count),
		drawHour("Attempts a minute", group(int(attempts))+" in the last hour", hour, outcomes, outcomeKeys, count),
		drawHour("Age of the oldest due row", "", hour, oldest, []key{{"lookup", "at most, in each minute"}}, func(s float64) string { return span(time.Duration(s * float64(time.Second))) }),
	}
}

func drawHour(title, told string, hour []operator.Minute, values [][]float64, keys []key, name func(float64) string) columns {
	most := 0.0
	for _, stack := range values {
		most = max(most, sumOf(stack))
	}
	drawn := columns{
		Title: title, Told: told, Width: minuteWidth * float64(len(hour)), Height: columnHeight + 2, Most: name(most), Keys: keys,
		From: hour[0].At.UTC().Format("15:04"), To: hour[len(hour)-1].At.UTC().Format("15:04"),
	}
	for i, stack := range values {
		y := columnHeight + 1
		for j, value := range stack {
			if value == 0 {
				continue
			}
			tall := max(1, columnHeight*value/most)
			y -= tall
			drawn.Parts = append(drawn.Parts, column{
				X: minuteWidth*float64(i) + 1, Y: y, Wide: minuteWidth - 1, Tall: tall, Class: keys[j].Class,
				Title: fmt.Sprintf("%s %s: %s", hour[i].At.UTC().Format("15:04"), keys[j].Name, name(value)),
			})
		}
	}
	return drawn
}

func sumOf(values []float64) (sum float64) {
	for _, value := range values {
		sum += value
	}
	return sum
}

type providerPage struct {
	provider
	Tools   []Tool                   `json:"tools"`
	Hour    []operator.Minute        `json:"hour"`
	Latency operator.Latency         `json:"latency"`
	Rate    float64                  `json:"attempts_per_second"` // of the last minute that daemons wrote
	Changes []operator.BreakerChange `json:"circuit_breaker_changes"`
	Charts  []columns                `json:"-"`
}

func (s *server) readProvider(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	name := r.PathValue("name")
	gate, err := from.Provider(ctx, name)
	if unknown := (*operator.UnknownProviderError)(nil); errors.As(err, &unknown) {
		return nil, notFound("no worker has announced this provider, and no row waits for it")
	} else if err != nil {
		return nil, err
	}
	shown := providerPage{provider: provider{operator.ProviderOverview{Provider: name, Paused: gate.Paused, Breaker: &gate.Breaker}, gate}}
	now, err := from.Overview(ctx)
	if err != nil {
		return nil, err
	}
	for _, counted := range now.Providers {
		if counted.Provider == name {
			shown.ProviderOverview = counted
		}
	}
	if shown.Hour, err = from.Hour(ctx, name); err != nil {
		return nil, err
	}
	for _, minute := range shown.Hour {
		if minute.Completed != nil {
			shown.Rate = float64(*minute.Completed+*minute.Busy+*minute.Refused+*minute.InDoubt) / 60
		}
	}
	if shown.Latency, err = from.Latency(ctx, name); err != nil {
		return nil, err
	}
	if shown.Changes, err = from.BreakerChanges(ctx, name, pageRows); err != nil {
		return nil, err
	}
	for _, tool := range s.tools() {
		if strings.HasPrefix(tool.Name, name+"/") {
			shown.Tools = append(shown.Tools, tool)
		}
	}
	shown.Charts = hourCharts(shown.Hour)
	return shown, nil
}
