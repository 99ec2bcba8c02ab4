package drainer

import "time"

const (
	// busyRows is a stream of work, found by one look or by several in a row.
	// Notifications would only slow its producers down. Where a commit takes long, no
	// single look would find many.
	busyRows = 8
	// streamRest is how long a stream may bring nothing and go on: its producers
	// may all be waiting for the disk. Until then the lane looks for itself.
	streamRest = 20 * time.Millisecond
	// lookInterval spaces the looks at a stream that rests, and is the first of a lookout.
	lookInterval = 2 * time.Millisecond
	// lookout is how long a lane that was woken, or found something, looks again, at
	// growing distances: of producers who commit at once one notifies, and others may
	// be a moment later. The last look is less than twice as far off.
	lookout = 10 * time.Millisecond
)

// idleness keeps producers informed whether this lane waits for them.
type idleness struct {
	until    time.Time // when producers stop notifying, by this process's clock
	found    int       // since the last look that found nothing
	busyAt   time.Time // when the last look in a stream found something
	rests    bool      // the stream brought nothing since, but not for long
	activeAt time.Time // when a notification or a look last told of work
}

func (i *idleness) mark() IdleMark {
	left := time.Until(i.until)
	switch {
	case i.isStream() && left > 0:
		return IdleBusy
	case i.isStream() || left > IdleFor/2:
		return IdleUnchanged
	}
	return IdleWaiting
}

func (i *idleness) isStream() bool { return i.found >= busyRows || i.rests }

// patience is how long to wait for the next look if nothing asks for one.
func (i *idleness) patience() time.Duration {
	if i.isStream() {
		return lookInterval
	}
	if since := time.Since(i.activeAt); since < lookout {
		return max(lookInterval, since)
	}
	return pollInterval
}

// woken notes a notification. What it tells of may be another replica's by now, and
// what is still to come this one's.
func (i *idleness) woken() { i.activeAt = time.Now() }

// looked notes what a claim with that mark, begun then, has found. It reports
// whether one more look is owed: while the mark was not standing yet, a producer
// may have committed unseen by the claim and without a notification. So it may
// after a stream, until that look's mark stands.
func (i *idleness) looked(mark IdleMark, begun time.Time, found int) (owed bool) {
	wasStanding, wasStream := time.Now().Before(i.until), i.isStream()
	switch mark {
	case IdleWaiting:
		i.until = time.Now().Add(IdleFor)
	case IdleBusy:
		i.until = time.Time{}
	}
	i.count(begun, found)
	return (mark == IdleWaiting && !wasStanding) || (wasStream && !i.isStream())
}

// count lets a stream rest only once it has brought many: a trickle that followed
// it would keep the lane looking for ever.
func (i *idleness) count(begun time.Time, found int) {
	if found == 0 {
		i.rests = i.isStream() && begun.Sub(i.busyAt) < streamRest
		i.found = 0
		return
	}
	i.activeAt = time.Now()
	if i.found += found; i.found >= busyRows {
		i.busyAt, i.rests = i.activeAt, false
	}
}
