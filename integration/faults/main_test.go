// Package faults_test takes daemons of the real program apart, one fault after
// the other, and holds three accounts of what happened against each other.
package faults_test

import (
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }
