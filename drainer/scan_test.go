package drainer

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// backlog has the due rows of one lane by tenant. It claims them as claim.sql does: the parts of a claim fill its
// limit in their order, and a part of several tenants is divided among the first of them.
type backlog struct {
	due    map[int16]int
	weight map[int16]int
	place  int64
	scan   scan

	takes, searchTakes time.Duration // the time of a claim, and of one that searches; 0: the same time
	every              int           // so many plain claims one carries as much other work as a search takes; 0: none does
	fails              bool          // each search
	plain              int           // claims
}

func newBacklog(weights ...int) *backlog {
	b := &backlog{due: map[int16]int{}, weight: map[int16]int{}}
	for i, weight := range weights {
		b.weight[int16(3*i)] = weight // with gaps between them
	}
	return b
}

func (b *backlog) fill(rows int) {
	for id := range b.weight {
		b.due[id] = rows
	}
}

func (b *backlog) claim(limit int) (found map[int16]int, total int) {
	claim := Claim{Limit: limit}
	b.scan.plan(&claim, time.Now())
	found = map[int16]int{}
	return found, b.make(claim, found)
}

// make makes a planned claim and reports its result to the scan.
func (b *backlog) make(claim Claim, found map[int16]int) (total int) {
	limit, searches := claim.Limit, b.scan.searched || claim.IsSearch
	reply := ClaimReply{Took: cmp.Or(b.takes, time.Millisecond)}
	if searches {
		reply.Took = cmp.Or(b.searchTakes, reply.Took)
	} else if b.plain++; b.every > 0 && b.plain%b.every == 0 {
		reply.Took = b.searchTakes
	}
	if b.takes > 0 {
		time.Sleep(reply.Took)
	}
	if searches && b.fails {
		b.scan.failed(claim, reply.Took, time.Now())
		return 0
	}
	for n, part := range claim.Parts {
		rooms := b.rooms(part, limit)
		for _, id := range slices.Sorted(maps.Keys(rooms)) {
			took := min(rooms[id], b.due[id], limit-reply.Found)
			if took == 0 {
				continue
			}
			b.place += int64(took)
			b.due[id] -= took
			reply.Found += took
			found[id] += took
			reply.Of = append(reply.Of, Taken{Part: n, Tenant: id, Weight: b.weight[id], Found: took, Next: Cursor{time.Unix(b.place, 0), b.place}})
		}
	}
	b.scan.looked(claim, reply, time.Now())
	return reply.Found
}

func (b *backlog) rooms(part Part, limit int) map[int16]int {
	if part.isOfOne() {
		return map[int16]int{part.First: part.Limit}
	}
	room := min(part.Limit, limit)
	var walked []int16
	weights := 0
	for id := (part.First + 2) / 3 * 3; id <= part.Last && int(id) < 3*len(b.weight) && len(walked) < min(room, 64); id += 3 {
		if b.due[id] > 0 {
			walked, weights = append(walked, id), weights+b.weight[id]
		}
	}
	rooms := map[int16]int{}
	for _, id := range walked {
		rooms[id] = 1 + (room-len(walked))*b.weight[id]/weights
	}
	return rooms
}

func TestHungryTenantsShareEachClaimByTheirWeights(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{1}, {1, 1}, {1, 3}, {1, 1000}, {5, 1, 1, 2, 7}, slices.Repeat([]int{1, 2}, 30)} {
		for _, limit := range []int{1, 3, 64, 1000} {
			t.Run(fmt.Sprintf("%v of %d", weights[:min(5, len(weights))], limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBacklog(weights...)
					b.fill(math.MaxInt32)
					sum, claims := 0, 0
					for _, weight := range weights {
						sum += weight
					}
					for ; len(b.scan.tenants) < len(weights); claims++ { // they are found first
						time.Sleep(searchInterval)
						b.claim(limit)
						if claims > 4*len(weights) {
							t.Fatalf("after %d claims %d tenants of %d are known", claims, len(b.scan.tenants), len(weights))
						}
					}
					b.scan.searchAt = time.Now().Add(time.Hour)
					total := map[int16]int{}
					const rounds = 2000
					for range rounds {
						found, all := b.claim(limit)
						if all != limit {
							t.Fatalf("a claim of %d finds %d, and more is due", limit, all)
						}
						for id, n := range found {
							total[id] += n
							fair := float64(limit*b.weight[id]) / float64(sum)
							if off := float64(n) - fair; math.Abs(off) > 2 {
								t.Errorf("tenant %d has %d rows of one claim, want about %.1f", id, n, fair)
							}
						}
					}
					for id, weight := range b.weight {
						fair := float64(rounds*limit*weight) / float64(sum)
						if off := float64(total[id]) - fair; math.Abs(off) > 2*float64(len(weights)) {
							t.Errorf("tenant %d has %d rows, want %.1f", id, total[id], fair)
						}
					}
				})
			})
		}
	}
}

// 1,000 tenants do not fit into one claim: they take turns.
func TestManyTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(slices.Repeat([]int{1}, 1000)...)
		b.fill(math.MaxInt32)
		for len(b.scan.tenants) < 1000 {
			time.Sleep(5 * time.Millisecond)
			b.claim(1000)
		}
		total := map[int16]int{}
		for range 320 {
			time.Sleep(5 * time.Millisecond)
			found, all := b.claim(1000)
			if all < 1000 {
				t.Fatalf("a claim of 1000 finds %d", all)
			}
			if len(found) > 3*tenantsAtOnce+1 {
				t.Fatalf("a claim has the rows of %d tenants", len(found))
			}
			for id, n := range found {
				total[id] += n
			}
		}
		least, most := slices.Min(slices.Collect(maps.Values(total))), slices.Max(slices.Collect(maps.Values(total)))
		if len(total) < 1000 || float64(least) < 0.8*float64(most) {
			t.Errorf("%d tenants have between %d and %d rows", len(total), least, most)
		}
	})
}

// What one tenant does not need is the others', at the latest with the next claim; and a tenant that comes back waits
// for the next search.
func TestNoShareIsLostAndNobodyStarves(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				weights := make([]int, 1+random.IntN(40))
				for i := range weights {
					weights[i] = 1 + random.IntN(10)
				}
				b := newBacklog(weights...)
				limit := []int{1, 7, 100, 1000}[seed%4]
				waits, before := map[int16]int{}, limit
				for range 2000 {
					if id := int16(3 * random.IntN(len(weights))); random.IntN(3) > 0 {
						b.due[id] += random.IntN(3 * limit)
					}
					due := 0
					for _, n := range b.due {
						due += n
					}
					time.Sleep(2 * time.Millisecond)
					found, all := b.claim(limit)
					if all == 0 && before == 0 && due > 0 {
						t.Fatalf("two claims find nothing, and %d rows are due", due)
					}
					before = all
					for id, n := range b.due {
						waits[id]++
						if found[id] > 0 || n == 0 {
							waits[id] = 0
						}
						if most := 50 + 200*len(weights)/limit; waits[id] > most {
							t.Fatalf("tenant %d has %d rows and found nothing in %d claims", id, n, most)
						}
					}
				}
			})
		})
	}
}

// One floods, and the other's lone row is in the next claim that searches.
func TestALoneRowBesideAFloodIsFoundByTheNextSearch(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 64, 1750} {
		synctest.Test(t, func(t *testing.T) {
			b := newBacklog(1, 1)
			b.due[0] = math.MaxInt32
			for range 20 {
				b.due[3] = 1
				came := time.Now()
				for b.due[3] > 0 {
					time.Sleep(time.Millisecond)
					if b.claim(limit); time.Since(came) > searchInterval+10*time.Millisecond {
						t.Fatalf("in a claim of %d it is not found in %s", limit, time.Since(came))
					}
				}
			}
		})
	}
}

// The rows of the flood make every claim slow, and the search nothing: it comes with every second claim.
func TestALoneRowBesideAFloodWaitsForTwoSlowClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(1, 1)
		b.due[0], b.takes = math.MaxInt32, 50*time.Millisecond
		for range 4 { // until one without a search tells what a claim takes
			b.claim(1000)
		}
		for range 20 {
			b.due[3] = 1
			b.claim(1000)
			if b.claim(1000); b.due[3] > 0 {
				t.Fatal("two claims do not find it")
			}
		}
	})
}

// beside makes a search of its own, if one is due.
func (b *backlog) beside() (found map[int16]int) {
	found = map[int16]int{}
	if now := time.Now(); b.scan.searchesBeside() && !now.Before(b.scan.searchAt) {
		search := Claim{Limit: searchRows, IsSearch: true}
		b.scan.search(&search, now)
		b.make(search, found)
	}
	return found
}

// Large claims are under way, one after the other. A search beside them finds a row of a known tenant within its interval.
func TestALoneRowBesideAFloodDoesNotWaitForALargeClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(slices.Repeat([]int{1}, 20)...)
		b.due[0] = math.MaxInt32
		b.claim(1000)
		b.due[3] = 1
		for b.due[3] > 0 { // the first row makes its tenant known
			time.Sleep(searchInterval)
			b.claim(1000)
		}
		for id := int16(6); id < 60; id += 3 {
			b.due[3], b.due[id] = 1, 1
			time.Sleep(searchInterval)
			if found := b.beside(); found[3] != 1 || found[id] != 1 {
				t.Fatalf("a search finds %v", found)
			}
			if hungry := slices.IndexFunc(b.scan.tenants, func(t *tenant) bool { return t.id > 0 && t.hungry }); hungry >= 0 {
				t.Fatalf("with a single row, tenant %d counts as one with more", b.scan.tenants[hungry].id)
			}
		}
	})
}

func TestSlowSearchesOfTheirOwnHaveAThirdOfTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(1, 1)
		b.due[0], b.due[3] = math.MaxInt32, 1
		for b.due[3] > 0 {
			time.Sleep(searchInterval)
			b.claim(1000)
		}
		b.searchTakes, b.takes = 200*time.Millisecond, time.Nanosecond
		begun, searching := time.Now(), time.Duration(0)
		for range 20_000 {
			time.Sleep(time.Millisecond)
			before := time.Now()
			b.beside()
			searching += time.Since(before)
		}
		if share := searching.Seconds() / time.Since(begun).Seconds(); share < 0.25 || share > 0.35 {
			t.Errorf("searches take %.2f of the time", share)
		}
	})
}

func TestSlowSearchesHaveAThirdOfTheTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		every int
		fails bool
	}{
		"beside plain claims": {}, "beside some that carry other work": {every: 2}, "and fail": {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBacklog(1, 1)
				b.due[0], b.takes, b.searchTakes, b.every = math.MaxInt32, 5*time.Millisecond, 200*time.Millisecond, test.every
				b.claim(1000)
				b.claim(1000)
				b.fails = test.fails
				var searching, all time.Duration
				for range 1000 {
					begun := time.Now()
					b.claim(1000)
					all += time.Since(begun)
					if b.scan.searched {
						searching += time.Since(begun)
					}
				}
				if share := searching.Seconds() / all.Seconds(); share < 0.25 || share > 0.35 {
					t.Errorf("searches take %.2f of the time", share)
				}
			})
		})
	}
}

func TestFewTenantsAreRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(slices.Repeat([]int{1}, 1000)...)
		for range 100 {
			b.fill(1)
			for again := true; again; again = b.scan.again() {
				b.claim(5000)
				time.Sleep(searchInterval)
			}
			for _, n := range b.due {
				if n > 0 {
					t.Fatal("rows are left")
				}
			}
			if len(b.scan.tenants) > tenantsAtOnce || b.scan.hungry {
				t.Fatalf("%d tenants are remembered, hungry: %t", len(b.scan.tenants), b.scan.hungry)
			}
		}
	})
}
