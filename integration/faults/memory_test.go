package faults_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// peakMemory is the most that a process had resident so far, in octets, as
// Linux tells.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("the memory of a process cannot be seen here: %v", err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kibibytes, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kibibytes << 10
}
