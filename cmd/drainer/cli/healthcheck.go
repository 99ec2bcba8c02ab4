package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/config"
)

func newHealthcheck(options *options) *cobra.Command {
	var ready bool
	command := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask the daemon on this machine whether it lives",
		Long: `healthcheck asks /livez of the daemon that runs with the same configuration on this
machine, within 3 seconds. It is for containers without a shell. With --ready it
asks /readyz, which also fails while the database is away.

Exit 0: yes. 1: no, and the answer says why.`,
		Example: `  drainer healthcheck --config /etc/drainer/drainer.yaml
  drainer healthcheck --ready`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, err := options.givenPolicies(command)
			if err != nil {
				return err
			}
			page := "/livez"
			if ready {
				page = "/readyz"
			}
			return ask(command.Context(), listenAddress(cmp.Or(loaded, &config.Config{})), page)
		},
	}
	command.Flags().BoolVar(&ready, "ready", false, "ask whether it is ready, and not only alive")
	return command
}

// listenAddress is where the daemon of this configuration listens.
func listenAddress(loaded *config.Config) string {
	return cmp.Or(loaded.Server.Listen, os.Getenv(listenVariable), defaultListen)
}

func ask(ctx context.Context, listens, page string) error {
	host, port, err := net.SplitHostPort(listens)
	if err != nil {
		return fmt.Errorf("server.listen: %w", err)
	}
	if address, err := netip.ParseAddr(host); host == "" || err == nil && address.IsUnspecified() {
		host = "127.0.0.1" // one of every address
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+page, nil)
	if err != nil {
		return fmt.Errorf("server.listen: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{}} // no proxy
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("no daemon answers: %w", err)
	}
	defer answer.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10)) // the status has said enough
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: HTTP %d: %s", page, answer.StatusCode, strings.TrimSpace(string(said)))
	}
	return nil
}
