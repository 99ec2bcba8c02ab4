package drainer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

const canary = `sk/live+canary?"42`

// Agents read a provider's answer, and the answer may repeat a secret that was sent to the provider.
func TestNoConfiguredSecretIsKeptOfAnAnswer(t *testing.T) {
	t.Parallel()
	quoted, _ := json.Marshal(canary)
	again, _ := json.Marshal(string(quoted))
	var escaped strings.Builder
	for _, character := range canary {
		fmt.Fprintf(&escaped, `\u%04x`, character)
	}
	inside := func(text string) string { return text[4 : len(text)-8] } // without the characters that depend on the text around the secret
	for name, text := range map[string]string{
		"as it is":                 string(quoted),
		"with other text":          `"<<` + string(quoted)[1:len(quoted)-1] + `>>"`,
		"with slashes escaped":     strings.ReplaceAll(string(quoted), "/", `\/`),
		"each character escaped":   `"` + escaped.String() + `"`,
		"in JSON within JSON":      string(again),
		"as a name":                `{` + string(quoted) + `: 1}`,
		"deep":                     `{"a": [{"b": ` + string(quoted) + `}]}`,
		"in a query":               `"` + url.QueryEscape(canary) + `"`,
		"in a path, lower case":    `"` + strings.ToLower(url.PathEscape(canary)) + `"`,
		"base64":                   `"` + base64.StdEncoding.EncodeToString([]byte(canary)) + `"`,
		"base64url":                `"` + base64.URLEncoding.EncodeToString([]byte(canary)) + `"`,
		"after a user, in base64":  `"` + base64.StdEncoding.EncodeToString([]byte("ann:"+canary)) + `"`,
		"after another, in base64": `"` + base64.StdEncoding.EncodeToString([]byte("anne:"+canary)) + `"`,
		"after a third, in base64": `"` + base64.StdEncoding.EncodeToString([]byte("annie:"+canary)) + `"`,
	} {
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result {
			return dispatch.Result{
				Outcome: dispatch.Completed, Response: json.RawMessage(text), ProviderRef: canary, ErrorClass: "http " + canary,
				ResponseHeaders: map[string]string{"X-Echo": "Bearer " + canary, canary: "1"},
				Problem:         &dispatch.Problem{Type: canary, Title: canary, Detail: string(quoted)},
			}
		}))
		l.pool.secrets = NewRedactor([]string{canary})
		result, _ := l.pool.call(t.Context(), &l.server.provider, dispatch.Request{}, &Row{})
		if !json.Valid(result.Response) {
			t.Errorf("%s: it is no JSON: %s", name, result.Response)
		}
		kept := fmt.Sprintf("%s %s %s %v %+v", result.Response, result.ProviderRef, result.ErrorClass, result.ResponseHeaders, *result.Problem)
		for _, form := range []string{"canary", `\u0063\u0061`, inside(base64.StdEncoding.EncodeToString([]byte("ann:" + canary))), inside(base64.StdEncoding.EncodeToString([]byte("anne:" + canary)))} {
			if strings.Contains(kept, form) {
				t.Errorf("%s: it keeps %s", name, kept)
			}
		}
		if !strings.Contains(string(result.Response), redacted) || result.ProviderRef != redacted {
			t.Errorf("%s: it keeps %s", name, kept)
		}
	}
}

// A cut before the redaction could leave half of a secret, which the redactor would not recognise.
func TestWordsAreCutOnceTheirSecretsAreOut(t *testing.T) {
	t.Parallel()
	l := laneTo(dispatchFunc(func(context.Context) dispatch.Result {
		return dispatch.Result{Outcome: dispatch.Rejected, ProviderRef: strings.Repeat("é", longestTitle-3) + canary, Problem: &dispatch.Problem{
			Title: strings.Repeat("é", longestTitle-3) + canary, Detail: strings.Repeat("x", longestDetail) + "\x00\xff",
		}}
	}))
	l.pool.secrets = NewRedactor([]string{canary})
	result, _ := l.pool.call(t.Context(), &l.server.provider, dispatch.Request{}, &Row{})
	if want := strings.Repeat("é", longestTitle-3) + "[se"; result.ProviderRef != want || result.Problem.Title != want+"…" {
		t.Errorf("the reference ends %q, the title %q", result.ProviderRef[len(result.ProviderRef)-10:], result.Problem.Title[len(result.Problem.Title)-10:])
	}
	if want := strings.Repeat("x", longestDetail) + "…"; result.Problem.Detail != want {
		t.Errorf("the detail ends %q", result.Problem.Detail[longestDetail-4:])
	}
}

// A provider may send a megabyte of text. The redactor does not search all of it.
func TestOfVeryLongWordsTheBeginningIsKeptWithoutSecrets(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]string{canary})
	for name, test := range map[string]struct{ words, want string }{
		"none at the beginning":                       {strings.Repeat("x", 1<<20) + canary, strings.Repeat("x", longestReference)},
		"one at the beginning":                        {canary + strings.Repeat("x", 1<<20), redacted},
		"so many that its end comes to the beginning": {strings.Repeat(canary, 1<<20/len(canary)), redacted},
	} {
		if got := bounded(r.result(dispatch.Result{ProviderRef: test.words})).ProviderRef; got != test.want {
			t.Errorf("%s: %.40q is kept", name, got)
		}
	}
}

func TestAPasswordThatIsItsUsersNameIsNoSecret(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]string{"postgres://postgres:postgres@db.example/shop"})
	if got := r.Text("no postgres here"); got != "no postgres here" {
		t.Error(got)
	}
}

// An expression extracts a reference from an answer, and may extract a part of a secret.
func TestAReferenceThatIsAPartOfASecretIsNotKept(t *testing.T) {
	t.Parallel()
	const token = "Xk9_live_4f7Qw2Zr8LmN"
	r := NewRedactor([]string{"Bearer " + token, token, "https://api.example.com/v1/payments"})
	for _, part := range []string{token[:8], token[4:12], token[12:], "eff_42." + token[:9], token[11:] + "-eff_42", token + "/eff_42", base64.StdEncoding.EncodeToString([]byte("ann:" + token))[:16]} {
		if got := r.result(dispatch.Result{ProviderRef: part}).ProviderRef; !strings.Contains(got, redacted) || strings.Contains(got, token[:8]) {
			t.Errorf("of %s it keeps %s", part, got)
		}
	}
	for _, honest := range []string{"", "eff_42", token[:7], "eff_42." + token[:7], "eff_42." + token[4:12] + ".43", "/v1/payments/42", "payments/42"} {
		if got := r.result(dispatch.Result{ProviderRef: honest}).ProviderRef; got != honest {
			t.Errorf("of %s it keeps %s", honest, got)
		}
	}
}

// The program that writes an address decides which characters it writes as %XX.
func TestASecretIsTakenOutOfAnyAddress(t *testing.T) {
	t.Parallel()
	for text, secret := range map[string]string{
		`https://x/?k=ab/cd%2Bef%3D`:                            "ab/cd+ef=", // Python's quote
		`https://x/?k=ab%2fcd%2Bef%3d`:                          "ab/cd+ef=",
		`https:\/\/x\/?k=ab\/cd%2Bef%3D`:                        "ab/cd+ef=",
		`https://x/?k=%61b%2Fcd+ef%3D`:                          "ab/cd+ef=",
		`https://x/?to=%2Fy%3Fk%3Dab%252Fcd%252Bef%253D`:        "ab/cd+ef=",
		`https://x/?q=%7B%22k%22%3A%22ab%5C%2Fcd%2Bef%3D%22%7D`: "ab/cd+ef=",
		`https://x/?k=Pz8%2BPj8%2FPj4%3D`:                       "??>>??>>",         // base64
		`https://x/?k=it's(a)*secret!%26`:                       "it's(a)*secret!&", // JavaScript's encodeURIComponent
		`https://x/?k=one/two+three%26`:                         "one/two three&",
		`https://x/?k=%41%2541/%5Cn-bcdef`:                      `A%41/\n-bcdef`,
		`https:\/\/x\/?k=A%41\/b"cdefgh`:                        `A%41/b"cdefgh`,
		`{"k": "b%0bb\\\/a\/"}`:                                 `b%0bb\/a/`, // a secret with escapes of its own
		`50% off \\ and 100%, said ab/cd+ef=`:                   "ab/cd+ef=",
	} {
		r := NewRedactor([]string{secret})
		if got := r.Text(text); !strings.Contains(got, redacted) {
			t.Errorf("%s stays", got)
		}
		response, _ := json.Marshal(map[string]string{"address": text})
		if got := string(r.document(response)); !strings.Contains(got, redacted) || !json.Valid([]byte(got)) {
			t.Errorf("%s stays", got)
		}
	}
}

func TestAnAnswerWithoutASecretStaysAsItIs(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]string{canary, "short", "https://api.example.com/v1", "postgres://ann:password-of-ann@db/x"})
	for text, want := range map[string]string{
		`{"a" : 1.50, "a": "\u00e9\/ short", "url": "https://api.example.com/v1/42"}`: "",
		`{"n": 12345678901234567890}`: "",
		`{"dsn": "password-of-ann"}`:  `{"dsn":"[secret]"}`,
	} {
		if want == "" {
			want = text
		}
		if got := r.result(dispatch.Result{Response: json.RawMessage(text)}); string(got.Response) != want {
			t.Errorf("of %s it keeps %s", text, got.Response)
		}
	}
	if short := TooShort([]string{"short", canary}); short != 1 {
		t.Errorf("%d secrets are too short, want 1", short)
	}
	var none *Redactor
	if got := none.result(dispatch.Result{ProviderRef: canary}); got.ProviderRef != canary {
		t.Error("without secrets something changes")
	}
}

// Attempts of the previous configuration may still be in progress.
func TestARotatedSecretIsTakenOutToo(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]string{"first-secret"})
	r.Add([]string{"second-secret"})
	for n := range 2 * rememberedSecrets {
		if got := r.Text("first-secret second-secret"); n < rememberedSecrets/2 && got != "[secret] [secret]" {
			t.Fatalf("after %d rotations it keeps %s", n, got)
		}
		r.Add([]string{fmt.Sprintf("rotated-secret-%d", n)})
	}
	if known := len(r.secrets); known > 2+rememberedSecrets {
		t.Errorf("it remembers %d secrets", known)
	}
}
