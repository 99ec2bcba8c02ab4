package dispatch

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// The vectors are also computed in SQL, by the tests of package migrations.
func TestIdempotencyKeyMatchesTheVectors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/idempotency_keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		AgentRunID     string `json:"agent_run_id"`
		StepID         string `json:"step_id"`
		ToolName       string `json:"tool_name"`
		BusinessScope  string `json:"business_scope"`
		IdempotencyKey string `json:"idempotency_key"`
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		tuple := Tuple{v.AgentRunID, v.StepID, v.ToolName, v.BusinessScope}
		if got := tuple.IdempotencyKey(); got != v.IdempotencyKey {
			t.Errorf("%+v has the key %s, want %s", tuple, got, v.IdempotencyKey)
		}
	}
}

func TestTheProviderIsWhatStandsBeforeTheFirstSlash(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ tool, provider, operation string }{
		{"stripe/create_charge", "stripe", "create_charge"},
		{"mcp/files/read", "mcp", "files/read"},
		{"ping", "ping", "ping"},
	} {
		tuple := Tuple{ToolName: c.tool}
		if tuple.Provider() != c.provider || tuple.Operation() != c.operation {
			t.Errorf("%s is %s of %s, want %s of %s", c.tool, tuple.Operation(), tuple.Provider(), c.operation, c.provider)
		}
	}
}

func TestATupleThatIdentifiesNothingIsInvalid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tuple Tuple
		says  string
	}{
		"empty part":        {Tuple{"", "s", "p/o", "b"}, "agent_run_id is empty"},
		"256 octets":        {Tuple{"r", strings.Repeat("é", 128), "p/o", "b"}, "step_id is 256 octets long"},
		"not UTF-8":         {Tuple{"r", "s", "p/o", "\xff"}, "business_scope is not valid UTF-8"},
		"NUL":               {Tuple{"r", "s\x00", "p/o", "b"}, "step_id is not valid UTF-8 text without NUL"},
		"no provider":       {Tuple{"r", "s", "/o", "b"}, "tool_name starts with a slash"},
		"several, all told": {Tuple{"", "", "p/o", "b"}, "step_id is empty"},
	} {
		err := c.tuple.Validate()
		if !errors.Is(err, ErrInvalidTuple) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want it to say %q", name, err, c.says)
		}
	}
	if err := (Tuple{"r", strings.Repeat("é", 127), "p/o", strings.Repeat("b", MaxPartOctets)}).Validate(); err != nil {
		t.Errorf("parts of up to 255 octets: %v", err)
	}
}
