//go:build !failpoints

package failpoint

// Hit does nothing.
func (Point) Hit() {}

// Fail returns nil.
func (Point) Fail() error { return nil }
