package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// reference names one intent: by its key, or by its id if there is no key.
type reference struct {
	id  int64
	key dispatch.Tuple
}

// readReference finds out which intent is meant, before anybody is asked for it.
func readReference(command *cobra.Command, args []string, key dispatch.Tuple) (reference, error) {
	if len(args) == 0 {
		return reference{key: key}, checkKey(command, key)
	}
	if key != (dispatch.Tuple{}) {
		return reference{}, usagef(command, "name an intent by its id or by its key, not by both")
	}
	id, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return reference{}, usagef(command, "an intent's id is a number; `drainer intents list` shows it")
	}
	return reference{id: id}, nil
}

func checkKey(command *cobra.Command, key dispatch.Tuple) error {
	if key == (dispatch.Tuple{}) {
		return usagef(command, "name an intent by its id, or by --run, --step, --tool and --scope")
	}
	if missing := missingFlags(key); len(missing) > 0 {
		return usagef(command, "an intent's key has four parts; %s", areMissing(missing))
	}
	if err := key.Validate(); err != nil {
		return usagef(command, "%w", err)
	}
	return nil
}

func missingFlags(key dispatch.Tuple) []string {
	var missing []string
	for _, part := range []struct{ flag, value string }{
		{"--run", key.AgentRunID}, {"--step", key.StepID}, {"--tool", key.ToolName}, {"--scope", key.BusinessScope},
	} {
		if part.value == "" {
			missing = append(missing, part.flag)
		}
	}
	return missing
}

func areMissing(flags []string) string {
	last := len(flags) - 1
	if last == 0 {
		return flags[0] + " is missing"
	}
	return strings.Join(flags[:last], ", ") + " and " + flags[last] + " are missing"
}

func (r reference) show(ctx context.Context, console *operator.Console) (*operator.Dossier, error) {
	if r.key == (dispatch.Tuple{}) {
		dossier, err := console.Show(ctx, r.id)
		return dossier, r.explain(err)
	}
	dossier, err := console.ShowTuple(ctx, r.key)
	return dossier, r.explain(err)
}

func (r reference) find(ctx context.Context, console *operator.Console) (int64, error) {
	if r.key == (dispatch.Tuple{}) {
		return r.id, nil
	}
	id, err := console.Find(ctx, r.key)
	return id, r.explain(err)
}

// explain names the intent that is not there. A key's parts are not repeated.
func (r reference) explain(err error) error {
	switch {
	case !errors.Is(err, operator.ErrNotFound):
		return err
	case r.key == (dispatch.Tuple{}):
		return fmt.Errorf("%w: %d; `drainer intents list` shows those there are", err, r.id)
	}
	return fmt.Errorf("%w with this key; `drainer intents list` shows those there are", err)
}
