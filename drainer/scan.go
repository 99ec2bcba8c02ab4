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
	full     bool      // the look under way is a full scan
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
	s.full = true
	return Cursor{}
}

func (s *scan) from() Cursor {
	now := time.Now()
	s.full = now.After(s.overdue) || (!s.hungry && now.After(s.allowed))
	if s.full {
		return Cursor{}
	}
	return s.cursor
}

func (s *scan) looked(limit int, reply ClaimReply, took time.Duration) {
	if s.full {
		pause := min(fullScanShare*took, maxScanPause)
		s.allowed = time.Now().Add(pause)
		s.overdue = time.Now().Add(max(fullScanInterval, pause))
	}
	if reply.Found > 0 {
		s.cursor = reply.Next
	}
	s.hungry = reply.Found == limit
	s.nothing = s.full && reply.Found == 0
	s.owed, s.hasBegun = false, true
}

// owe asks for one more look before the lane waits.
func (s *scan) owe() { s.owed = true }
