package config

import (
	"time"

	"github.com/agentoutbox/drainer/internal/duration"
)

// A field that the file leaves out keeps the value it has here.

func defaultRoot() rootBlock {
	return rootBlock{
		Database:   databaseBlock{Schema: "outbox"},
		Worker:     workerBlock{Heartbeat: 3 * time.Second, Lease: 15 * time.Second, ShutdownTimeout: 25 * time.Second},
		Server:     serverBlock{Listen: ":9464"},
		Egress:     egressBlock{Private: allowPrivate},
		Retention:  90 * duration.Day,
		PageRepeat: 30 * time.Minute,
	}
}

func defaultProvider() providerBlock {
	return providerBlock{
		Concurrency:    32,
		Timeout:        30 * time.Second,
		CircuitBreaker: breakerBlock{ConsecutiveFailures: 3, CoolDown: 10 * time.Second},
	}
}

func defaultTool() toolBlock {
	return toolBlock{
		Retry:     retryBlock{MaxAttempts: 8, Base: 500 * time.Millisecond, Cap: 10 * time.Minute},
		OnFailure: compensate,
	}
}
