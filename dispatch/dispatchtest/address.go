package dispatchtest

import "testing"

// Address is a loopback address that belongs to the test until it ends, also
// while nobody listens there: else another process could be given the port
// between a counterpart's going away and its coming back.
func Address(t testing.TB) string {
	t.Helper()
	address, release, err := holdAddress()
	if err != nil {
		t.Fatalf("holding a loopback address: %v", err)
	}
	t.Cleanup(release)
	return address
}
