// Package builtin lists the adapters that are part of drainer.
package builtin

import (
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/exec"
	"github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/dispatch/kafka"
	"github.com/agentoutbox/drainer/dispatch/log"
	"github.com/agentoutbox/drainer/dispatch/mcp"
	"github.com/agentoutbox/drainer/dispatch/nats"
	"github.com/agentoutbox/drainer/dispatch/postgres"
	"github.com/agentoutbox/drainer/dispatch/rabbitmq"
	"github.com/agentoutbox/drainer/dispatch/sidecar"
	"github.com/agentoutbox/drainer/dispatch/smtp"
	"github.com/agentoutbox/drainer/dispatch/webhook"
)

// Kinds returns the built-in adapters. The caller may extend the list.
func Kinds() []dispatch.Kind {
	return []dispatch.Kind{
		exec.Kind(),
		http.Kind(),
		kafka.Kind(),
		log.Kind(),
		mcp.Kind(),
		nats.Kind(),
		postgres.Kind(),
		rabbitmq.Kind(),
		sidecar.Kind(),
		smtp.Kind(),
		webhook.Kind(),
	}
}
