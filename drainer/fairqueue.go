package drainer

import (
	"cmp"
	"container/heap"
	"sync"
)

// fairQueue holds claimed rows that no dispatcher has taken yet. Tenants take turns by their weights: in a single
// queue, a tenant's only row would wait behind all rows that were claimed for other tenants.
type fairQueue struct {
	mu    sync.Mutex
	lines tenantHeap // one of each tenant that has rows
	of    map[int16]*tenantQueue
	now   float64 // the turn of the row that was taken last
	rows  int
	spare *tenantQueue // an empty one, kept for reuse
}

// tenantQueue is one tenant's rows, in the order in which they were claimed.
type tenantQueue struct {
	rows  []*Row
	begun int     // how many of rows were taken
	turn  float64 // when the next one is due; the lowest of all tenants comes first
}

func (t *fairQueue) put(row *Row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, waits := t.of[row.Tenant]
	if !waits {
		if t.of == nil {
			t.of = map[int16]*tenantQueue{}
		}
		l, t.spare = cmp.Or(t.spare, &tenantQueue{}), nil
		l.turn = t.now + row.turn()
		t.of[row.Tenant] = l
		heap.Push(&t.lines, l)
	}
	l.put(row)
	t.rows++
}

// put reuses the room of taken rows once they are more than half of the slice. Under load the queue is never empty, so
// without that it would grow with each row.
func (l *tenantQueue) put(row *Row) {
	if len(l.rows) == cap(l.rows) && 2*l.begun > len(l.rows) {
		waiting := copy(l.rows, l.rows[l.begun:])
		clear(l.rows[waiting:]) // payloads can be large
		l.rows, l.begun = l.rows[:waiting], 0
	}
	l.rows = append(l.rows, row)
}

// take returns nil if no row waits.
func (t *fairQueue) take() *Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == 0 {
		return nil
	}
	l := t.lines[0]
	row := l.rows[l.begun]
	l.rows[l.begun] = nil
	l.begun++
	t.rows--
	t.now = l.turn
	if l.begun < len(l.rows) {
		l.turn += row.turn()
		heap.Fix(&t.lines, 0)
		return row
	}
	heap.Pop(&t.lines)
	delete(t.of, row.Tenant)
	l.rows, l.begun, t.spare = l.rows[:0], 0, l
	return row
}

func (t *fairQueue) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows
}

// turn is how far a row moves its tenant's next turn: the lower the weight, the farther.
func (r *Row) turn() float64 { return 1 / float64(max(1, r.Weight)) }

// tenantHeap implements heap.Interface. The tenant with the lowest turn comes first.
type tenantHeap []*tenantQueue

func (l tenantHeap) Len() int           { return len(l) }
func (l tenantHeap) Less(i, j int) bool { return l[i].turn < l[j].turn }
func (l tenantHeap) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *tenantHeap) Push(next any)     { *l = append(*l, next.(*tenantQueue)) }
func (l *tenantHeap) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}
