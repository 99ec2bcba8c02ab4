package drainer

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// ofRuns has one tenant's due rows, each as its run's name. It claims them as claim.sql does.
type ofRuns struct {
	runs    []string // in due order; empty once claimed
	scan    scan
	limited bool
	read    int // by looks ahead
}

func placeOf(i int) Cursor { return Cursor{time.Unix(int64(i)+1, 0), int64(i) + 1} }

func (o *ofRuns) claim(limit int) (claimed []string) {
	claim := Claim{Limit: limit}
	o.scan.plan(&claim, time.Now())
	reply := ClaimReply{Took: time.Millisecond}
	for n, part := range claim.Parts {
		if part.First > 0 {
			continue
		}
		seen, taken := 0, Taken{Part: n, Weight: 1, Limited: o.limited}
		for i := int(part.After.IntentID); i < len(o.runs) && reply.Found < limit && taken.Found < part.Limit && (part.Before.IsZero() || placeOf(i).Compare(part.Before) <= 0); i++ {
			if o.runs[i] == "" {
				continue
			}
			if seen++; part.Ahead > 0 {
				o.read++
				if seen > part.Ahead {
					break
				}
				if seen < part.Ahead && slices.Contains(part.Crowd, o.runs[i]) {
					continue
				}
			}
			taken.Found++
			reply.Found++
			taken.Next = placeOf(i)
			reply.Rows = append(reply.Rows, &Row{Part: n, Tuple: dispatch.Tuple{AgentRunID: o.runs[i]}})
			claimed = append(claimed, o.runs[i])
			o.runs[i] = ""
		}
		if taken.Found > 0 {
			reply.Of = append(reply.Of, taken)
		}
	}
	o.scan.looked(claim, reply, time.Now())
	return claimed
}

func TestARunsBacklogKeepsNoOtherRunOfItsTenantWaiting(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]struct {
		limit, most int
		limited     bool
	}{"large claims": {1000, 80, false}, "small ones": {8, 100, false}, "single rows": {1, 200, false}, "of a limited tenant": {8, 100, true}} {
		synctest.Test(t, func(t *testing.T) {
			o := ofRuns{runs: slices.Repeat([]string{"flood"}, 60_000), limited: claims.limited}
			o.runs = append(o.runs, slices.Repeat([]string{"second"}, 5_000)...)
			o.runs = append(o.runs, "lone")
			for n := range claims.most {
				claimed := o.claim(claims.limit)
				if fronts := len(o.scan.tenants[0].fronts); claims.limited && fronts > 1 {
					t.Fatalf("%s: there are %d fronts, and each would have the limit", name, fronts)
				}
				if slices.Contains(claimed, "lone") {
					t.Logf("%s: claim %d", name, n)
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
			t.Errorf("%s: the lone row was not claimed in %d claims", name, claims.most)
		})
	}
}

// Three runs share each claim once they are found, and two when one has ended.
func TestRunsWithManyRowsTakeTurns(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{500, 100, 64, 8} {
		synctest.Test(t, func(t *testing.T) {
			left := map[string]int{"first": 5_000, "second": 5_000, "third": 10_000}
			var o ofRuns
			for _, run := range []string{"first", "second", "third"} {
				o.runs = append(o.runs, slices.Repeat([]string{run}, left[run])...)
			}
			var late []int // claims in which a run that had rows got too few or too many
			for n := 1; len(left) > 0; n++ {
				time.Sleep(15 * time.Millisecond)
				share := limit / len(left)
				claimed := o.claim(limit)
				if n > 20_000 {
					t.Fatalf("claims of %d: %v rows are left", limit, left)
				}
				got := map[string]int{}
				for _, run := range claimed {
					got[run]++
				}
				for run := range left {
					if left[run] -= got[run]; left[run] == 0 {
						delete(left, run)
					}
					if got[run] > share+1 || (got[run] < share && len(claimed) > share+1 && left[run] > 0) {
						late = append(late, n)
					}
				}
			}
			late = slices.Compact(late)
			t.Logf("claims of %d: not all had their share in %v", limit, late)
			if most := 10 + 500/limit; len(late) > most {
				t.Errorf("claims of %d: not all had their share in %d claims, want at most %d", limit, len(late), most)
			}
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
		for left := len(o.runs); left > 0; left -= len(o.claim(100)) {
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
			if o.claim(10); !slices.ContainsFunc(o.runs, func(run string) bool { return run != "" }) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("rows are left")
	})
}
