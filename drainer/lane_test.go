package drainer

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

func settlement(claim int64, octets int) Settlement {
	return Settlement{
		Row:    &Row{ClaimID: claim},
		Result: dispatch.Result{Response: bytes.Repeat([]byte("x"), octets)},
	}
}

func TestATurnTakesNoMoreOctetsThanItCanCarry(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		octets []int
		limit  int
		want   int
	}{
		"nothing":                          {nil, 10, 0},
		"all that fits":                    {[]int{4, 6}, 10, 2},
		"only what fits":                   {[]int{4, 6, 1}, 10, 2},
		"one that is larger than a turn":   {[]int{11, 1}, 10, 1},
		"bodiless ones cost nothing":       {[]int{0, 0, 0}, 0, 3},
		"a large one waits for the next":   {[]int{1, 50}, 10, 1},
		"order is kept, nothing overtakes": {[]int{9, 5, 1}, 10, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var settled []Settlement
			for _, octets := range test.octets {
				settled = append(settled, settlement(1, octets))
			}
			if got := len(firstOctets(settled, test.limit)); got != test.want {
				t.Errorf("took %d settlements, want %d", got, test.want)
			}
		})
	}
}

// A claim finished while one of its rows is unsettled would take that row's
// fence away, and with it the row.
func TestAClaimEndsOnlyWithItsLastRow(t *testing.T) {
	t.Parallel()
	l := &lane{remembered: map[int64]int{1: 2, 2: 1, 3: 3}}
	all := []Settlement{settlement(1, 0), settlement(2, 0), settlement(3, 0), settlement(1, 0), settlement(3, 0)}

	if got := l.ended(all[:3]); !slices.Equal(got, []int64{2}) {
		t.Errorf("a turn of three rows ends %v, want only claim 2", got)
	}
	if got := l.ended(all); !slices.Equal(got, []int64{2, 1}) {
		t.Errorf("a turn of five rows ends %v, want claims 2 and 1, and not 3", got)
	}
}

// The lane itself hands rows out: at a full channel it would wait for ever.
func TestALaneHasRoomForAllThatItMayClaim(t *testing.T) {
	t.Parallel()
	keyed := map[string]dispatch.Policy{"act": {Class: dispatch.KeyIdempotent}}
	for name, test := range map[string]struct {
		provider Provider
		route    route
		want     int
	}{
		"it may hold rows back":            {Provider{Tools: keyed}, route{"sim", "sim"}, 3 + maxPrefetch},
		"its rows could be sent elsewhere": {Provider{Tools: keyed}, route{"other", "sim"}, 3},
		"a rate limits it":                 {Provider{Tools: keyed, RateLimit: dispatch.RateLimit{PerSecond: 1}}, route{"sim", "sim"}, 3},
		"a lost row would need a human":    {Provider{Tools: map[string]dispatch.Policy{"act": {Class: dispatch.NonIdempotent}}}, route{"sim", "sim"}, 3},
	} {
		test.provider.Name, test.provider.Concurrency = "sim", 3
		l := laneOn(test.route, test.provider)
		if cap(l.dispatchers.jobs) != test.want {
			t.Errorf("%s: room for %d rows, want %d", name, cap(l.dispatchers.jobs), test.want)
		}
		l.prefetch = maxPrefetch
		if !l.mayPrefetch() {
			l.prefetch = 0
		}
		if room := l.room(); room != test.want {
			t.Errorf("%s: it claims %d, and has room for %d", name, room, test.want)
		}
	}
}

func TestAnOutcomeThatWaitsKeepsNothingOfWhatWasSent(t *testing.T) {
	t.Parallel()
	l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { return healthy }))
	l.dispatchers.jobs <- &Row{
		ClaimedAt: time.Now(), Tuple: dispatch.Tuple{ToolName: "sim/act"},
		Payload: []byte(`{}`), Headers: map[string]string{"baggage": "b"},
	}
	l.dispatchAll(lifetimes{stop: t.Context(), abort: t.Context()}, l.dispatchers.take)
	if waits := l.outcomes.take(nil, 1)[0]; waits.Result.Outcome != dispatch.Completed || waits.Row.Payload != nil || waits.Row.Headers != nil {
		t.Errorf("%+v of %+v waits for the database", waits.Result, waits.Row)
	}
}
