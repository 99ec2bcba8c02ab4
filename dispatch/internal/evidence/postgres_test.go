package evidence_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// For any body from a provider, Postgres stores the text and JSON that are made of it, and returns them unchanged.
// Their size stays within a bound that readers can handle.
func FuzzPostgresTakesWhatAProviderSends(f *testing.F) {
	for _, seed := range []string{
		"", `{"a\u0000":"\u0000"}`, `"\ud800\ud83d\ude00"`, `"\\u0000\\\u0000"`, "x\x00\xff", "\"\xed\xa0\x80\"", "\ufeff{}",
		`[9007199254740993, 0.10, -0, 1e400, 1E-400, 12345678901234567890123]`, `{"a":1,"a":2}`, `[1e131072]`, `[1e-16384]`, `1e1000`, `[true,false,null]`,
		"[" + strings.Repeat("1e1000,", 1100) + "1]", "[" + strings.Repeat("9", 140000) + "]", "[0." + strings.Repeat("1", 17000) + "]",
		strings.Repeat("[", 500) + strings.Repeat("]", 500), strings.Repeat(`{"a":`, 6000) + "1" + strings.Repeat("}", 6000), strings.Repeat("[", 20000),
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	db := drainertest.Connect(f, drainertest.Database(f))
	f.Fuzz(func(t *testing.T, body []byte, isDeclared bool) {
		contentType := "text/plain"
		if isDeclared {
			contentType = "application/json"
		}
		made := evidence.JSON(body, contentType)
		if (made == nil) != (len(body) == 0) {
			t.Fatalf("%q becomes %q", body, made)
		}
		words := evidence.Text(string(body))
		var stored *string
		var text string
		err := db.QueryRow(t.Context(), "SELECT $1::text::jsonb::text, $2::text", orNull(made), words).Scan(&stored, &text)
		switch {
		case err != nil:
			t.Errorf("%.200q: %v", body, err)
		case made != nil && !dispatchtest.SameJSON([]byte(*stored), made):
			t.Errorf("%.200q is stored as %.200q", made, *stored)
		case made != nil && len(*stored) > 6*len(body)+2<<20: // a byte may become \u0001
			t.Errorf("%d bytes are stored as %d", len(body), len(*stored))
		case text != words:
			t.Errorf("%.200q is stored as %.200q", words, text)
		}
	})
}

func orNull(text json.RawMessage) *string {
	if text == nil {
		return nil
	}
	known := string(text)
	return &known
}
