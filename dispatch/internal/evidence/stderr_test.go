package evidence

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestOneLineOfASecretIsNotRepeated(t *testing.T) {
	t.Parallel()
	env := map[string]string{"KEY": "-----BEGIN KEY-----\nbm90IGEga2V5\n-----END KEY-----", "A": "abcdefgh", "B": "abcdefghij", "SHORT": "no"}
	for line, want := range map[string]string{
		"bm90IGEga2V5": "[secret]", "at abcdefghij": "at [secret]", "at abcdefgh": "at [secret]", "no, not that": "no, not that",
	} {
		if got := Without(line, env); got != want {
			t.Errorf("%q becomes %q, want %q", line, got, want)
		}
	}
}

// What a child writes to its stderr stands in drainer's log under its
// provider's name, line by line, and commands no terminal.
func FuzzAChildsLogCannotPassForDrainers(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "one\ntwo", "a\r\n\tb\r", "\x1b[2J\x1b[Hdrainer: all is well", "\u0085other: \u009b2J", "\xff\xc2\n", "x\u2028y",
		strings.Repeat("x", 2*longestLogged) + "\nnext\n", strings.Repeat("é", longestLogged) + "\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		var log bytes.Buffer
		Relay(bytes.NewReader(said), &log, "desk")
		if most := bytes.Count(said, []byte("\n")) + 1; bytes.Count(log.Bytes(), []byte("\n")) > most {
			t.Errorf("%q becomes %q", said, log.String())
		}
		for line := range strings.Lines(log.String()) {
			text, isOurs := strings.CutPrefix(line, "desk: ")
			text, isWhole := strings.CutSuffix(text, "\n")
			isControl := func(r rune) bool { return unicode.IsControl(r) && r != '\t' }
			if !isOurs || !isWhole || utf8.RuneCountInString(text) > longestLogged || strings.ContainsFunc(text, isControl) {
				t.Errorf("%q becomes %q", said, line)
			}
		}
	})
}
