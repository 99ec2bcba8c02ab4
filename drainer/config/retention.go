package config

import (
	"time"

	"github.com/agentoutbox/drainer/internal/duration"
)

// leastRetention keeps a slip from forgetting what is still going on.
const leastRetention = time.Hour

func (r *reader) checkRetention(at path, retention time.Duration) {
	if retention < leastRetention {
		r.reject(at, "must be at least 1h")
	}
}

// retain notes a retention of the tool's own, and keeps it from being shorter
// than the life of its keys: who relies on a key relies on both sides.
func (r *reader) retain(at path, name string, tool toolBlock, retention Retention) {
	ttl := tool.Idempotency.TTL
	if ttl > maxKeyTTL {
		ttl = 0 // reported where it stands
	}
	if tool.Retention == nil {
		r.checkInherited(at.child("idempotency").child("ttl"), ttl, retention.Default)
		return
	}
	retention.Tools[name] = *tool.Retention
	r.checkRetention(at.child("retention"), *tool.Retention)
	if *tool.Retention >= leastRetention && *tool.Retention < ttl {
		r.reject(at.child("retention"), "is shorter than idempotency.ttl; write at least %s", duration.Format(ttl))
	}
}

func (r *reader) checkInherited(at path, ttl, inherited time.Duration) {
	if inherited > 0 && inherited < ttl {
		r.reject(at, "is longer than the retention of %s; give this tool a retention of at least %s", duration.Format(inherited), duration.Format(ttl))
	}
}
