package drainer

import "sync"

// dispatchers come as there is work for them, and rest when there is none. Whoever
// brings a row, or takes one and leaves more behind, calls for another; while one is
// on the way, nobody else is called. So whoever is held up has others beside him,
// and where nothing holds them up about as many as there are processors do it all:
// more would only wake each other.
type dispatchers struct {
	jobs     chan *Row // claimed, not started; its capacity is all that may be outstanding
	most     int       // 0 until there may be any
	dispatch func(next func() *Row)

	mu        sync.Mutex
	present   int
	resting   []chan struct{} // each waits for a call of its own; the last to rest is the first to be called
	onTheWay  bool
	dismissed bool
	all       sync.WaitGroup
}

// assemble is called before the first row is handed out. dispatch works until there is no
// next row.
func (d *dispatchers) assemble(most int, dispatch func(next func() *Row)) {
	d.most, d.dispatch = most, dispatch
}

func (d *dispatchers) hand(row *Row) {
	d.jobs <- row
	d.call()
}

// waiting is how many rows nobody has begun.
func (d *dispatchers) waiting() int { return len(d.jobs) }

// take is nil where no row waits.
func (d *dispatchers) take() *Row {
	select {
	case row := <-d.jobs:
		return row
	default:
		return nil
	}
}

// dismiss lets them end what was handed to them, and go. Nobody may hand out more.
func (d *dispatchers) dismiss() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dismissed = true
	for _, called := range d.resting {
		close(called)
	}
	d.resting = nil
}

func (d *dispatchers) call() {
	if d.waiting() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.resting) - 1
	switch {
	case d.onTheWay:
	case last >= 0:
		d.onTheWay = true
		d.resting[last] <- struct{}{}
		d.resting = d.resting[:last]
	case d.present < d.most:
		d.onTheWay = true
		d.present++
		d.all.Go(d.serve)
	}
}

func (d *dispatchers) serve() {
	called := make(chan struct{}, 1)
	d.arrive()
	d.dispatch(func() *Row { return d.next(called) })
}

// next is nil for those who were dismissed, once no row waits.
func (d *dispatchers) next(called chan struct{}) *Row {
	for {
		if row := d.take(); row != nil {
			d.call()
			return row
		}
		if !d.rest(called) {
			return d.take() // what came before they were dismissed
		}
	}
}

// rest calls once more when it can be called itself: whoever brought a row before
// that may have counted on it.
func (d *dispatchers) rest(called chan struct{}) (again bool) {
	if !d.lieDown(called) {
		return false
	}
	d.call()
	_, again = <-called
	d.arrive()
	return again
}

func (d *dispatchers) lieDown(called chan struct{}) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dismissed {
		return false
	}
	d.resting = append(d.resting, called)
	return true
}

func (d *dispatchers) arrive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onTheWay = false
}
