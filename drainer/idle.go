package drainer

import "time"

const (
	// busyRows is a stream of work, found by one look or by several in a row.
	// Notifications would only slow its producers down, who commit one after the
	// other while they notify: where a commit takes long, no single look would find
	// many.
	busyRows = 8
	// streamRests is how long a stream may bring nothing and go on: its producers
	// may all be waiting for the disk. Until then the lane looks for itself.
	streamRests = 20 * time.Millisecond
	// streamLooks is how often.
	streamLooks = 2 * time.Millisecond
)

// idleness keeps producers informed whether this lane waits for them.
type idleness struct {
	until   time.Time // when producers stop notifying, by this process's clock
	found   int       // since the last look that found nothing, or in a stream
	foundAt time.Time // when a look found something last
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

func (i *idleness) isStream() bool { return i.found >= busyRows }

// patience is how long the next look may be put off where this one found nothing.
func (i *idleness) patience() time.Duration {
	if i.isStream() {
		return streamLooks
	}
	return pollInterval
}

// looked notes what a claim with that mark found. It reports whether one more
// look is owed: while the mark was not standing yet, a producer may have
// committed unseen by the claim and without a notification. So it may after a
// stream, until that look's mark stands.
func (i *idleness) looked(mark IdleMark, found int) (owed bool) {
	wasStanding, wasStream := time.Now().Before(i.until), i.isStream()
	switch mark {
	case IdleWaiting:
		i.until = time.Now().Add(IdleFor)
	case IdleBusy:
		i.until = time.Time{}
	}
	i.count(found)
	return (mark == IdleWaiting && !wasStanding) || (wasStream && !i.isStream())
}

func (i *idleness) count(found int) {
	switch {
	case found > 0:
		i.found += found
		i.foundAt = time.Now()
	case !i.isStream() || time.Since(i.foundAt) >= streamRests:
		i.found = 0
	}
}
