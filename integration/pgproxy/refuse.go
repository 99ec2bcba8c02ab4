package pgproxy

import (
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// RefuseSettings stands in front of a database, and takes those start-up parameters
// alone that PgBouncer takes.
func RefuseSettings(t testing.TB, databaseURL string, refusals *atomic.Int64) string {
	t.Helper()
	behind, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go poolOne(client, behind.Host, refusals)
		}
	}()
	through := *behind
	through.Host = listener.Addr().String()
	return through.String()
}

func poolOne(client net.Conn, behind string, refusals *atomic.Int64) {
	defer client.Close()
	backend := pgproto3.NewBackend(client, client)
	first, err := backend.ReceiveStartupMessage()
	if err != nil {
		return
	}
	startup, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return
	}
	for name := range startup.Parameters {
		switch name {
		case "user", "database", "client_encoding", "datestyle", "timezone", "standard_conforming_strings", "application_name":
		default:
			refusals.Add(1)
			backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
			_ = backend.Flush()
			return
		}
	}
	server, err := net.Dial("tcp", behind)
	if err != nil {
		return
	}
	defer server.Close()
	message, err := startup.Encode(nil)
	if err != nil {
		return
	}
	if _, err := server.Write(message); err != nil {
		return
	}
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	_, _ = io.Copy(client, server)
}
