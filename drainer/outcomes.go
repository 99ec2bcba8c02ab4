package drainer

import "sync"

// outcomes wait here for their lane to collect them. Dispatchers never wait to put
// one down, and the lane is woken only for as many as it says: being woken for each
// would cost both sides more than the outcome itself.
type outcomes struct {
	enough chan struct{} // capacity 1; what it holds may answer an earlier question

	mu      sync.Mutex
	waiting []Settlement
	wanted  int // how many are enough; 0 for none ever
}

func newOutcomes() *outcomes { return &outcomes{enough: make(chan struct{}, 1)} }

func (o *outcomes) put(outcome Settlement) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, outcome)
	o.tell()
}

// whenThere tells once so many wait, and forgets what was asked before.
func (o *outcomes) whenThere(wanted int) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wanted = wanted
	o.tell()
	return o.enough
}

func (o *outcomes) tell() {
	if o.wanted == 0 || len(o.waiting) < o.wanted {
		return
	}
	o.wanted = 0
	select {
	case o.enough <- struct{}{}:
	default:
	}
}

// take moves the first ones, at most so many.
func (o *outcomes) take(to []Settlement, most int) []Settlement {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := min(most, len(o.waiting))
	to = append(to, o.waiting[:taken]...)
	left := copy(o.waiting, o.waiting[taken:])
	clear(o.waiting[left:]) // responses can be large
	o.waiting = o.waiting[:left]
	return to
}

func (o *outcomes) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting)
}
