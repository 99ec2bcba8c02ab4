package compensations_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
)

var charge = compensations.Effect{
	Tuple:       dispatch.Tuple{AgentRunID: "run-001", StepID: "step-1", ToolName: "stripe/create_charge", BusinessScope: "invoice_442"},
	Payload:     json.RawMessage(`{"amount": 10.10,  "order": 12345678901234567890, "note": null}`),
	Response:    json.RawMessage(`{"id": "ch_1", "account": 98765432109876543210, "lines": [{"id": 1}, {"id": 2}]}`),
	ProviderRef: "ch_1",
}

func TestAnUndoIsMadeOfWhatTheStepLeftBehind(t *testing.T) {
	t.Parallel()
	unanswered := charge
	unanswered.Response, unanswered.ProviderRef = nil, ""
	answeredNull := charge
	answeredNull.Response = json.RawMessage("null")
	listed := charge
	listed.Payload = json.RawMessage(`[1]`)
	for _, test := range []struct {
		source string
		effect compensations.Effect
		want   string
	}{
		{"", charge, string(charge.Payload)},
		{"", listed, "[1]"},
		{"{charge: .response.id}", charge, `{"charge":"ch_1"}`},
		{"{charge: .provider_ref, amount: .payload.amount}", charge, `{"amount":10.10,"charge":"ch_1"}`},
		{"{order: .payload.order, account: .response.account}", charge, `{"account":98765432109876543210,"order":12345678901234567890}`},
		{"{next: (.payload.order + 1)}", charge, `{"next":12345678901234567891}`},
		{"{key, agent_run_id, step_id, tool_name, business_scope}", charge, `{"agent_run_id":"run-001","business_scope":"invoice_442","key":"` +
			charge.Tuple.IdempotencyKey() + `","step_id":"step-1","tool_name":"stripe/create_charge"}`},
		{"{lines: [.response.lines[].id]}", charge, `{"lines":[1,2]}`},
		{"{deep: {note: .payload.note}}", charge, `{"deep":{"note":null}}`},
		{".payload | map_values(values)", charge, `{"amount":10.10,"order":12345678901234567890}`},
		{"{charge: (.response.id // .payload.order)}", unanswered, `{"charge":12345678901234567890}`},
		{"{charge: (.response.id // .key)}", answeredNull, `{"charge":"` + charge.Tuple.IdempotencyKey() + `"}`},
		{"{}", unanswered, "{}"},
	} {
		got, err := compile(t, test.source).Payload(t.Context(), test.effect)
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %s, %v, want %s", test.source, got, err, test.want)
		}
	}
}

func TestAnUndoOfNothingIsNone(t *testing.T) {
	t.Parallel()
	unanswered := charge
	unanswered.Response, unanswered.ProviderRef = nil, ""
	unreadable := charge
	unreadable.Response = json.RawMessage(`{"id": `)
	for _, test := range []struct {
		source string
		effect compensations.Effect
		want   compensations.MappingError
	}{
		{"null", charge, compensations.ErrNoObject},
		{".response", unanswered, compensations.ErrNoObject},
		{".response.gone", charge, compensations.ErrNoObject},
		{".response.id", charge, compensations.ErrNoObject},
		{"[.response.id]", charge, compensations.ErrNoObject},
		{"{charge: .response.id}", unanswered, compensations.ErrIncomplete},
		{"{charge: .provider_ref}", unanswered, compensations.ErrIncomplete},
		{"{charge: .response.charge}", charge, compensations.ErrIncomplete},
		{".payload", charge, compensations.ErrIncomplete},
		{"empty", charge, compensations.ErrMapping},
		{"{id: .response.lines[].id}", charge, compensations.ErrMapping},
		{"{charge: (.response.charge // error)}", charge, compensations.ErrMapping},
		{".response.id | {charge: .id}", charge, compensations.ErrMapping},
		{"{charge: .response.id}", unreadable, compensations.ErrMapping},
	} {
		got, err := compile(t, test.source).Payload(t.Context(), test.effect)
		if err != test.want || got != nil { //nolint:errorlint // it is not wrapped
			t.Errorf("%s: got %s, %v, want %v", test.source, got, err, test.want)
		}
	}
}

func TestAnUndoThatCannotBeStoredIsNone(t *testing.T) {
	t.Parallel()
	for _, source := range []string{
		`{a: "\u0000"}`,
		`{"\u0000": 1}`,
		`{a: nan}`,
		`{a: [infinite]}`,
		`{a: ("1e400000" | fromjson)}`,
		`{a: ("1E-400000" | fromjson)}`,
		`{a: ("x" * 1048570)}`,
		`{a: reduce range(600) as $i (1; [.])}`,
		`{a: reduce range(200) as $i (1; [., .])}`,
		`{a: ("1" * 1001 | fromjson)}`,
		`{a: reduce range(120) as $i (1; . * 1000000000)}`,
		`{a: [range(1100) | "1" * 1000 | fromjson]}`,
	} {
		got, err := compile(t, source).Payload(t.Context(), charge)
		if !errors.Is(err, compensations.ErrUnstorable) || got != nil {
			t.Errorf("%s: got %d octets, %v", source, len(got), err)
		}
	}
}

func TestASlowExpressionIsGivenUp(t *testing.T) {
	t.Parallel()
	if _, err := compile(t, "def f: f; f").Payload(t.Context(), charge); !errors.Is(err, compensations.ErrSlow) {
		t.Errorf("got %v", err)
	}
}

// What is cut short must be done again, not given up.
func TestAnEndedContextIsNoFaultOfTheExpression(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := compile(t, "def f: f; f").Payload(ctx, charge)
	var refused compensations.MappingError
	if !errors.Is(err, context.Canceled) || errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
}

func TestAMappingErrorRepeatsNothing(t *testing.T) {
	t.Parallel()
	secret := charge
	secret.Payload = json.RawMessage(`{"card": "4242424242424242"}`)
	for _, source := range []string{".payload | error", ".payload.card | keys", ".payload.card", ".payload.card | halt_error"} {
		_, err := compile(t, source).Payload(t.Context(), secret)
		if err == nil || strings.Contains(err.Error(), "4242") {
			t.Errorf("%s: got %v", source, err)
		}
	}
}

func TestAMappingIsSharedByManySagas(t *testing.T) {
	t.Parallel()
	mapping := compile(t, "{order: .payload.order, lines: [.response.lines[].id]}")
	var sagas sync.WaitGroup
	for range 8 {
		sagas.Go(func() {
			for range 50 {
				got, err := mapping.Payload(t.Context(), charge)
				if err != nil || string(got) != `{"lines":[1,2],"order":12345678901234567890}` {
					t.Errorf("got %s, %v", got, err)
					return
				}
			}
		})
	}
	sagas.Wait()
}

func TestAMappingMustCompile(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"{charge: .response.id", "{at: now}", "{home: input}"} {
		if _, err := compensations.CompileMapping(source); err == nil || !strings.HasPrefix(err.Error(), "payload of an undo: ") {
			t.Errorf("%s: got %v", source, err)
		}
	}
}

func compile(t *testing.T, source string) *compensations.Mapping {
	t.Helper()
	mapping, err := compensations.CompileMapping(source)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	return mapping
}

func TestAnExpressionSeesJustWhatConfigurationsMayRead(t *testing.T) {
	t.Parallel()
	mapping, err := compensations.CompileMapping("{names: keys}")
	if err != nil {
		t.Fatal(err)
	}
	payload, err := mapping.Payload(t.Context(), charge)
	var seen struct{ Names []string }
	if err := errors.Join(err, json.Unmarshal(payload, &seen)); err != nil {
		t.Fatal(err)
	}
	if want := slices.Sorted(slices.Values(dispatch.ReversalInput)); !slices.Equal(seen.Names, want) {
		t.Errorf("it sees %q, want %q", seen.Names, want)
	}
}
