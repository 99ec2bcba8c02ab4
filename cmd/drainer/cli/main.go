// Package cli is the program, with one file for each command. It imports every other package. Only main functions
// import it: drainer's own, and the main function of a program with additional adapters.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/remedy"
	"github.com/agentoutbox/drainer/internal/pgpool"
	"github.com/agentoutbox/drainer/internal/spelling"
	"github.com/agentoutbox/drainer/migrations"
)

// Main runs the command line with these adapters and returns the exit code.
func Main(kinds ...dispatch.Kind) int {
	registry, err := dispatch.NewRegistry(kinds...)
	if err != nil {
		fmt.Fprintf(os.Stderr, "drainer: %s; correct the main function of this program\n", err)
		return exitUsage
	}
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		// The first signal asks the program to finish. The default handler is restored before that, so a second
		// signal ends the program at once.
		signal.Stop(signals)
		stop()
	}()
	options := newOptions(registry)
	options.hangups = hangups
	return execute(ctx, rootOf(options), os.Args[1:])
}

// hangups listens for SIGHUP, which would end a program that does not listen.
func hangups() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals
}

// options are shared by all commands.
type options struct {
	registry    dispatch.Registry
	configPath  string
	databaseURL string
	output      outputFormat
	hangups     func() <-chan os.Signal // listens for SIGHUP from its call on
}

func newOptions(registry dispatch.Registry) *options {
	return &options{registry: registry, output: tableOutput, hangups: func() <-chan os.Signal { return nil }}
}

var rootHelp = `drainer turns intents that agents commit in Postgres into effects at their
providers, once.

An agent writes an intent in the transaction of its own state; drainer claims
it, sends it with its idempotency key, retries what is safe to retry, and
stores the response where the agent can read it.

` + remedy.ExitCodes() + `
docs/errors.md has every error: what it means, and what to do.`

const rootExample = `  # check a configuration before it is deployed
  drainer config validate --config drainer.yaml

  # the same for a program
  drainer config validate --config drainer.yaml -o json`

func newRoot(registry dispatch.Registry) *cobra.Command { return rootOf(newOptions(registry)) }

func rootOf(options *options) *cobra.Command {
	root := group("drainer", "Turn committed intents into effects, once")
	root.Long, root.Example = rootHelp, rootExample
	root.Version = currentVersion().Version
	root.SilenceErrors, root.SilenceUsage = true, true

	flags := root.PersistentFlags()
	flags.StringVar(&options.configPath, "config", "", "configuration `file` (default: $DRAINER_CONFIG, then ./drainer.yaml)")
	flags.StringVar(&options.databaseURL, "database-url", "", "Postgres `URL` of the outbox (default: the configuration's, then $DATABASE_URL)")
	flags.VarP(&options.output, "output", "o", "`format` of what is printed: table or json")

	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	root.SetFlagErrorFunc(explainFlag)
	root.PersistentPreRun = func(command *cobra.Command, _ []string) { options.findConfig(command) }

	inGroup(root, "daemon", "Drain:", newRun(options), newEnqueue(options), newDemo(options))
	inGroup(root, "look", "See what is wrong:",
		newStatus(options), newConsole(options), newMCP(options), newHealthcheck(options), newIntents(options), newSagas(options), newIncidents(options), newTenants(options), newDoctor(options))
	inGroup(root, "decide", "Stop, resume and take back:", newProviders(options), newRuns(options), newHistory(options), newSagaChange(options, compensate))
	inGroup(root, "set-up", "Set up:", newConfig(options), newVerify(options), newMigrate(options))
	root.SetCompletionCommandGroupID("set-up")
	root.AddCommand(newVersion(options), newMan())
	options.addCompletions(root)
	return root
}

func inGroup(root *cobra.Command, id, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, command := range commands {
		command.GroupID = id
		root.AddCommand(command)
	}
}

// group returns a command that only holds other commands. Alone it prints its help. An unknown word after it is an
// error.
func group(use, short string) *cobra.Command {
	return &cobra.Command{
		Use:                        use,
		Short:                      short,
		Args:                       noSuchCommand,
		RunE:                       func(command *cobra.Command, _ []string) error { return command.Help() },
		SuggestionsMinimumDistance: 2,
	}
}

func noSuchCommand(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	meant := ""
	if near := command.SuggestionsFor(args[0]); len(near) > 0 {
		meant = fmt.Sprintf("; did you mean %s?", strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %q for %q%s", args[0], command.CommandPath(), meant)
}

// refuseUnknownWords makes the library's own commands refuse unknown words as a group does. By default they print a
// help text and succeed.
func refuseUnknownWords(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, command := range root.Commands() {
		switch command.Name() {
		case "help":
			command.Args = func(_ *cobra.Command, args []string) error {
				found, rest, _ := root.Find(args) // an unknown word is in the rest
				return noSuchCommand(found, rest)
			}
		case "completion":
			as := group(command.Use, command.Short)
			command.Args, command.RunE, command.SuggestionsMinimumDistance = as.Args, as.RunE, as.SuggestionsMinimumDistance
		}
	}
}

// explainFlag adds the name of the most similar flag to the error of an unknown flag.
func explainFlag(command *cobra.Command, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return err
	}
	var known []string
	command.Flags().VisitAll(func(flag *pflag.Flag) { known = append(known, flag.Name) })
	if near, found := spelling.Nearest(name, known); found {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return err
}

const (
	configVariable = "DRAINER_CONFIG"
	defaultConfig  = "drainer.yaml"
)

// findConfig chooses the configuration if --config is not given: the file of $DRAINER_CONFIG, or else drainer.yaml
// in the working directory, if it exists.
func (o *options) findConfig(command *cobra.Command) {
	if command.Flags().Changed("config") {
		return
	}
	o.configPath = os.Getenv(configVariable)
	if o.configPath != "" {
		return
	}
	if found, err := os.Stat(defaultConfig); err == nil && found.Mode().IsRegular() {
		o.configPath = defaultConfig
	}
}

// Exit codes, as documented in the help of the root command.
const (
	exitOK                  = 0
	exitFailed              = 1
	exitUsage               = 2
	exitConfigInvalid       = 3
	exitDatabaseUnreachable = 4
	exitSchemaBehind        = 5
)

var (
	errUsage               = errors.New("usage")
	errDatabaseUnreachable = errors.New("the database cannot be reached")
)

// usageError is a mistake in the command line. Commands return it for mistakes that the flags cannot check
// themselves.
type usageError struct {
	error
	command string
}

func usagef(command *cobra.Command, format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...), command.CommandPath()}
}

func (e usageError) Error() string {
	return fmt.Sprintf("%s (see %s --help)", e.error, e.command)
}

func (e usageError) Is(target error) bool { return target == errUsage }

// execute runs a command and writes its error, if any, to standard error. An error before the command's own code
// starts is a usage error.
func execute(ctx context.Context, root *cobra.Command, args []string) int {
	refuseUnknownWords(root)
	started := false
	noteStart(root, &started)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if err != nil && !started && !errors.Is(err, errUsage) {
		err = usageError{err, command.CommandPath()}
	}
	printError(root.ErrOrStderr(), err)
	return exitCode(err)
}

func noteStart(command *cobra.Command, started *bool) {
	if run := command.RunE; run != nil {
		command.RunE = func(command *cobra.Command, args []string) error {
			*started = true
			return run(command, args)
		}
	}
	for _, child := range command.Commands() {
		noteStart(child, started)
	}
}

func exitCode(err error) int {
	var invalid *config.InvalidError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUsage), errors.Is(err, pgpool.ErrURL):
		return exitUsage
	case errors.As(err, &invalid):
		return exitConfigInvalid
	case errors.Is(err, errDatabaseUnreachable), errors.Is(err, pgpool.ErrRefused), errors.Is(err, pgpool.ErrNoLogin):
		return exitDatabaseUnreachable
	case errors.Is(err, migrations.ErrBehind):
		return exitSchemaBehind
	default:
		return exitFailed
	}
}

// printError writes one line for an error, or for each mistake of an invalid configuration.
func printError(to io.Writer, err error) {
	var invalid *config.InvalidError
	switch {
	case err == nil:
	case errors.As(err, &invalid):
		for _, problem := range invalid.Problems {
			fmt.Fprintf(to, "drainer: %s\n", printable(problem.Error()))
		}
	default:
		fmt.Fprintf(to, "drainer: %s\n", printable(oneLine(err.Error())))
	}
}

// oneLine joins the lines of a driver's error. It keeps only one of two equal lines, which the driver writes for the
// same server with and without TLS.
func oneLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.ReplaceAll(strings.Join(slices.Compact(lines), "; "), ":; ", ": ")
}

// The linker sets these variables, as the Makefile does: Go's own stamps are missing if the build has no history or
// does not stamp.
var version, revision, date string

type buildVersion struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Date     string `json:"date,omitempty"`     // of the revision, RFC 3339
	Modified bool   `json:"modified,omitempty"` // built from a tree that differs from Revision
	Go       string `json:"go"`
}

func newVersion(options *options) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print which drainer this is",
		Example: "  drainer version -o json",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			build := currentVersion()
			return options.print(command, build, table{
				[]string{"VERSION", "REVISION", "DATE", "GO"}, [][]any{{build.Version, build.Revision, build.Date, build.Go}},
			})
		},
	}
}

// newMan makes a command for packages, which ship the help of all commands as manual pages.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:     "man FOLDER",
		Short:   "Write a manual page for each command",
		Example: "  drainer man /usr/share/man/man1",
		Args:    cobra.ExactArgs(1),
		Hidden:  true,
		RunE: func(command *cobra.Command, args []string) error {
			build := currentVersion()
			written, err := time.Parse(time.RFC3339, build.Date)
			if err != nil {
				written = time.Unix(0, 0) // so that the same tree makes the same pages
			}
			return doc.GenManTree(command.Root(), &doc.GenManHeader{Section: "1", Source: "drainer " + build.Version, Date: &written}, args[0])
		},
	}
}

func currentVersion() buildVersion {
	current := buildVersion{Version: "unknown"}
	if info, ok := debug.ReadBuildInfo(); ok {
		current.Version, current.Go = info.Main.Version, info.GoVersion
		for _, setting := range info.Settings {
			switch setting.Key {
			case "vcs.revision":
				current.Revision = setting.Value
			case "vcs.time":
				current.Date = setting.Value
			case "vcs.modified":
				current.Modified = setting.Value == "true"
			}
		}
	}
	current.Version = cmp.Or(version, current.Version)
	current.Revision = cmp.Or(revision, current.Revision)
	current.Date = cmp.Or(date, current.Date)
	return current
}
