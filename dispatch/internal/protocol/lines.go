package protocol

import (
	"bufio"
	"bytes"
	"io"
)

// DefaultMaxMessage is the longest message that is read from an adapter, in
// octets without the newline.
const DefaultMaxMessage = 1 << 20

// Lines reads lines of at most longest octets, and never holds more than one.
// A last line without its newline was cut short, and is io.ErrUnexpectedEOF;
// a line that is too long is bufio.ErrTooLong.
func Lines(from io.Reader, longest int) *bufio.Scanner {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, longest+1)
	lines.Split(wholeLine)
	return lines
}

func wholeLine(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if end := bytes.IndexByte(data, '\n'); end >= 0 {
		return end + 1, data[:end], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}
