package drainer

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// ofRuns is one tenant's due rows, each by its run's name, claimed as claim.sql does it.
type ofRuns struct {
	runs []string // in due order; empty once claimed
	scan scan
	read int // by looks ahead
}

func placeOf(i int) Cursor { return Cursor{time.Unix(int64(i)+1, 0), int64(i) + 1} }

func (o *ofRuns) claim(limit, window int) (claimed []string) {
	claim := Claim{Limit: limit}
	o.scan.plan(&claim, time.Now())
	reply, taken := ClaimReply{Took: time.Millisecond}, Taken{Weight: 1}
	for _, part := range claim.Parts {
		if part.First > 0 {
			continue
		}
		seen := 0
		for i := int(part.After.IntentID); i < len(o.runs) && reply.Found < limit && taken.Found < part.Limit; i++ {
			if o.runs[i] == "" {
				continue
			}
			if seen++; part.Ahead {
				o.read++
				if seen > window {
					break
				}
				if seen < window && slices.Contains(part.Crowd, o.runs[i]) {
					continue
				}
			}
			taken.Found++
			reply.Found++
			taken.Next = placeOf(i)
			reply.Rows = append(reply.Rows, &Row{Tuple: dispatch.Tuple{AgentRunID: o.runs[i]}})
			claimed = append(claimed, o.runs[i])
			o.runs[i] = ""
		}
	}
	if taken.Found > 0 {
		reply.Of = []Taken{taken}
	}
	o.scan.looked(claim, reply, time.Now())
	return claimed
}

func TestARunsBacklogKeepsNoOtherRunOfItsTenantWaiting(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]struct{ limit, most int }{"large claims": {1000, 80}, "small ones": {8, 100}, "single rows": {1, 200}} {
		synctest.Test(t, func(t *testing.T) {
			o := ofRuns{runs: slices.Repeat([]string{"flood"}, 60_000)}
			o.runs = append(o.runs, slices.Repeat([]string{"second"}, 5_000)...)
			o.runs = append(o.runs, "lone")
			for n := range claims.most {
				if slices.Contains(o.claim(claims.limit, 2000), "lone") {
					t.Logf("%s: claim %d", name, n)
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
			t.Errorf("%s: the lone row was not claimed in %d claims", name, claims.most)
		})
	}
}

func TestWithoutACrowdNothingIsLookedForAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var o ofRuns
		for i := range 10_000 {
			o.runs = append(o.runs, string(rune('a'+i%20)))
		}
		for left := len(o.runs); left > 0; left -= len(o.claim(100, 2000)) {
			time.Sleep(50 * time.Millisecond)
		}
		if o.read > 0 {
			t.Errorf("%d rows were read ahead", o.read)
		}
	})
}

func TestNoRowIsLeftBehindALookAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := ofRuns{runs: slices.Repeat([]string{"flood"}, 3_000)}
		for i := 40; i < len(o.runs); i += 7 {
			o.runs[i] = "other"
		}
		for range 10_000 {
			if o.claim(10, 200); !slices.ContainsFunc(o.runs, func(run string) bool { return run != "" }) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("rows are left")
	})
}
