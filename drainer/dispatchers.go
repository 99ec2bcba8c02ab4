package drainer

import "sync"

// dispatchers come as there is work for them, and leave when there is none. Whoever
// brings a row, or takes one and leaves more behind, calls for another; while one is
// on the way, nobody else is called. So whoever is held up has others beside him,
// and where nothing holds them up about as many as there are processors do it all:
// more would only wake each other.
type dispatchers struct {
	jobs     chan *Row // claimed, not started; its capacity is all that may be outstanding
	most     int       // 0 until there may be any
	dispatch func()    // until there is no next row

	mu       sync.Mutex
	present  int
	onTheWay bool
	all      sync.WaitGroup
}

// assemble is called before the first row is handed out.
func (d *dispatchers) assemble(most int, dispatch func()) { d.most, d.dispatch = most, dispatch }

func (d *dispatchers) hand(row *Row) {
	d.jobs <- row
	d.call()
}

// waiting is how many rows nobody has begun.
func (d *dispatchers) waiting() int { return len(d.jobs) }

// takeBack is nil where no row waits.
func (d *dispatchers) takeBack() *Row {
	select {
	case row := <-d.jobs:
		return row
	default:
		return nil
	}
}

// next is for dispatchers. It is nil where no row waits.
func (d *dispatchers) next() *Row {
	row := d.takeBack()
	d.call()
	return row
}

func (d *dispatchers) call() {
	if d.waiting() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.onTheWay || d.present >= d.most {
		return
	}
	d.onTheWay = true
	d.present++
	d.all.Go(d.serve)
}

// serve looks once more after it has left: whoever brought a row before that may have
// counted on it.
func (d *dispatchers) serve() {
	d.arrive()
	d.dispatch()
	d.leave()
	d.call()
}

func (d *dispatchers) arrive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onTheWay = false
}

func (d *dispatchers) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.present--
}
