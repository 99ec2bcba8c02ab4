package demo

import (
	"context"
	"net"
	"net/http"
	"testing"
)

func TestTheProviderIsServedAloneUntilToldToStop(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- ServeProvider(ctx, listener, 1) }()

	reply, err := http.Get("http://" + listener.Addr().String() + "/effects/idem_v1_unknown")
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if reply.StatusCode != http.StatusNotFound {
		t.Errorf("asked about a key that it has never seen, it answers %s", reply.Status)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
