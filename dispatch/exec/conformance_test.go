package exec_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/exec"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
)

func TestTheExecAdapterConforms(t *testing.T) {
	for _, class := range []dispatch.Class{dispatch.KeyIdempotent, dispatch.NonIdempotent} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			cannot := map[dispatchtest.Situation]string{dispatchtest.Forbidden: "a child is reached through pipes"}
			if class == dispatch.NonIdempotent {
				cannot[dispatchtest.Busy] = "who must not be asked again is not told to ask again"
			}
			dispatchtest.Conform(t, dispatchtest.Subject{Kind: exec.Kind(), Class: class, Start: startPlayer, Cannot: cannot})
		})
	}
}

func startPlayer(t *testing.T) dispatchtest.Counterpart {
	stage := protocoltest.NewStage(t)
	env := map[string]string{"BEHAVIOUR": "does as it is directed", "STAGE": stage.Path(), "TOKEN": "token-9d41c07e", "GORACE": "atexit_sleep_ms=0"}
	return dispatchtest.Counterpart{
		Settings: fmt.Sprintf("command: [%q]\nenv: %s", os.Args[0], toJSON(env)),
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		Secrets:  []string{"token-9d41c07e"},
		Received: stage.Received,
		Enter:    stage.Enter,
	}
}

// beDirected plays on a stage.
func beDirected(p *peer) {
	stage := protocoltest.Play(os.Getenv("STAGE"))
	p.hello(`{"protocol":[1],"name":"player"}`)
	p.each(func(_ map[string]any, line string) {
		direction := stage.Ask([]byte(line))
		if direction.Die {
			os.Exit(1)
		}
		if direction.Say != "" {
			p.say(direction.Say)
		}
	})
}
