//go:build race

package nemesis_test

import "github.com/agentoutbox/drainer/integration/program"

// build is how the daemons are built: raced where the test is.
var build = program.Raced
