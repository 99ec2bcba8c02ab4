package upkeep

import "time"

// Hurry makes slices of one transaction each, and transactions of a few looks.
func (u *Upkeep) Hurry(looks int) { u.pace = pace{looks: looks, slice: time.Nanosecond} }
