package smtp

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/mail"
	"strings"
)

const (
	foldAt  = 76  // RFC 2047, 2: lines with encoded words; RFC 5322 asks for 78 of all
	maxLine = 998 // RFC 5322, 2.1.1
)

var errHeader = errors.New("a header holds a control character, or a word that no line can hold")

// writeText writes a header of free text. A line end in it would begin another
// header, so there is none.
func writeText(out *bytes.Buffer, name, text string) error {
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errHeader
	}
	return writeFolded(out, name, mime.QEncoding.Encode("utf-8", text))
}

// writeAddresses writes nothing for nobody.
func writeAddresses(out *bytes.Buffer, name string, addresses []*mail.Address) error {
	if len(addresses) == 0 {
		return nil
	}
	texts := make([]string, len(addresses))
	for i, address := range addresses {
		texts[i] = address.String()
	}
	return writeFolded(out, name, strings.Join(texts, ", "))
}

// writeFolded ends a line before a word that would make it too long, unless that
// would leave a line of blanks.
func writeFolded(out *bytes.Buffer, name, value string) error {
	line := name + ":"
	isBlank := false
	for _, word := range strings.Split(strings.TrimSpace(value), " ") {
		if !isBlank && word != "" && len(line)+1+len(word) > foldAt {
			out.WriteString(line + "\r\n")
			line, isBlank = "", true
		}
		line += " " + word
		isBlank = isBlank && word == ""
		if len(line) > maxLine {
			return errHeader
		}
	}
	out.WriteString(line + "\r\n")
	return nil
}

// checkHeaderName knows the names of RFC 5322, 2.2.
func checkHeaderName(name string) error {
	switch lower := strings.ToLower(name); {
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r >= 0x7f }):
		return errors.New("headers: a name is not a header name")
	case own[lower] || strings.HasPrefix(lower, "content-") || strings.HasPrefix(lower, "resent-"):
		return fmt.Errorf("headers: %s is set by the adapter itself, or has a setting of its own", name)
	}
	return nil
}

// own are the headers that the adapter or a server on the way writes.
var own = map[string]bool{
	"from": true, "sender": true, "to": true, "cc": true, "bcc": true, "reply-to": true, "subject": true,
	"date": true, "message-id": true, "mime-version": true, "return-path": true, "received": true,
}
