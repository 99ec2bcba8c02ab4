package drainer

import "time"

// busyRows is a stream of work, found by one look or by several in a row.
// Notifications would only slow its producers down, who commit one after the
// other while they notify: where a commit takes long, no single look would find
// many.
const busyRows = 8

// idleness keeps producers informed whether this lane waits for them.
type idleness struct {
	until time.Time // when producers stop notifying, by this process's clock
	found int       // since the last look that found nothing
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
	i.found += found
	if found == 0 {
		i.found = 0
	}
	return (mark == IdleWaiting && !wasStanding) || (wasStream && !i.isStream())
}
