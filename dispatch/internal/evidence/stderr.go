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

// longestLogged bounds a line of a child's stderr; the rest of it is dropped.
const longestLogged = 4096

// Relay copies lines with the provider's name before each, so that none can
// pass for one of drainer's own. It returns the last that is not blank.
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

// Repeated is a line as it may be shown, or its length if it is long. It is not cut here:
// the half of a secret would not be recognised.
func Repeated(line []byte) string {
	line = bytes.TrimSpace(line)
	if len(line) > longestLogged {
		return fmt.Sprintf("a line of %d bytes", len(line))
	}
	return Line(string(line))
}

// labelled is one line without control characters, which terminals obey.
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

// shortestHidden is the shortest value that is kept out of what is repeated of a program: a
// shorter one may be any word.
const shortestHidden = 8

// Without is a line that the program wrote, without what its environment gave it: a
// setting that was written into the file itself is no secret to drainer, but may be one.
func Without(line string, env map[string]string) string {
	values := slices.SortedFunc(maps.Values(env), func(a, b string) int { return len(b) - len(a) }) // one may hold another
	for _, value := range values {
		if len(value) < shortestHidden {
			break
		}
		if len(line) >= shortestHidden && strings.Contains(value, line) { // one line of a key of many
			return "[secret]"
		}
		line = strings.ReplaceAll(line, value, "[secret]")
	}
	return line
}
