package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/demo"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

const demoSteps = `Next: the README shows how an agent enqueues and how to configure a provider.
Then: drainer migrate up, drainer config validate, drainer run.`

func newDemo(options *options) *cobra.Command {
	var intents int
	var seed uint64
	var withConsole bool
	command := &cobra.Command{
		Use:   "demo",
		Short: "Watch drainer survive crashes, then audit the effects",
		Long: `demo starts a throwaway Postgres, a simulated provider that fails in every known
way, agents that crash and retry, and two drainers, of which it kills one. Some runs
fail at their last step and are undone. One cannot be undone, and is paged. Then demo
compares the committed intents with the provider's ledger. It exits with 1 if an
effect is missing, happened twice or was not undone. It takes less than a minute.

With --console the database stays until it is interrupted, and the console shows it.

With --database-url it creates a database of its own on that server and drops it
at the end. It ignores DATABASE_URL.`,
		Example: `  drainer demo
  drainer demo --console   # look at what happened, in a browser
  drainer demo -o json | jq '{intents, effects, duplicate_effects, lost, sagas}'
  drainer demo --database-url postgres://postgres@localhost:5432/postgres`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if intents < 1 {
				return usagef(command, "--intents is at least 1")
			}
			if !command.Flags().Changed("seed") {
				seed = uint64(mathrand.Uint32())
			}
			if !withConsole {
				return options.demo(command, intents, seed, nil)
			}
			listener, err := net.Listen("tcp", consoleAddress)
			if err != nil {
				return fmt.Errorf("--console: %w", err)
			}
			defer listener.Close()
			return options.demo(command, intents, seed, listener)
		},
	}
	command.Flags().IntVar(&intents, "intents", 3000, "how many `intents` the agents commit, beside those of 40 trips")
	command.Flags().Uint64Var(&seed, "seed", 0, "`number` that chooses faults and crashes (default: another each time)")
	command.Flags().BoolVar(&withConsole, "console", false, "show the result in a browser until interrupted")
	command.AddCommand(newDemoSandbox(options), newDemoProvider())
	return command
}

// demo runs the demo. Afterwards it serves the console at the listener, if there is one.
func (o *options) demo(command *cobra.Command, intents int, seed uint64, listener net.Listener) error {
	ctx := command.Context()
	if o.databaseURL != "" {
		conn, err := connect(ctx, pgpool.At(o.databaseURL))
		if err != nil {
			return err
		}
		conn.Close(ctx)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program to run it as a drainer: %w", err)
	}
	progress := command.ErrOrStderr()
	playing := demo.Options{
		DatabaseURL: o.databaseURL,
		Drainer:     program,
		Intents:     intents,
		Seed:        seed,
		Screen:      demo.NewScreen(progress, isTerminal(progress)),
		Logs:        progress,
	}
	if listener != nil {
		playing.Afterwards = func(ctx context.Context, report demo.Report, databaseURL string) error {
			if err := o.printAudit(command.OutOrStdout(), report); err != nil {
				return err
			}
			return showDemo(ctx, progress, listener, databaseURL)
		}
	}
	report, err := demo.Run(ctx, playing)
	if err != nil {
		return err
	}
	if listener == nil {
		if err := o.printAudit(command.OutOrStdout(), report); err != nil {
			return err
		}
	}
	if !report.Passed {
		return errors.New("the audit failed")
	}
	return nil
}

// showDemo serves the console for one operator until ctx ends.
func showDemo(ctx context.Context, say io.Writer, listener net.Listener, databaseURL string) error {
	token := rand.Text()
	log := slog.New(slog.NewJSONHandler(say, nil))
	access, err := console.Tokens([]byte("guest operator "+token), log)
	if err != nil {
		return err
	}
	pool, err := pgpool.Open(ctx, pgpool.At(databaseURL), 4)
	if err != nil {
		return err
	}
	defer pool.Close()
	pages, err := console.New(console.Options{Pool: pool, Access: access, Log: log})
	if err != nil {
		return err
	}
	fmt.Fprintf(say, "The console is at http://%s/ with the token %s\nCtrl-C ends it, and drops the database.\n", listener.Addr(), token)
	return servePages(ctx, listener, pages, maxConnections, log)
}

func isTerminal(to io.Writer) bool {
	file, ok := to.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (o *options) printAudit(to io.Writer, r demo.Report) error {
	if o.output == jsonOutput {
		return printJSON(to, r)
	}
	fmt.Fprintln(to)
	if err := (table{[]string{"AUDIT"}, auditRows(r)}).print(to); err != nil {
		return err
	}
	fmt.Fprintln(to)
	for _, violation := range r.Violations {
		fmt.Fprintln(to, "FAILED:", violation)
	}
	if r.Passed {
		fmt.Fprintf(to, "Every effect happened exactly once; every run that failed was undone, or paged. %.1f s, seed %d.\n%s\n\n%s",
			r.DurationSeconds, r.Seed, demoSteps, agentsStory(r))
	}
	return nil
}

// agentsStory describes the run from the agents' view, in the three lines that end the demo.
func agentsStory(r demo.Report) string {
	return fmt.Sprintf(`Agents broke off %d transactions: nothing of them was left, and they took the step again.
Agents asked %d times for a step that was committed: each got the first answer, and nothing was done twice.
The provider failed or delayed %d requests, and a drainer was killed with %d claimed: each of %d intents still ended once.
`, r.Rollbacks, r.DuplicatesAbsorbed, r.Requests-r.Faults["none"], r.RecoveredClaims, r.Intents)
}

func auditRows(r demo.Report) [][]any {
	failures := r.Requests - r.Faults["none"]
	refused := r.Sagas.Compensated + r.Sagas.Failed
	return [][]any{
		{"intents committed", r.Intents},
		{"effects in the provider's ledger", r.Effects, fmt.Sprintf("%d of them undo another; %d payments were refused and had none", r.Sagas.UndoEffects, refused)},
		{"duplicate effects", r.DuplicateEffects},
		{"lost", r.Lost},
		{"not ended in time", r.Unsettled},
		{"runs compensated", r.Sagas.Compensated, "their payment was refused, so their bookings were cancelled"},
		{"undone out of order", r.Sagas.OutOfOrder, "runs; what was booked last is cancelled first"},
		{"net effect of compensated runs", r.Sagas.NetEffects, "bookings that stand, or were cancelled twice"},
		{"compensations failed", r.Sagas.Failed, "no ferry takes a ticket back"},
		{"pages received", r.Sagas.Pages, "one for each failed compensation"},
		{"attempts", r.Attempts, fmt.Sprintf("%d retries; the provider failed or delayed %d of %d requests", r.Retries, failures, r.Requests)},
		{"recovered claims", r.RecoveredClaims, "taken over from the killed drainer"},
		{"duplicate enqueues absorbed", r.DuplicatesAbsorbed, "by agents that did not know they had committed"},
		{"agents' transactions rolled back", r.Rollbacks, "and left nothing behind"},
	}
}

func newDemoSandbox(options *options) *cobra.Command {
	var address, folder string
	var seed uint64
	command := &cobra.Command{
		Use:   "sandbox",
		Short: "Start a Postgres and a provider to try drainer with",
		Long: `sandbox starts a throwaway Postgres with drainer's schema, and the demo's provider,
which fails about every third request. It writes a configuration, drainer.yaml, that
names both, or keeps that of an earlier sandbox; it refuses any other. It stays until
it is interrupted; then the database goes, with all that it holds, and drainer.yaml
stays.

With --database-url it creates a database of its own on that server and drops it
at the end. It ignores DATABASE_URL.`,
		Example: `  drainer demo sandbox
  drainer demo sandbox --database-url postgres://postgres@localhost:5432/postgres`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) (err error) {
			ctx, say := command.Context(), command.ErrOrStderr()
			fmt.Fprintln(say, "Starting Postgres …")
			sandbox, err := demo.OpenSandbox(ctx, folder, address, options.databaseURL)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, sandbox.Close()) }()
			wrote := "Wrote"
			if !sandbox.IsNew {
				wrote = "Kept your"
			}
			fmt.Fprintf(say, "%s %s. The provider serves on %s.\n", wrote, sandbox.Config, sandbox.Provider)
			fmt.Fprintf(say, sandboxSteps, os.Args[0])
			return sandbox.Serve(ctx, seed)
		},
	}
	command.Flags().StringVar(&address, "listen", "127.0.0.1:8080", "`host:port` of the provider")
	command.Flags().StringVar(&folder, "folder", ".", "`folder` to write drainer.yaml into")
	command.Flags().Uint64Var(&seed, "seed", 1, "`number` that chooses the provider's faults")
	return command
}

const sandboxSteps = `Ready. In another terminal:

  %[1]s enqueue --config drainer.yaml --run run-001 --step step-1 --tool demo/charge --scope invoice_442 --payload '{"amount": 1200}'
  %[1]s run --once --config drainer.yaml
  %[1]s intents show 1 --config drainer.yaml

Ctrl-C ends Postgres and the provider.
`

func newDemoProvider() *cobra.Command {
	var address string
	var seed uint64
	command := &cobra.Command{
		Use:   "provider",
		Short: "Serve the demo's simulated provider alone",
		Long: `provider is an HTTP API that honours Idempotency-Key, counts every POST as an
effect, and fails about every third request in one of the known ways. It keeps
nothing when it ends.`,
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
