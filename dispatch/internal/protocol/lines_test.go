package protocol_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

func TestLinesAreReadWhole(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		want []string
		err  error
	}{
		"nothing":               {"", nil, nil},
		"two":                   {"one\ntwo\n", []string{"one", "two"}, nil},
		"empty lines are lines": {"\n\n", []string{"", ""}, nil},
		"the last is cut short": {"one\ntw", []string{"one"}, io.ErrUnexpectedEOF},
		"as long as allowed":    {"12345678\n", []string{"12345678"}, nil},
		"one octet longer":      {"123456789\n", nil, bufio.ErrTooLong},
		"no end":                {strings.Repeat("x", 1000), nil, bufio.ErrTooLong},
	} {
		for way, reader := range map[string]io.Reader{
			"at once":        strings.NewReader(test.text),
			"octet by octet": iotest.OneByteReader(strings.NewReader(test.text)),
		} {
			lines := protocol.Lines(reader, 8)
			var got []string
			for lines.Scan() {
				got = append(got, lines.Text())
			}
			if strings.Join(got, "|") != strings.Join(test.want, "|") || len(got) != len(test.want) || !errors.Is(lines.Err(), test.err) {
				t.Errorf("%s, %s: %q, %v", name, way, got, lines.Err())
			}
		}
	}
}

// Whatever a child writes, and in whatever pieces it arrives, is taken apart at
// its newlines, up to the first line that is too long or the one cut short.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{"", "\n", `{"id":"1","outcome":"completed"}` + "\n", "no newline", "\r\n\x00\n", strings.Repeat("long", 30) + "\n", "ok\n" + strings.Repeat("x", 64) + "\n"} {
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, inPieces bool) {
		const longest = 64
		var reader io.Reader = bytes.NewReader(text)
		if inPieces {
			reader = iotest.OneByteReader(reader)
		}
		var want [][]byte
		var wantErr error
		for rest := text; len(rest) > 0; {
			line, after, ended := bytes.Cut(rest, []byte("\n"))
			switch {
			case len(line) > longest:
				wantErr = bufio.ErrTooLong
			case !ended:
				wantErr = io.ErrUnexpectedEOF
			default:
				want = append(want, line)
			}
			if rest = after; wantErr != nil {
				break
			}
		}
		lines := protocol.Lines(reader, longest)
		count := 0
		for ; lines.Scan(); count++ {
			if count >= len(want) || !bytes.Equal(lines.Bytes(), want[count]) {
				t.Fatalf("line %d is %q, want %q", count, lines.Bytes(), want)
			}
		}
		if count != len(want) {
			t.Errorf("%d lines, want %q", count, want)
		}
		if !errors.Is(lines.Err(), wantErr) {
			t.Errorf("%v, want %v", lines.Err(), wantErr)
		}
	})
}
