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
	var listen string
	var ready bool
	command := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask the daemon on this machine whether it lives",
		Long: `healthcheck asks /livez of the daemon that runs with the same configuration on this
machine, within 3 seconds. It is for containers without a shell. With --ready it
asks /readyz, which also fails while the database is away.

Of the configuration it reads server.listen alone: a daemon goes on after a mistake
in its file. If that cannot be read, $DRAINER_LISTEN or 127.0.0.1:9464 is asked.

Exit 0: yes. 1: no, and the answer says why.`,
		Example: `  drainer healthcheck --config /etc/drainer/drainer.yaml
  drainer healthcheck --ready
  drainer healthcheck --listen 127.0.0.1:9464`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			address, doubt := listen, error(nil)
			if command.Flags().Changed("listen") {
				if _, _, err := net.SplitHostPort(listen); err != nil {
					return usagef(command, "--listen: %s; want host:port, such as 127.0.0.1:9464", err)
				}
			} else {
				address, doubt = options.daemonAddress()
			}
			page := "/livez"
			if ready {
				page = "/readyz"
			}
			err := ask(command.Context(), address, page)
			if err != nil && doubt != nil {
				return fmt.Errorf("the file does not say where the daemon listens (%w), and %s was asked: %w; name the address with --listen", doubt, address, err)
			}
			return err
		},
	}
	command.Flags().StringVar(&listen, "listen", "", "`host:port` that the daemon listens on (default: server.listen of the configuration)")
	command.Flags().BoolVar(&ready, "ready", false, "ask whether it is ready, and not only alive")
	return command
}

// daemonAddress returns where the daemon of this machine listens. A running daemon has rejected a file with mistakes
// and goes on, so the health check must not fail because of them: that would end the container, which then could not
// start. doubt says why the file's address could not be read.
func (o *options) daemonAddress() (address string, doubt error) {
	loaded := &config.Config{}
	if o.configPath != "" {
		loaded.Server.Listen, doubt = config.ListenOf(o.configPath)
	}
	return listenAddress(loaded), doubt
}

// listenAddress returns where the daemon of this configuration listens.
func listenAddress(loaded *config.Config) string {
	return cmp.Or(loaded.Server.Listen, os.Getenv(listenVariable), defaultListen)
}

func ask(ctx context.Context, listens, page string) error {
	host, port, err := net.SplitHostPort(listens)
	if err != nil {
		return fmt.Errorf("server.listen: %w", err)
	}
	if address, err := netip.ParseAddr(host); host == "" || err == nil && address.IsUnspecified() {
		host = "127.0.0.1" // a server that listens on all addresses also listens here
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
	said, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10)) // the status alone decides
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: HTTP %d: %s", page, answer.StatusCode, strings.TrimSpace(string(said)))
	}
	return nil
}
