package smtp

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/textproto"
	"strings"
)

const quotedPrintable = "quoted-printable"

// part is one way to show a mail.
type part struct{ contentType, text string }

// writeBody writes the parts, of which there is one or more, least telling
// first (RFC 2046, 5.1.4), with the headers that they need.
func writeBody(out *bytes.Buffer, parts []part, boundary string) error {
	if len(parts) == 1 {
		fmt.Fprintf(out, "Content-Type: %s\r\nContent-Transfer-Encoding: %s\r\n\r\n", parts[0].contentType, quotedPrintable)
		return writeEncoded(out, parts[0].text)
	}
	alternative := mime.FormatMediaType("multipart/alternative", map[string]string{"boundary": boundary})
	if err := writeFolded(out, "Content-Type", alternative); err != nil {
		return err
	}
	out.WriteString("\r\n")
	writer := multipart.NewWriter(out)
	if err := writer.SetBoundary(boundary); err != nil {
		return err
	}
	for _, part := range parts {
		one, err := writer.CreatePart(textproto.MIMEHeader{
			"Content-Type":              {part.contentType},
			"Content-Transfer-Encoding": {quotedPrintable},
		})
		if err != nil {
			return err
		}
		if err := writeEncoded(one, part.text); err != nil {
			return err
		}
	}
	return writer.Close()
}

// lineEnds are made one: behind a carriage return that stands alone, the encoder
// loses the next line feed.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

func writeEncoded(out io.Writer, text string) error {
	writer := quotedprintable.NewWriter(out)
	if _, err := lineEnds.WriteString(writer, text); err != nil {
		return err
	}
	return writer.Close()
}

// boundaryFor never stands in a body: in quoted-printable, what follows = is a
// hexadecimal digit or the end of the line.
func boundaryFor(key string) string { return "=_" + key }
