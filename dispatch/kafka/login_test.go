package kafka_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestALoginIsRightOrNothingIsSent(t *testing.T) {
	t.Parallel()
	for mechanism, known := range map[string]string{
		"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512",
	} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			cluster := start(t, kfake.EnableSASL(), kfake.Superuser(known, "drainer", "right"))
			login := func(password string) dispatch.Result {
				settings := "sasl: {mechanism: " + mechanism + ", username: drainer, password: " + password + "}"
				return newAdapter(t, spec(cluster.ListenAddrs(), settings, "topic: "+topic)).Dispatch(t.Context(), request(`{}`))
			}
			if got := login("right"); got.Outcome != dispatch.Completed {
				t.Errorf("right: %+v", got)
			}
			if got := login("wrong"); got.Outcome != dispatch.NotSent {
				t.Errorf("wrong: %+v", got)
			}
			if got := adapterFor(t, cluster).Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.NotSent {
				t.Errorf("no login: %+v", got)
			}
		})
	}
}

func TestABrokersWordForAWrongPasswordIsKept(t *testing.T) {
	t.Parallel()
	cluster := start(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "drainer", "right"))
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return response, nil, true
	})
	settings := "sasl: {mechanism: plain, username: drainer, password: wrong}"
	got := newAdapter(t, spec(cluster.ListenAddrs(), settings, "topic: "+topic)).Dispatch(t.Context(), request(`{}`))
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "sasl_authentication_failed" {
		t.Errorf("got %+v", got)
	}
}

func TestTLSIsThatOfTheNetwork(t *testing.T) {
	t.Parallel()
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	authority := x509.NewCertPool()
	authority.AddCert(certified.Certificate())
	cluster := start(t, kfake.TLS(&tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS12}))

	trusting := spec(cluster.ListenAddrs(), "tls: true", "topic: "+topic)
	trusting.Network = dispatch.NewNetwork(nil, &tls.Config{RootCAs: authority, MinVersion: tls.VersionTLS12})
	if got := newAdapter(t, trusting).Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.Completed {
		t.Errorf("trusting: %+v", got)
	}
	wary := newAdapter(t, spec(cluster.ListenAddrs(), "tls: true", "topic: "+topic))
	if got := wary.Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.NotSent || got.ErrorClass != "tls" {
		t.Errorf("wary: %+v", got)
	}
	if got := adapterFor(t, cluster).Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.NotSent {
		t.Errorf("in the clear: %+v", got)
	}
}
