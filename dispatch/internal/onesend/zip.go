package onesend

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// allowZip asks for a zipped response, as the standard transport does, unless
// the request itself says what it wants.
func allowZip(request *http.Request) bool {
	header := request.Header
	if header.Get("Accept-Encoding") != "" || header.Get("Range") != "" || request.Method == http.MethodHead {
		return false
	}
	header.Set("Accept-Encoding", "gzip")
	return true
}

func unzip(response *http.Response) {
	if !strings.EqualFold(response.Header.Get("Content-Encoding"), "gzip") {
		return
	}
	response.Header.Del("Content-Encoding")
	response.Header.Del("Content-Length")
	response.ContentLength, response.Uncompressed = -1, true
	response.Body = &unzippedBody{ReadCloser: response.Body}
}

// unzippedBody begins to unzip with the first octet that is asked for.
type unzippedBody struct {
	io.ReadCloser // as it came
	unzipped      io.Reader
	err           error // of the beginning
}

func (b *unzippedBody) Read(octets []byte) (int, error) {
	if b.unzipped == nil && b.err == nil {
		b.unzipped, b.err = gzip.NewReader(b.ReadCloser)
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.unzipped.Read(octets)
}
