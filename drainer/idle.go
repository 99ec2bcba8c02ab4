package drainer

import "time"

// busyRows is a claim that shows a stream of work: notifications would only
// slow its producers down.
const busyRows = 8

// idleness keeps producers informed whether this lane waits for them.
type idleness struct {
	until  time.Time // when producers stop notifying, by this process's clock
	stream bool      // the last claim found a stream of work
}

func (i *idleness) mark() IdleMark {
	left := time.Until(i.until)
	switch {
	case i.stream && left > 0:
		return IdleBusy
	case i.stream || left > IdleFor/2:
		return IdleUnchanged
	}
	return IdleWaiting
}

// looked notes what a claim with that mark found. It reports whether one more
// look is owed: while the mark was not standing yet, a producer may have
// committed unseen by the claim and without a notification.
func (i *idleness) looked(mark IdleMark, found int) (owed bool) {
	wasStanding := time.Now().Before(i.until)
	switch mark {
	case IdleWaiting:
		i.until = time.Now().Add(IdleFor)
	case IdleBusy:
		i.until = time.Time{}
	}
	i.stream = found >= busyRows
	return mark == IdleWaiting && !wasStanding
}
