package config

import (
	"net"
	"strings"
	"time"
)

func (r *reader) checkRoot(block rootBlock) {
	if block.Version != 1 {
		r.reject(path{"version"}, "this drainer reads format 1; write version: 1")
	}
	if block.Database.Schema != "outbox" {
		r.reject(path{"database", "schema"}, "the schema is always outbox; leave this out")
	}
	if _, _, err := net.SplitHostPort(block.Server.Listen); err != nil {
		r.reject(path{"server", "listen"}, "want host:port or :port, such as :9464")
	}
	r.checkWorker(block.Worker)
	r.checkRetention(path{"retention"}, block.Retention)
	r.checkPositive(path{"page_repeat"}, block.PageRepeat)
}

// checkWorker keeps room for lost heartbeats: a worker stops by itself at two
// thirds of its lease, and by then must have been able to miss one.
func (r *reader) checkWorker(block workerBlock) {
	at := path{"worker"}
	r.checkPositive(at.child("heartbeat"), block.Heartbeat)
	r.checkPositive(at.child("shutdown_timeout"), block.ShutdownTimeout)
	if block.Lease/3 < block.Heartbeat {
		r.reject(at.child("lease"), "must be at least three times heartbeat, so that one late heartbeat is not death")
	}
}

func (r *reader) checkPositive(at path, duration time.Duration) {
	if duration <= 0 {
		r.reject(at, "must be longer than 0")
	}
}

// maxCount is beyond all sense, and well within what memory and the tables hold.
const maxCount = 10_000

func (r *reader) checkCount(at path, count int) {
	if count < 1 {
		r.reject(at, "must be at least 1")
	}
	if count > maxCount {
		r.reject(at, "must be at most %d", maxCount)
	}
}

func (r *reader) checkProvider(at path, block providerBlock) {
	if name := at[len(at)-1]; name == "" || strings.Contains(name, "/") {
		r.reject(at, "a provider's name is what stands before the first slash of a tool name; it is neither empty nor has a slash")
	}
	if len(block.Tools) == 0 {
		r.reject(at.child("tools"), "declare at least one tool")
	}
	r.checkCount(at.child("concurrency"), block.Concurrency)
	r.checkPositive(at.child("timeout"), block.Timeout)
	r.checkCount(at.child("circuit_breaker").child("consecutive_failures"), block.CircuitBreaker.ConsecutiveFailures)
	r.checkPositive(at.child("circuit_breaker").child("cool_down"), block.CircuitBreaker.CoolDown)
	if block.RateLimit != nil {
		r.checkRateLimit(at.child("rate_limit"), *block.RateLimit)
	}
}

// checkRateLimit keeps the time between two requests within what a duration
// can hold.
func (r *reader) checkRateLimit(at path, block rateLimitBlock) {
	if block.PerSecond < minPerSecond || block.PerSecond > maxPerSecond {
		r.reject(at.child("per_second"), "want requests a second, from 0.00001 (about one a day) to 1000000")
	}
	if block.Burst != nil {
		r.checkCount(at.child("burst"), *block.Burst)
	}
}

const (
	minPerSecond = 0.00001
	maxPerSecond = 1_000_000
)

func join[S ~string](names []S) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = string(name)
	}
	return strings.Join(texts, ", ")
}
