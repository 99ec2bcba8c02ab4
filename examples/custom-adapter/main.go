// Command custom-adapter is drainer with one more adapter.
package main

import (
	"os"

	"github.com/agentoutbox/drainer/cmd/drainer/cli"
	"github.com/agentoutbox/drainer/dispatch/builtin"
	"github.com/agentoutbox/drainer/examples/custom-adapter/filedrop"
)

func main() { os.Exit(cli.Main(append(builtin.Kinds(), filedrop.Kind())...)) }
