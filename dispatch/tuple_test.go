package dispatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/integration/fault"
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
		Namespace      string `json:"namespace"`
		Tenant         string `json:"tenant"`
		Generation     int    `json:"generation"`
		IdempotencyKey string `json:"idempotency_key"`
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		tuple := Tuple{v.AgentRunID, v.StepID, v.ToolName, v.BusinessScope}
		if got := tuple.QualifiedKey(Qualifiers{v.Namespace, v.Tenant, v.Generation}); got != v.IdempotencyKey {
			t.Errorf("%+v has the key %s, want %s", v, got, v.IdempotencyKey)
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
		"256 bytes":         {Tuple{"r", strings.Repeat("é", 128), "p/o", "b"}, "step_id is 256 bytes long"},
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
	if err := (Tuple{"r", strings.Repeat("é", 127), "p/o", strings.Repeat("b", MaxPartBytes)}).Validate(); err != nil {
		t.Errorf("parts of up to 255 bytes: %v", err)
	}
}

// A plain join gives two lists the same key if their words contain the
// separator.
func TestTwoTuplesShareAKeyOnlyIfTheyAreTheSame(t *testing.T) {
	t.Parallel()
	cut := func(t *rapid.T, words []string, with, label string) Tuple {
		at := rapid.SliceOfN(rapid.IntRange(0, len(words)), 3, 3).Draw(t, label)
		slices.Sort(at)
		part := func(from, to int) string { return strings.Join(words[from:to], with) }
		return Tuple{part(0, at[0]), part(at[0], at[1]), part(at[1], at[2]), part(at[2], len(words))}
	}
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"1", "é", "run"}), 4, 6).Draw(t, "words")
		with := rapid.SampledFrom([]string{"", ",", ":", ",0:"}).Draw(t, "with")
		one, other := cut(t, words, with, "one"), cut(t, words, with, "other")
		if same := one.IdempotencyKey() == other.IdempotencyKey(); same != (one == other) {
			t.Fatalf("%q and %q: the same key is %t", one, other, same)
		}
	})
}

func TestAKeyIsStableAndFitsEveryHeader(t *testing.T) {
	t.Parallel()
	keys := 0
	shape := regexp.MustCompile(`^idem_v1_[0-9a-f]{32}$`)
	rapid.Check(t, func(t *rapid.T) {
		tuple := rapid.Make[Tuple]().Draw(t, "tuple")
		clone := Tuple{
			strings.Clone(tuple.AgentRunID), strings.Clone(tuple.StepID),
			strings.Clone(tuple.ToolName), strings.Clone(tuple.BusinessScope),
		}
		if key := tuple.IdempotencyKey(); key != clone.IdempotencyKey() || !shape.MatchString(key) {
			t.Fatalf("%+v has the keys %s and %s", tuple, key, clone.IdempotencyKey())
		}
		keys++
	})
	fault.Injected(t, 48, keys)
}

// Agents may write any text into the parts of a tuple. Two tuples share a key only if they are the same, the key is
// a valid header value as it is, and no error repeats a part.
func FuzzAKeyTellsTuplesApart(f *testing.F) {
	long := strings.Repeat("é", 150) // 300 bytes
	for _, seed := range [][]string{
		{"run", "step", "p/o", "scope", "run", "step", "p/o", "scope"},
		{"a", "bc", "p/o", "d", "ab", "c", "p/o", "d"},
		{"3:a,b", "c", "p/o", "d", "3", "a,b:c", "p/o", "d"},
		{"r\r\nX-Evil: 1", "s\x00", "p/o", "b", "r", "X-Evil: 1\r\n", "p/o", "b"},
		{long, long, long, long, long, long, long, long + "x"},
		{"\xff", "\xc3\x28", "p/o", "b", "\ufffd", "\ufffd(", "p/o", "b"},
		{"é", "s", "p/o", "b", "e\u0301", "s", "p/o", "b"}, // a reader sees the same word
		{"", "", "", "", "0:,", "", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4], seed[5], seed[6], seed[7])
	}
	shape := regexp.MustCompile(`^idem_v1_[0-9a-f]{32}$`)
	f.Fuzz(func(t *testing.T, a1, a2, a3, a4, b1, b2, b3, b4 string) {
		one, other := Tuple{a1, a2, a3, a4}, Tuple{b1, b2, b3, b4}
		key := one.IdempotencyKey()
		if !shape.MatchString(key) || key != one.IdempotencyKey() {
			t.Errorf("the key %q", key)
		}
		if (key == other.IdempotencyKey()) != (one == other) {
			t.Errorf("%q and %q", one, other)
		}
		err := one.Validate()
		identifies := one.Provider() != ""
		for _, part := range one.parts() {
			identifies = identifies && part.value != "" && len(part.value) <= MaxPartBytes && utf8.ValidString(part.value) && !strings.Contains(part.value, "\x00")
			if err != nil && len(part.value) > 60 && strings.Contains(err.Error(), part.value) {
				t.Errorf("the error repeats %s: %v", part.name, err)
			}
		}
		if (err == nil) != identifies {
			t.Errorf("%q: %v", one, err)
		}
	})
}

// Two outboxes, two tenants or two generations never share a key by chance, nor by the text
// of a part.
func TestAKeyTellsQualifiersApart(t *testing.T) {
	t.Parallel()
	tuple := Tuple{"run", "step", "p/o", "scope"}
	seen := map[string]string{}
	for _, namespace := range []string{"", "a", "tenant=a", "a,8:tenant=a", "gen=2", "2"} {
		for _, tenant := range []string{"", "a", "gen=2", "a,5:gen=2", "ns=a"} {
			for _, generation := range []int{0, 2, 22} {
				q := Qualifiers{namespace, tenant, generation}
				key := tuple.QualifiedKey(q)
				if other, taken := seen[key]; taken {
					t.Errorf("%+v has the key of %s", q, other)
				}
				seen[key] = fmt.Sprintf("%+v", q)
			}
		}
	}
	if tuple.QualifiedKey(Qualifiers{Generation: 1}) != tuple.IdempotencyKey() {
		t.Error("the first generation has another key than one without a number")
	}
}
