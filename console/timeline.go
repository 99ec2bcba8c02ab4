package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// chart is a run drawn as bars, in units of the SVG's viewBox. Steps are above the line, their undos below.
type chart struct {
	Width, Height, Line float64
	Rows                []bar
	Ticks               []tick
	Took                string
}

// bar shows one intent over time.
type bar struct {
	Y          float64
	Intent     operator.Intent
	IsUndo     bool
	From, Long float64 // from its enqueue to its end, or to now
	Parts      []part  // its attempts and decisions
}

// part is one attempt, or a mark for a decision of an operator or the saga.
type part struct {
	X, Long float64
	Class   string // completed, failed, unknown (in doubt), retry, lookup, decided
	Title   string
}

type tick struct {
	X      float64
	Label  string
	IsLast bool // its label must end at X to fit into the picture
}

const (
	labels    = 250.0 // the space for labels, left of the bars
	barsWidth = 980.0
	rowHeight = 24.0
	shortest  = 3.0 // keeps a short attempt visible
	mostTicks = 7
)

// rounds are the steps between ticks that people find easy to read.
var rounds = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	20 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour,
	12 * time.Hour, 24 * time.Hour, 48 * time.Hour, 7 * 24 * time.Hour, 28 * 24 * time.Hour,
}

func draw(story *operator.RunStory, now time.Time) chart {
	var steps, undos []operator.Intent
	for _, step := range story.Steps {
		steps = append(steps, step.Intent)
		if step.Undo != nil {
			undos = append(undos, *step.Undo)
		}
	}
	slices.Reverse(undos) // mirrored, so that the undo of the last step is next to the line
	all := append(append([]operator.Intent{}, steps...), undos...)
	begin, end := all[0].CreatedAt, all[0].CreatedAt.Add(time.Second)
	for _, intent := range all {
		if intent.CreatedAt.Before(begin) {
			begin = intent.CreatedAt
		}
		if last := endOf(intent, now); last.After(end) {
			end = last
		}
	}
	whole := end.Sub(begin)
	x := func(at time.Time) float64 {
		return labels + barsWidth*min(1, max(0, float64(at.Sub(begin))/float64(whole)))
	}
	c := chart{Width: labels + barsWidth + 10, Took: span(whole)}
	spans := map[int64][]operator.Span{}
	for _, s := range story.Spans {
		spans[s.IntentID] = append(spans[s.IntentID], s)
	}
	y := 24.0
	for i, intent := range all {
		if i == len(steps) {
			y += 10
		}
		row := bar{Y: y, Intent: intent, IsUndo: i >= len(steps), From: x(intent.CreatedAt)}
		row.Long = max(shortest, x(endOf(intent, now))-row.From)
		for _, s := range spans[intent.IntentID] {
			row.Parts = append(row.Parts, partOf(s, x))
		}
		c.Rows = append(c.Rows, row)
		y += rowHeight
	}
	c.Line, c.Height = 24+float64(len(steps))*rowHeight+3, y+8
	c.Ticks = ticks(whole, x, begin)
	return c
}

func ticks(whole time.Duration, x func(time.Time) float64, begin time.Time) []tick {
	step := rounds[len(rounds)-1]
	for _, round := range rounds {
		if whole/round <= mostTicks {
			step = round
			break
		}
	}
	for whole/step > mostTicks {
		step *= 2
	}
	all := []tick{{x(begin), "0", false}}
	for passed := step; passed <= whole; passed += step {
		at := x(begin.Add(passed))
		all = append(all, tick{at, "+" + strings.Replace(span(passed), ".0 s", " s", 1), at > labels+barsWidth-20})
	}
	return all
}

func endOf(intent operator.Intent, now time.Time) time.Time {
	if intent.FinishedAt != nil {
		return *intent.FinishedAt
	}
	return now
}

func partOf(s operator.Span, x func(time.Time) float64) part {
	p := part{Class: "retry", Title: s.Outcome + ", " + stamp(s.FinishedAt)}
	switch {
	case s.StartedAt == nil:
		p.Class = "decided"
	case s.Lookup:
		p.Class = "lookup"
	case s.NextAttemptAt == nil, s.Status == "unknown":
		p.Class = s.Status
	}
	end := x(s.FinishedAt)
	p.X = end - shortest
	if s.StartedAt != nil {
		p.X = min(x(*s.StartedAt), p.X)
		p.Title += ", took " + span(s.FinishedAt.Sub(*s.StartedAt))
	}
	p.Long = end - p.X
	return p
}

// columns are minutes drawn as stacked columns, in units of the SVG's viewBox.
type columns struct {
	Title, Told   string
	Width, Height float64
	Parts         []column
	From, To      string
	Most          string // the value of the tallest column
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

var outcomeKeys = []key{{"completed", "completed"}, {"retry", "out of reach or busy"}, {"failed", "refused"}, {"unknown", "in doubt"}}

// hourCharts returns nil while no daemon has written a minute.
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
		drawHour("Age of the oldest due row", "", hour, oldest, []key{{"lookup", "the oldest that was due in the minute"}}, func(s float64) string { return span(time.Duration(s * float64(time.Second))) }),
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
	for _, tool := range s.Tools() {
		if strings.HasPrefix(tool.Name, name+"/") {
			shown.Tools = append(shown.Tools, tool)
		}
	}
	shown.Charts = hourCharts(shown.Hour)
	return shown, nil
}
