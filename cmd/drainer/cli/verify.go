package cli

import "github.com/spf13/cobra"

func newVerify(options *options) *cobra.Command {
	command := group("verify", "Hold a provider to what it promises of repeated calls")
	command.AddCommand(newVerifyManifest(options), newVerifyReplay(options))
	return command
}
