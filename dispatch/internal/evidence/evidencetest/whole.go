// Package evidencetest holds adapters to what the redaction of their results needs.
package evidencetest

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

// ExpectWhole has a provider repeat a long token at several places of its words. An adapter
// passes the token on whole, for a part of it would not be recognised.
func ExpectWhole(t testing.TB, answer func(words string) dispatch.Result) {
	t.Helper()
	const beginning = "sk_live_"
	token := beginning + strings.Repeat("4f7Qw2Zr", 49)
	for _, before := range []int{0, 155, 400, 924, 1900} {
		result := answer(strings.Repeat("x", before) + token)
		kept := []string{result.ErrorClass, result.ProviderRef, string(result.Response)}
		if p := result.Problem; p != nil {
			kept = append(kept, p.Type, p.Title, p.Detail)
		}
		found := 0
		for _, text := range kept {
			if strings.Contains(text, token) {
				found++
			} else if strings.Contains(text, beginning) {
				t.Errorf("%d characters into the words a token is cut: %s", before, text)
			}
		}
		if found == 0 {
			t.Errorf("%d characters into the words no token is passed on: %q", before, kept)
		}
	}
}
