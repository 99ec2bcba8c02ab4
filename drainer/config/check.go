package config

import (
	"net"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
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

func (r *reader) checkCount(at path, count int) {
	if count < 1 {
		r.reject(at, "must be at least 1")
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
}

func (r *reader) checkTool(at path, block toolBlock) {
	if at[len(at)-1] == "" {
		r.reject(at, "an operation's name is what stands after the first slash of a tool name; it is not empty")
	}
	r.checkIdempotency(at.child("idempotency"), block.Idempotency)
	r.checkRetry(at.child("retry"), block.Retry)
}

func (r *reader) checkIdempotency(at path, block idempotencyBlock) {
	if !slices.Contains(dispatch.Classes(), block.Class) {
		r.reject(at.child("class"), "say what repeating the call does: %s", join(dispatch.Classes()))
		return
	}
	if block.Class == dispatch.KeyIdempotent {
		r.checkKey(at, block)
		return
	}
	if block.TTL != 0 {
		r.reject(at.child("ttl"), "has a meaning only for key_idempotent; leave it out")
	}
	if block.Scope != "" {
		r.reject(at.child("scope"), "has a meaning only for key_idempotent; leave it out")
	}
}

func (r *reader) checkKey(at path, block idempotencyBlock) {
	if block.TTL <= 0 {
		r.reject(at.child("ttl"), "say how long the provider remembers a key, such as 24h")
	}
	if block.Scope == "" {
		r.reject(at.child("scope"), "say within what the provider tells keys apart, such as account")
	}
}

func (r *reader) checkRetry(at path, block retryBlock) {
	r.checkCount(at.child("max_attempts"), block.MaxAttempts)
	r.checkPositive(at.child("base"), block.Base)
	if block.Cap < block.Base {
		r.reject(at.child("cap"), "must not be shorter than base")
	}
}

func join[S ~string](names []S) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = string(name)
	}
	return strings.Join(texts, ", ")
}
