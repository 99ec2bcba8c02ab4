package pgproxy

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
)

// What a client says, as far as it matters here.
const (
	parse    = 'P'
	bind     = 'B'
	query    = 'Q'
	syncLast = 'S'
)

// passGreeting passes on a connection's first message, the only one without a kind.
func passGreeting(server io.Writer, client io.Reader) error {
	var length [4]byte
	if _, err := io.ReadFull(client, length[:]); err != nil {
		return err
	}
	greeting := make([]byte, binary.BigEndian.Uint32(length[:]))
	copy(greeting, length[:])
	if _, err := io.ReadFull(client, greeting[len(length):]); err != nil {
		return err
	}
	_, err := server.Write(greeting)
	return err
}

// dialogue follows a client through its transactions. A pipeline without BEGIN
// commits with its end.
type dialogue struct {
	prepared map[string]string // SQL by the statement's name
	running  []string          // SQL of the transaction under way
	explicit bool              // it began with BEGIN
}

// committedBy lists what a message commits.
func (d *dialogue) committedBy(m message) []string {
	switch m.kind {
	case parse:
		d.prepare(texts(m.octets[5:], 2))
	case bind:
		d.running = append(d.running, d.prepared[texts(m.octets[5:], 2)[1]])
	case query:
		return d.simple(strings.ToLower(texts(m.octets[5:], 1)[0]))
	case syncLast:
		if !d.explicit {
			return d.end()
		}
	}
	return nil
}

func (d *dialogue) prepare(nameAndSQL []string) {
	if d.prepared == nil {
		d.prepared = map[string]string{}
	}
	d.prepared[nameAndSQL[0]] = nameAndSQL[1]
}

func (d *dialogue) simple(sql string) []string {
	switch {
	case strings.HasPrefix(sql, "begin"):
		d.explicit = true
	case strings.HasPrefix(sql, "commit"), strings.HasPrefix(sql, "rollback"):
		d.explicit = false
		return d.end()
	}
	return nil
}

func (d *dialogue) end() []string {
	ended := d.running
	d.running = nil
	return ended
}

// texts are the first n of what ends with zeros.
func texts(octets []byte, n int) []string {
	texts := make([]string, n)
	for i := range texts {
		text, rest, _ := bytes.Cut(octets, []byte{0})
		texts[i], octets = string(text), rest
	}
	return texts
}
