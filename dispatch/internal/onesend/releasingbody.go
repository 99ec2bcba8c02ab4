package onesend

import "io"

// releasingBody ends the request's context with the reading of its response:
// until then the context guards against a second send.
type releasingBody struct {
	io.ReadCloser
	release func()
}

func (b *releasingBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}
