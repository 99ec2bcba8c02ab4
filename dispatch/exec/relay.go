package exec

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// longestLogged bounds a line of a child's stderr; the rest of it is dropped.
const longestLogged = 4096

// relay copies lines with the provider's name before each, so that none can
// pass for one of drainer's own.
func relay(from io.Reader, to io.Writer, provider string) {
	reader := bufio.NewReaderSize(from, longestLogged)
	for {
		line, err := reader.ReadSlice('\n')
		if len(line) > 0 {
			_, _ = to.Write(labelled(provider, line))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = reader.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
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
