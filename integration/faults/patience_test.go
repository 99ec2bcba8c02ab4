package faults_test

import "strings"

// patient is for tests in which no attempt is to run out of time, so that a busy
// machine does not look like a provider that hangs.
func patient(config string) string {
	return strings.ReplaceAll(config, "timeout: 1s", "timeout: 30s")
}
