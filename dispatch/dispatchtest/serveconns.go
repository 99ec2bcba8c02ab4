package dispatchtest

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// ServeConns hands every connection to serve, with its number from 0, and
// closes it afterwards. It returns the base URL of a provider that does with
// HTTP what it likes.
func ServeConns(t T, serve func(number int, conn net.Conn)) (baseURL string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening on loopback: %v", err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for number := 0; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(number, conn)
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

// ReadRequest reads one whole request from a connection.
func ReadRequest(reader *bufio.Reader) error {
	request, err := http.ReadRequest(reader)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, request.Body)
	return nil
}
