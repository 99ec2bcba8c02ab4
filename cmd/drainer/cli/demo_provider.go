package cli

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/demo"
)

func newDemoProvider() *cobra.Command {
	var address string
	var seed uint64
	command := &cobra.Command{
		Use:   "provider",
		Short: "Serve the demo's simulated provider alone",
		Long: `provider serves what the demo's drainers talk to: an HTTP API that honours
Idempotency-Key, takes every POST for an effect, and fails every third request in
one of the known ways. It forgets everything when it ends.`,
		Example: `  drainer demo provider --listen :8080`,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			listener, err := net.Listen("tcp", address)
			if err != nil {
				return fmt.Errorf("--listen: %w", err)
			}
			fmt.Fprintln(command.ErrOrStderr(), "serving on", listener.Addr())
			return demo.ServeProvider(command.Context(), listener, seed)
		},
	}
	command.Flags().StringVar(&address, "listen", "127.0.0.1:8080", "`host:port` to serve on")
	command.Flags().Uint64Var(&seed, "seed", 1, "`number` that chooses the faults")
	return command
}
