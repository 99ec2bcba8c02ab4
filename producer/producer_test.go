package producer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

type vectors struct {
	Keys []struct {
		Run, Step, Tool, Scope, Key string
		Namespace, Tenant           string
		Generation                  int
	}
	Errors    []struct{ SQLState, Name, Sentence string }
	Outcomes  []struct{ Status, Name string }
	Sentences map[string]string
	Invalid   []struct {
		Name   string
		Intent struct {
			Run, Step, Tool, Scope string
			Payload                any
		}
		Says string
	}
	Passes        map[string]bool
	DoubleEncoded []string `json:"double_encoded"`
	Payloads      []struct {
		Name  string
		Value any
		Sent  []string
	}
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	raw, err := os.ReadFile("../clients/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// plain returns a value as Go has it. JSON alone cannot tell 1 from 1.0.
func plain(t *testing.T, value any) any {
	t.Helper()
	switch value := value.(type) {
	case map[string]any:
		for kind, held := range value {
			switch kind {
			case "$int":
				number, _ := new(big.Int).SetString(held.(string), 10)
				return number
			case "$float":
				number, err := strconv.ParseFloat(held.(string), 64)
				if err != nil {
					t.Fatal(err)
				}
				return number
			case "$decimal":
				return json.Number(held.(string))
			case "$repeat":
				return strings.Repeat(held.([]any)[0].(string), int(held.([]any)[1].(float64)))
			}
			value[kind] = plain(t, held)
		}
	}
	return value
}

func TestKeysAreThoseOfTheVectors(t *testing.T) {
	t.Parallel()
	for _, v := range readVectors(t).Keys {
		if got := idempotencyKey(v.Run, v.Step, v.Tool, v.Scope, v.Namespace, v.Tenant, v.Generation); got != v.Key {
			t.Errorf("%+v has the key %s", v, got)
		}
	}
}

func TestAWaitOutlivesTheErrorsOfTheVectors(t *testing.T) {
	t.Parallel()
	for code, want := range readVectors(t).Passes {
		if got := passes(fmt.Errorf("look: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s passes: %t", code, got)
		}
	}
}

func TestCausesThatTheProgramHasToMendAreNamed(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]error{"42501": ErrNotAllowed, "25P02": ErrTransactionAborted} {
		server := &pgconn.PgError{Code: code}
		if err := refusal(fmt.Errorf("query: %w", server)); !errors.Is(err, want) || !errors.Is(err, server) {
			t.Errorf("%s: %v", code, err)
		}
	}
	lost := errors.New("the connection is lost")
	if err := refusal(lost); err.Error() != lost.Error() {
		t.Errorf("another error is %v", err)
	}
}

// A pool that the program has closed ends all waits, because it cannot be opened again.
func TestAWaitOverAClosedPoolEnds(t *testing.T) {
	t.Parallel()
	if !passes(&pgconn.PgError{Message: "an error of a proxy, without a code"}) {
		t.Error("an error without a code ends a wait")
	}
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := NewResults(pool).Wait(ctx, 1); err == nil || !strings.Contains(err.Error(), "closed pool") {
		t.Errorf("got %v", err)
	}
}

// silent answers from the second query on.
type silent struct{ asked []time.Time }

func (s *silent) Query(ctx context.Context, _ string, _ ...any) (pgx.Rows, error) {
	s.asked = append(s.asked, time.Now())
	if len(s.asked) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, &pgconn.PgError{Code: "42501"}
}

func TestALookThatGotStuckIsFollowedByTheNextSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		database := &silent{}
		if _, err := NewResults(database).Wait(t.Context(), 1); !errors.Is(err, ErrNotAllowed) {
			t.Fatal(err)
		}
		if between := database.asked[1].Sub(database.asked[0]); between > 11*time.Second {
			t.Errorf("the second question came %s after the first", between)
		}
		time.Sleep(2 * idle) // on the test's clock: it ends the waits
	})
}

func TestErrorsAndSentencesAreThoseOfTheVectors(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	if !reflect.DeepEqual(sentences, v.Sentences) {
		t.Errorf("the sentences are %v", sentences)
	}
	names := map[string]error{
		"KeyTaken": ErrKeyTaken, "RunClosed": ErrRunClosed, "Invalid": ErrInvalid, "UnknownTool": ErrUnknownTool,
		"OtherTenant": ErrOtherTenant, "LimitReached": ErrLimitReached,
		"Failed": ErrFailed, "Unknown": ErrUnknown, "Cancelled": ErrCancelled, "Undone": ErrUndone,
	}
	for _, e := range v.Errors {
		err := error(&Refused{SQLState: e.SQLState})
		if !errors.Is(err, names[e.Name]) || ForModel(err) != v.Sentences[e.Sentence] {
			t.Errorf("%s is %v: %s", e.SQLState, err, ForModel(err))
		}
	}
	for _, o := range v.Outcomes {
		if o.Status == "completed" {
			continue
		}
		err := error(&NotCompleted{Result: Result{Status: o.Status}})
		if !errors.Is(err, names[o.Name]) || ForModel(err) != v.Sentences[o.Status] {
			t.Errorf("%s is %v: %s", o.Status, err, ForModel(err))
		}
	}
}

func TestAnInvalidIntentIsRefusedWithoutAConnection(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	refused := func(name, says string, intent Intent) {
		_, err := Enqueue(t.Context(), nil, intent)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want it to say %q", name, err, says)
		}
	}
	with := func(payload any) Intent {
		return Intent{Run: "r", Step: "s", Tool: "p/o", Scope: "b", Payload: payload}
	}
	for _, c := range v.Invalid {
		i := c.Intent
		refused(c.Name, c.Says, Intent{Run: i.Run, Step: i.Step, Tool: i.Tool, Scope: i.Scope, Payload: plain(t, i.Payload)})
	}
	for _, text := range v.DoubleEncoded {
		refused(text, "holds JSON", with(text))
	}
	refused("bytes", "json.RawMessage", with([]byte(`{}`)))
	refused("not a number", "cannot be written", with(math.NaN()))
	refused("no text", "not valid UTF-8", with(map[string]any{"a": "\xff"}))
	refused("half of JSON", "cannot be written", with(json.RawMessage(`{`)))
	refused("a nil map", "empty map", with(map[string]any(nil)))
	refused("a nil pointer", "empty map", with((*struct{})(nil)))
	for _, half := range []string{`"\ud800"`, `"\udC00"`, `{"\ud800x": 1}`, `"\ud800\n"`, `"\ud800\ud800"`, `"\ud83d\ude00\ude00"`} {
		refused(half, "half a surrogate pair", with(map[string]any{"a": json.RawMessage(half)}))
	}
	refused("no text in JSON", "not valid UTF-8", with(json.RawMessage("\"\xff\"")))
	headers := with(1)
	headers.Headers = map[string]string{"a": "\x00"}
	refused("headers", "headers has a NUL", headers)
	headers.Headers = map[string]string{"a": "\xff"}
	refused("headers", "headers has a text that is not valid UTF-8", headers)
	headers.Headers = map[string]string{"a": strings.Repeat("x", 2<<20)}
	refused("headers", "headers are longer than 64 KiB", headers)
	late := with(1)
	late.NotBefore = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	refused("too late", "9998", late)
}

func TestPayloadsAreWrittenAsTheVectorsSay(t *testing.T) {
	t.Parallel()
	for _, v := range readVectors(t).Payloads {
		if got, err := encode("payload", plain(t, v.Value)); err != nil || !slices.Contains(v.Sent, got) {
			t.Errorf("%s is written as %s, error %v", v.Name, got, err)
		}
	}
	for _, value := range []any{json.RawMessage(`null`), json.RawMessage(`"\uD83D\ude00 \\ud800"`)} {
		if got, err := encode("payload", value); err != nil {
			t.Errorf("%v: %s, %v", value, got, err)
		}
	}
	for _, value := range []string{"\ufffd", `\ufffd`, `\\u0000`} { // these are texts, though they look like refused ones
		if got, err := encode("payload", value); err != nil {
			t.Errorf("%q: %s, %v", value, got, err)
		}
	}
}

func TestWhatIsNoTransactionIsRefused(t *testing.T) {
	t.Parallel()
	_, err := Enqueue(t.Context(), t, Intent{Run: "r", Step: "s", Tool: "p/o", Scope: "b", Payload: 1})
	if !errors.Is(err, ErrNotInTransaction) {
		t.Errorf("got %v", err)
	}
}
