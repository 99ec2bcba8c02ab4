package main

// goal is a promise about one figure of a benchmark.
type goal struct {
	name      string
	benchmark string
	unit      string
	limit     limit
	gate      float64 // missing it fails
	stretch   float64
	suffix    string // of the figures, as people read them
}

// limit is which side of a gate is the good one.
type limit string

const (
	atLeast limit = "≥"
	atMost  limit = "≤"
)

// goals is what make bench answers for.
var goals = []goal{
	{"drain without a provider's cost, against River", "Drain", "x-river", atLeast, 4.5, 6, " ×"},
	{"… against River without its GIN indexes", "Drain", "x-river-without-gin", atLeast, 2.8, 3.8, " ×"},
	{"WAL a row, no retries", "Retries", "WAL-B/row-0", atMost, 450, 385, " B"},
	{"… 10 % of the rows retried", "Retries", "WAL-B/row-10", atMost, 520, 460, " B"},
	{"… 50 %", "Retries", "WAL-B/row-50", atMost, 820, 750, " B"},
	{"attempts a second at 50 % retries, of those at none", "Retries", "x-50-of-0", atLeast, 0.75, 0.9, ""},
	{"HTTP, of a bare client with 64 in flight", "HTTP", "x-bare", atLeast, 0.60, 0.75, ""},
	{"HTTP against River, 64 in flight", "HTTP", "x-river", atLeast, 2.7, 3.5, " ×"},
	{"50 lanes of batch 32, of one lane", "Lanes", "x-one-lane", atLeast, 0.7, 0.85, ""},
	{"49 lanes beside one that hangs, of 49 lanes", "HangingLane", "x-alone", atLeast, 0.9, 1, ""},
	{"rows a second at a backlog of 5 M, of 10 k", "Backlog", "x-shallow-rows", atLeast, 0.7, 0.9, ""},
	{"claim p50 at a backlog of 5 M, of 10 k", "Backlog", "x-shallow-claim-p50", atMost, 1.3, 1.1, ""},
	{"last tenth beside a pinned snapshot, of the first", "PinnedSnapshot", "last/first", atLeast, 0.9, 1, ""},
	{"pick-up from the call of enqueue, one intent after the other, p50", "PickUp", "in-turn-p50-ms", atMost, 2, 1.5, " ms"},
	{"… p99", "PickUp", "in-turn-p99-ms", atMost, 6, 3, " ms"},
	{"32 producers while a daemon drains, of the same without NOTIFY", "Producers", "x-silent", atLeast, 0.9, 1, ""},
	{"enqueue() by 32 producers, of a plain INSERT", "Enqueue", "x-insert", atLeast, 0.65, 0.8, ""},
	{"status by the four-tuple among 1 M, p50", "Status", "p50-ms", atMost, 0.5, 0.2, " ms"},
	{"… p99", "Status", "p99-ms", atMost, 1, 0.4, " ms"},
	{"daemon's memory at a backlog of 1 M", "Backlog", "MB-1M", atMost, 40, 25, " MB"},
	{"… at 5 M", "Backlog", "MB-5M", atMost, 40, 25, " MB"},
	{"two replicas, of one", "Replicas", "x-alone-2", atLeast, 0.9, 1, ""},
	{"three replicas, of one", "Replicas", "x-alone-3", atLeast, 0.9, 1, ""},
}

func (l limit) holds(figure, bound float64) bool {
	if l == atMost {
		return figure <= bound
	}
	return figure >= bound
}
