package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// completionTime is the longest that a shell waits for suggestions. A failed completion suggests nothing and prints
// nothing, since its output would appear in the middle of the command line.
const completionTime = time.Second

// suggested is the most rows that are read for suggestions.
const suggested = 100

// suggest returns the words that could replace prefix.
type suggest func(ctx context.Context, from *operator.Console, prefix string) ([]string, error)

// addCompletions adds suggestions to every flag and argument that names something.
func (o *options) addCompletions(root *cobra.Command) {
	intents, incidents := o.fromOutbox(intentNumbers), o.fromOutbox(incidentNumbers)
	sagas, runs := o.fromOutbox(sagaRuns), o.fromOutbox(someRuns)
	for path, complete := range map[string]cobra.CompletionFunc{
		"intents show": intents, "intents retry": intents, "intents cancel": intents, "intents resolve": intents,
		"incidents show": incidents, "incidents ack": incidents,
		"sagas show": sagas, "sagas retry": sagas, "sagas resolve": sagas,
		"compensate": runs, "runs cancel": runs, "runs show": runs,
		"providers pause": o.providerNames, "providers resume": o.providerNames,
	} {
		if command, _, err := root.Find(strings.Fields(path)); err == nil {
			command.ValidArgsFunction = complete
		}
	}
	addFlagCompletions(root, map[string]cobra.CompletionFunc{
		"provider": o.providerNames, "tool": o.toolNames, "run": runs, "intent": intents,
		"status": oneOf(operator.Statuses...), "state": oneOf(operator.SagaStates...), "kind": oneOf(strings.Split(kindNames(), ", ")...),
		"as": oneOf("completed", "failed"), "output": oneOf(string(tableOutput), string(jsonOutput)),
		"config": cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
	})
}

func addFlagCompletions(command *cobra.Command, of map[string]cobra.CompletionFunc) {
	for name, complete := range of {
		if command.Flags().Lookup(name) == nil && command.PersistentFlags().Lookup(name) == nil {
			continue
		}
		if _, has := command.GetFlagCompletionFunc(name); !has {
			_ = command.RegisterFlagCompletionFunc(name, complete) // fails only for a flag that does not exist
		}
	}
	for _, child := range command.Commands() {
		addFlagCompletions(child, of)
	}
}

func oneOf(names ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return matching(names, given, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// fromOutbox suggests the words that a read of the database returns.
func (o *options) fromOutbox(read suggest) cobra.CompletionFunc {
	return func(command *cobra.Command, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
		o.findConfig(command)
		return matching(o.ask(command, read, prefix), given, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

func (o *options) ask(command *cobra.Command, read suggest, prefix string) []string {
	database, err := o.findDatabase(command)
	if err != nil {
		return nil
	}
	ctx, stop := context.WithTimeout(context.Background(), completionTime) // a command has no context while it completes
	defer stop()
	conn, err := connect(ctx, database)
	if err != nil {
		return nil
	}
	console := operator.Open(conn)
	defer console.Close(ctx)
	found, err := read(ctx, console, prefix)
	if err != nil {
		return nil
	}
	return found
}

// matching leaves out words that the command line already has. A tab separates a word from its description.
func matching(all, given []string, prefix string) (some []string) {
	for _, suggestion := range all {
		name, description, _ := strings.Cut(suggestion, "\t")
		if strings.HasPrefix(name, prefix) && !slices.Contains(given, name) && !strings.ContainsFunc(name, isUnprintable) {
			some = append(some, strings.TrimSuffix(name+"\t"+printable(description), "\t"))
		}
	}
	return some
}

func (o *options) configured(command *cobra.Command) *config.Config {
	o.findConfig(command)
	if o.configPath == "" {
		return &config.Config{}
	}
	loaded, err := config.LoadWithoutSecrets(o.configPath, o.registry, false)
	if err != nil {
		return &config.Config{}
	}
	return loaded
}

// providerNames suggests the providers of the configuration, or without one those that daemons have announced.
func (o *options) providerNames(command *cobra.Command, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
	names := providerNames(o.configured(command))
	if len(names) == 0 {
		names = o.ask(command, announcedProviders, prefix)
	}
	return matching(names, given, prefix), cobra.ShellCompDirectiveNoFileComp
}

func (o *options) toolNames(command *cobra.Command, given []string, prefix string) (names []string, _ cobra.ShellCompDirective) {
	for tool, policy := range o.configured(command).Tools() {
		names = append(names, tool+"\t"+string(policy.Class))
	}
	if len(names) == 0 {
		names = o.ask(command, announcedTools, prefix)
	}
	return matching(names, given, prefix), cobra.ShellCompDirectiveNoFileComp
}

func announcedProviders(ctx context.Context, console *operator.Console, _ string) (names []string, err error) {
	providers, err := console.Providers(ctx)
	for _, provider := range providers {
		names = append(names, provider.Provider)
	}
	return names, err
}

func announcedTools(ctx context.Context, console *operator.Console, _ string) ([]string, error) {
	return console.Tools(ctx)
}

func intentNumbers(ctx context.Context, console *operator.Console, _ string) (numbers []string, err error) {
	page, err := console.List(ctx, operator.Filter{Limit: suggested})
	for _, i := range page.Intents {
		numbers = append(numbers, fmt.Sprintf("%d\t%s, %s", i.IntentID, i.Status, i.ToolName))
	}
	return numbers, err
}

func someRuns(ctx context.Context, console *operator.Console, prefix string) (runs []string, err error) {
	if prefix != "" {
		return console.RunsFrom(ctx, prefix, suggested)
	}
	page, err := console.List(ctx, operator.Filter{Limit: suggested})
	for _, i := range page.Intents {
		if !slices.Contains(runs, i.AgentRunID) {
			runs = append(runs, i.AgentRunID)
		}
	}
	return runs, err
}

func incidentNumbers(ctx context.Context, console *operator.Console, _ string) (numbers []string, err error) {
	page, err := console.Incidents(ctx, operator.IncidentFilter{Limit: suggested})
	for _, i := range page.Incidents {
		numbers = append(numbers, fmt.Sprintf("%d\t%s, %s", i.IncidentID, i.State, i.Kind))
	}
	return numbers, err
}

func sagaRuns(ctx context.Context, console *operator.Console, _ string) (runs []string, err error) {
	sagas, err := console.Sagas(ctx, operator.SagaFilter{Limit: suggested})
	for _, saga := range sagas {
		runs = append(runs, saga.AgentRunID+"\t"+saga.State)
	}
	return runs, err
}
