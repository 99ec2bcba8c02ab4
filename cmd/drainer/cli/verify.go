package cli

import "github.com/spf13/cobra"

func newVerify(options *options) *cobra.Command {
	command := group("verify", "Hold a provider to what it promises of repeated calls, and an adapter to what drainer takes for granted")
	command.AddCommand(newVerifyAdapter(options), newVerifyManifest(options), newVerifyReplay(options))
	return command
}
