package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/migrations"
)

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
	// errDatabaseURL stands alone: the parser's own words may repeat a password.
	errDatabaseURL = errors.New("the database URL cannot be read; write postgres://user:password@host:5432/database, with special characters escaped, and check the certificates that it names")
)

// usageError is a mistake in the command line. Commands return it for what
// the flags cannot check themselves.
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

// execute runs a command and reports its error, if any, on standard error.
// What fails before a command's own code starts is a usage error.
func execute(ctx context.Context, root *cobra.Command, args []string) int {
	started := false
	noteStart(root, &started)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if err != nil && !started {
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
	case errors.Is(err, errUsage), errors.Is(err, errDatabaseURL):
		return exitUsage
	case errors.As(err, &invalid):
		return exitConfigInvalid
	case errors.Is(err, errDatabaseUnreachable):
		return exitDatabaseUnreachable
	case errors.Is(err, migrations.ErrBehind):
		return exitSchemaBehind
	default:
		return exitFailed
	}
}

// printError writes one line an error; a configuration has one a mistake.
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

// oneLine keeps once what a driver says of the same server with TLS and without.
func oneLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.ReplaceAll(strings.Join(slices.Compact(lines), "; "), ":; ", ": ")
}
