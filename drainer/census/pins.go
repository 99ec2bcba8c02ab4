package census

import "time"

// pins remember since when each kind of holder has had its oldest transaction:
// of a replication slot, and of other roles' sessions, the database does not
// tell.
type pins map[string]pinned

type pinned struct {
	xid   string
	since time.Time
}

// see completes how long each has been held, as far as this process saw it.
func (p pins) see(seen []Pin, now time.Time) {
	there := map[string]bool{}
	for i := range seen {
		pin := &seen[i]
		there[pin.Holder] = true
		if p[pin.Holder].xid != pin.XID {
			p[pin.Holder] = pinned{pin.XID, now}
		}
		pin.Held = max(pin.Held, now.Sub(p[pin.Holder].since))
	}
	for holder := range p {
		if !there[holder] {
			delete(p, holder)
		}
	}
}
