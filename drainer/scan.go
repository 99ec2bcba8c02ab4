package drainer

import "time"

const (
	fullScanInterval = time.Second
	// fullScanShare limits full scans to that fraction of a lane's time: one
	// pays for every dead index entry that a held snapshot keeps alive.
	fullScanShare = 20
	// maxScanPause keeps one slow turn from hiding rows for minutes.
	maxScanPause = 10 * time.Second
)

// scan is where a lane looks next. Following the cursor skips the dead entries
// of earlier claims; a full scan also finds what landed behind it: rows
// released, reaped or committed late.
type scan struct {
	cursor   Cursor
	allowed  time.Time // the next full scan may come
	overdue  time.Time // the next full scan must come
	hungry   bool      // the last look found all it asked for
	owed     bool      // one more look before waiting
	nothing  bool      // the last full scan found nothing due
	hasBegun bool
}

// again reports whether the next look need not wait.
func (s *scan) again() bool { return s.hungry || s.owed || !s.hasBegun }

// everywhere is a full scan whether one is due or not.
func (s *scan) everywhere() Cursor {
	s.owed = false
	return Cursor{}
}

func (s *scan) from() Cursor {
	s.owed = false
	now := time.Now()
	if now.After(s.overdue) || (!s.hungry && now.After(s.allowed)) {
		s.overdue = now.Add(fullScanInterval) // a look that begins beside this one need not be another
		return Cursor{}
	}
	return s.cursor
}

func (s *scan) looked(claim Claim, reply ClaimReply) {
	isFull := claim.After.isZero()
	if isFull {
		pause := min(fullScanShare*reply.Took, maxScanPause)
		s.allowed = time.Now().Add(pause)
		s.overdue = time.Now().Add(max(fullScanInterval, pause))
	}
	if reply.Found > 0 && (isFull || s.advances(claim.After, reply.Next)) {
		s.cursor = reply.Next
	}
	s.hungry = reply.Found == claim.Limit
	s.nothing = isFull && reply.Found == 0
	s.hasBegun = true
}

// advances asks of looks that began at the same time: the later one of them to be
// heard of must not turn back, nor pass over what a full scan has yet to go through.
func (s *scan) advances(after, next Cursor) bool {
	return after.Compare(s.cursor) <= 0 && next.Compare(s.cursor) > 0
}

// owe asks for one more look before the lane waits.
func (s *scan) owe() { s.owed = true }

// restart forgets what was seen: a look that failed may have left rows where others
// have passed since.
func (s *scan) restart() { s.cursor, s.owed, s.nothing = Cursor{}, true, false }
