package evidence

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// longestLogged is the longest part of a line of a child's stderr that is kept, in bytes.
const longestLogged = 4096

// Relay copies lines and puts the provider's name before each, so that no line can look like one of drainer's own.
// It returns the last line that is not blank.
func Relay(from io.Reader, to io.Writer, provider string) (last string) {
	reader := bufio.NewReaderSize(from, longestLogged)
	for {
		line, err := reader.ReadSlice('\n')
		if len(line) > 0 {
			_, _ = to.Write(labelled(provider, line))
		}
		if len(bytes.TrimSpace(line)) > 0 {
			last = Repeated(line)
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			last = "a line of more than 4096 bytes"
			_, err = reader.ReadSlice('\n')
		}
		if err != nil {
			return last
		}
	}
}

// Repeated returns a line in a form that may be shown, or only its length if it is too long. It does not cut the
// line: the half of a secret would not be recognised.
func Repeated(line []byte) string {
	line = bytes.TrimSpace(line)
	if len(line) > longestLogged {
		return fmt.Sprintf("a line of %d bytes", len(line))
	}
	return Line(string(line))
}

// labelled returns one line without control characters, which terminals would execute.
func labelled(provider string, line []byte) []byte {
	text := bytes.TrimRight(line, "\r\n")
	text = bytes.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || 0x7f <= r && r <= 0x9f {
			return ' '
		}
		return r
	}, text)
	return append([]byte(provider+": "+string(text)), '\n')
}

// shortestHidden is the shortest value that is hidden in a program's output, in bytes. A shorter one may be any
// word.
const shortestHidden = 8

// Without hides the values of env in a line that the program wrote. drainer does not treat a setting in the file
// itself as a secret, but it may be one.
func Without(line string, env map[string]string) string {
	values := slices.SortedFunc(maps.Values(env), func(a, b string) int { return len(b) - len(a) }) // longest first, since one may contain another
	for _, value := range values {
		if len(value) < shortestHidden {
			break
		}
		if len(line) >= shortestHidden && strings.Contains(value, line) { // the line is part of a value of several lines, such as a key
			return "[secret]"
		}
		line = strings.ReplaceAll(line, value, "[secret]")
	}
	return line
}
