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

// Agents read what a provider answers, and a provider may repeat what it was sent.
func TestNoConfiguredSecretIsKeptOfAnAnswer(t *testing.T) {
	t.Parallel()
	quoted, _ := json.Marshal(canary)
	again, _ := json.Marshal(string(quoted))
	var escaped strings.Builder
	for _, character := range canary {
		fmt.Fprintf(&escaped, `\u%04x`, character)
	}
	inside := func(text string) string { return text[4 : len(text)-8] } // what no neighbour shares
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

// A cut before that could leave the half of a secret, which nothing recognises.
func TestWordsAreCutOnceTheirSecretsAreOut(t *testing.T) {
	t.Parallel()
	l := laneTo(dispatchFunc(func(context.Context) dispatch.Result {
		return dispatch.Result{Outcome: dispatch.Rejected, Problem: &dispatch.Problem{
			Title: strings.Repeat("é", longestTitle-3) + canary, Detail: strings.Repeat("x", longestDetail) + "\x00\xff",
		}}
	}))
	l.pool.secrets = NewRedactor([]string{canary})
	result, _ := l.pool.call(t.Context(), &l.server.provider, dispatch.Request{}, &Row{})
	if want := strings.Repeat("é", longestTitle-3) + "[se…"; result.Problem.Title != want {
		t.Errorf("the title ends %q", result.Problem.Title[len(result.Problem.Title)-10:])
	}
	if want := strings.Repeat("x", longestDetail) + "…"; result.Problem.Detail != want {
		t.Errorf("the detail ends %q", result.Problem.Detail[longestDetail-4:])
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

// Attempts of the configuration before may still be under way.
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
