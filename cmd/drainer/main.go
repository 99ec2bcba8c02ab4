// Command drainer carries committed intents from the outbox to their
// providers, once.
package main

import (
	"os"

	"github.com/agentoutbox/drainer/cmd/drainer/cli"
	"github.com/agentoutbox/drainer/dispatch/builtin"
)

//go:generate sh -c "go run . config schema > schema.tmp && mv schema.tmp ../../drainer.schema.json"

func main() { os.Exit(cli.Main(builtin.Kinds()...)) }
