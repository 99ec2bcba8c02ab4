package console

import (
	"strings"
	"time"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// chart is a run drawn as bars, in the units of the SVG's viewBox: steps above the
// line, and their undos below it.
type chart struct {
	Width, Height, Line float64
	Rows                []bar
	Ticks               []tick
	Took                string
}

// bar is one intent's time.
type bar struct {
	Y          float64
	Intent     operator.Intent
	IsUndo     bool
	From, Long float64 // from its enqueue to its end
	Parts      []part  // the attempts
}

// part is one attempt, or a mark where an operator or the saga decided.
type part struct {
	X, Long float64
	Class   string // completed, failed, unknown, retry, lookup, decided
	Title   string
}

type tick struct {
	X      float64
	Label  string
	IsLast bool // its label ends at X, inside the picture
}

const (
	labels    = 250.0 // left of the bars
	barsWidth = 980.0
	rowHeight = 24.0
	shortest  = 3.0 // so that a quick attempt is seen
	mostTicks = 7
)

// rounds are the lengths of time between two ticks that a person counts in.
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
	case s.NextAttemptAt == nil:
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
