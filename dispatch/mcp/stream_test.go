package mcp

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Whatever a server streams, the library sees whole sound events and then an
// end, little is read ahead, and only an answer to this call ends it.
func FuzzAStreamAnswersItsOwnCallAlone(f *testing.F) {
	const answer = `data: {"jsonrpc":"2.0","id":7,"result":{"content":[]}}`
	for _, seed := range []string{
		"", "\n", "\r\n\r\n", answer, answer + "\n", answer + "\n\n", "event: message\r\nid: 1\r\n" + answer + "\r\n\r\n",
		strings.Replace(answer, "7", "8", 1) + "\n\n" + answer + "\n\n", strings.Replace(answer, "7", `"7"`, 1) + "\n\n",
		"event: other\n" + strings.Replace(answer, "7", "8", 1) + "\n\n" + answer + "\n\n",
		"event: other\nevent: message\n" + strings.Replace(answer, "7", "8", 1) + "\n\n",
		"data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":7,\"result\":{}}\n\n", ": comment\nretry: 1\n\n" + answer + "\n\n", "no colon\n\n" + answer + "\n\n",
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n" + answer + "\n\n", "data: " + strings.Repeat("x", 2000) + "\n\n" + answer + "\n\n",
		strings.Repeat("data:\n", 500) + "\n", answer + "\n\n" + strings.Replace(answer, "[]", "[1]", 1) + "\n\n", "data: \x00\xff\n\n",
	} {
		f.Add([]byte(seed))
	}
	own, err := jsonrpc.MakeID(7.0)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		const limit, readAhead = 1024, 4096
		c := &call{}
		c.number(own)
		server := &counted{from: bytes.NewReader(said)}
		stream := guard(t.Context(), io.NopCloser(server), c, limit)
		var passed []byte
		for octets := make([]byte, 100); ; {
			n, err := stream.Read(octets)
			passed = append(passed, octets[:n]...)
			if server.octets > len(passed)+limit+2*readAhead {
				t.Fatalf("%d octets were read of which %d are passed on", server.octets, len(passed))
			}
			if err != nil {
				break
			}
		}
		if !bytes.HasPrefix(said, passed) || len(passed) > 0 && !bytes.HasSuffix(passed, []byte("\n")) {
			t.Errorf("%q is passed on as %q", said, passed)
		}
		if again, err := stream.Read(make([]byte, 1)); again != 0 || err == nil {
			t.Error("there is more behind the end")
		}
		answered := false
		for _, data := range messagesIn(passed) {
			message, err := jsonrpc.DecodeMessage(data)
			if err != nil {
				t.Errorf("%q is passed on", data)
			}
			if response, is := message.(*jsonrpc.Response); is {
				answered = true
				if response.ID != own {
					t.Errorf("an answer to another call is passed on: %q", data)
				}
			}
		}
		if c.hasAnswer() != answered && c.seen.class == "" {
			t.Errorf("%q: answered is %t", said, c.hasAnswer())
		}
	})
}

// messagesIn are the data of the events that carry messages.
func messagesIn(stream []byte) (messages [][]byte) {
	for _, event := range strings.Split(strings.ReplaceAll(string(stream), "\r\n", "\n"), "\n\n") {
		kind, data := "message", ""
		for line := range strings.Lines(event) {
			name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
			switch name {
			case "event":
				kind = strings.TrimSpace(value)
			case "data":
				data += strings.TrimSpace(value) + "\n"
			}
		}
		if kind == "message" && strings.TrimSpace(data) != "" {
			messages = append(messages, []byte(data))
		}
	}
	return messages
}

// counted counts what was read of it.
type counted struct {
	from   io.Reader
	octets int
}

func (c *counted) Read(octets []byte) (int, error) {
	n, err := c.from.Read(octets)
	c.octets += n
	return n, err
}
