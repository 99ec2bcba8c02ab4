// Package peek looks at a connection that nobody reads from at the moment. The
// kernel takes note when the peer speaks or leaves; a request written after
// that is lost, or takes another request's answer for its own, and nobody can tell.
package peek

// State is what a connection holds unread.
type State int

const (
	Unknown State = iota // it is not [Possible] to tell
	Quiet                // nothing
	Unread               // octets, of which the last may be followed by the end
	Ended                // the end: the peer has closed or reset it
)
