package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// reference names one intent: by its key, or by its id if there is no key.
type reference struct {
	id  int64
	key dispatch.Tuple
}

func readReference(command *cobra.Command, args []string, key dispatch.Tuple) (reference, error) {
	if len(args) == 0 {
		if err := key.Validate(); err != nil {
			return reference{}, usagef(command, "name an intent by its id, or by --run, --step, --tool and --scope: %w", err)
		}
		return reference{key: key}, nil
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

func (r reference) show(ctx context.Context, console *operator.Console) (*operator.Dossier, error) {
	if r.key == (dispatch.Tuple{}) {
		return console.Show(ctx, r.id)
	}
	return console.ShowTuple(ctx, r.key)
}

func (r reference) find(ctx context.Context, console *operator.Console) (int64, error) {
	if r.key == (dispatch.Tuple{}) {
		return r.id, nil
	}
	return console.Find(ctx, r.key)
}
