package operator

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// way is a transition between two statuses.
type way struct{ from, to string }

// elsewhere are the ways that neither a decision nor an operator takes: they
// stand in the SQL of enqueueing, claiming, late evidence and sagas.
var elsewhere = []way{
	{"[*]", "pending"},
	{"pending", "in_progress"},
	{"cancelled", "completed"},
	{"completed", "compensated"},
	{"completed", "compensation_failed"},
	{"compensation_failed", "completed"},
	{"compensation_failed", "compensated"},
}

func TestTheDiagramOfStatusesShowsEveryWayAndNoOther(t *testing.T) {
	t.Parallel()
	drawn := waysDrawn(t)
	taken := map[way]bool{}
	for _, known := range elsewhere {
		taken[known] = true
	}
	waysOfDecisions(taken)
	waysOfOperators(taken)
	for missing := range taken {
		if !slices.Contains(drawn, missing) {
			t.Errorf("docs/concepts.md lacks %s --> %s", missing.from, missing.to)
		}
	}
	for _, shown := range drawn {
		if !taken[shown] {
			t.Errorf("docs/concepts.md shows %s --> %s, which nobody goes", shown.from, shown.to)
		}
	}
}

// waysDrawn reads the page's first diagram.
func waysDrawn(t *testing.T) (drawn []way) {
	t.Helper()
	page, err := os.ReadFile("../../docs/concepts.md")
	if err != nil {
		t.Fatal(err)
	}
	diagram := regexp.MustCompile("(?s)```mermaid\n(.*?)```").FindSubmatch(page)
	if diagram == nil {
		t.Fatal("docs/concepts.md has no diagram")
	}
	for _, edge := range regexp.MustCompile(`(\S+) --> (\w+):`).FindAllSubmatch(diagram[1], -1) {
		drawn = append(drawn, way{string(edge[1]), string(edge[2])})
	}
	return drawn
}

func waysOfDecisions(taken map[way]bool) {
	const ttl, tries = 24 * time.Hour, 3
	lookups := map[bool]*dispatch.Lookup{false: nil, true: {Operation: "find"}}
	for _, class := range dispatch.Classes() {
		for asks := range lookups {
			policy := dispatch.Policy{Class: class, KeyTTL: ttl, MaxAttempts: tries, Lookup: lookups[asks]}
			for history := range histories(tries, ttl) {
				for _, result := range results() {
					to := string(policy.Decide(history, result, 0).Status)
					if history.Lookup || (history.MaybeApplied && class != dispatch.NonIdempotent) {
						taken[way{"unknown", to}] = true // asked, or repeated where that is as good as asking
					}
					if !history.Lookup {
						taken[way{"in_progress", to}] = true
					}
				}
			}
		}
	}
}

func histories(tries int, ttl time.Duration) map[dispatch.History]bool {
	all := map[dispatch.History]bool{}
	for _, used := range []int{1, tries, tries + 100} {
		for _, since := range []time.Duration{0, ttl} {
			for _, history := range []dispatch.History{{}, {MaybeApplied: true}, {MaybeApplied: true, Lookup: true}} {
				history.Tries, history.SinceFirstSend = used, since
				all[history] = true
			}
		}
	}
	return all
}

func results() (all []dispatch.Result) {
	for _, outcome := range dispatch.Outcomes() {
		all = append(all, dispatch.Result{Outcome: outcome}, dispatch.Result{Outcome: outcome, Final: true})
	}
	return all
}

func waysOfOperators(taken map[way]bool) {
	standings := []standing{waiting, doubtful, asking, inProgress, reported(settled("completed"), resolved)}
	for _, status := range []string{"completed", "failed", "unknown", "cancelled", "compensated", "compensation_failed"} {
		standings = append(standings, settled(status))
	}
	for _, from := range slices.Clone(standings) {
		standings = append(standings, inSaga("begun", from), inSaga("compensation_failed", from), inSaga("cancelled", from))
	}
	actions := []Action{Cancel{}, Retry{MayDuplicate: true}, resolveCompleted, resolveFailed, Resolve{As: dispatch.StatusCompleted, ProviderRef: "r"}}
	edges := map[way]bool{}
	for _, from := range standings {
		for _, action := range actions {
			if change, refused := action.judge(from); refused == "" {
				edges[way{from.Status, change.status}] = true
			}
		}
	}
	delete(edges, way{"completed", "completed"}) // names the effect, and leaves it where it stands
	maps.Copy(taken, edges)
}
