package kafka_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/kafka"
)

func TestAWrongConfigurationIsRefusedWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	const good = "topic: charges"
	for name, test := range map[string]struct{ settings, tool, says string }{
		"no brokers":       {`{}`, good, "brokers is missing"},
		"unknown setting":  {`{brokers: ["h:1"], nonsense: 1}`, good, "nonsense"},
		"no port":          {`{brokers: ["h:1", s3cret]}`, good, "brokers[1] is not host:port"},
		"a URL":            {`{brokers: ["kafka://u:s3cret@h:1"]}`, good, "brokers[0] is not host:port"},
		"a port too far":   {`{brokers: ["h:70000"]}`, good, "brokers[0] is not host:port"},
		"no password":      {`{brokers: ["h:1"], sasl: {mechanism: plain, username: u}}`, good, "username and a password"},
		"mechanism":        {`{brokers: ["h:1"], sasl: {mechanism: s3cret, username: u, password: s3cret}}`, good, "sasl.mechanism is none"},
		"no topic":         {`{brokers: ["h:1"]}`, `{}`, "topic is missing"},
		"unknown tool":     {`{brokers: ["h:1"]}`, `{topic: a, nonsense: 1}`, "nonsense"},
		"topic":            {`{brokers: ["h:1"]}`, `{topic: "{.payload.topic}"}`, "topic is no name"},
		"topic of dots":    {`{brokers: ["h:1"]}`, `{topic: ".."}`, "topic is no name"},
		"key":              {`{brokers: ["h:1"]}`, `{topic: a, key: "{"}`, "key: "},
		"the key's header": {`{brokers: ["h:1"]}`, `{topic: a, headers: {Idempotency-Key: x}}`, "set by the adapter itself"},
		"trace header":     {`{brokers: ["h:1"]}`, `{topic: a, headers: {traceparent: x}}`, "set by the adapter itself"},
		"header name":      {`{brokers: ["h:1"]}`, `{topic: a, headers: {"a b": x}}`, "not a valid header name"},
		"map":              {`{brokers: ["h:1"]}`, `{topic: a, map: "("}`, "map: jq does not parse"},
	} {
		wrong := spec(nil, "", test.tool)
		wrong.Settings = block(test.settings)
		_, err := kafka.New(wrong)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
			continue
		}
		if !strings.Contains(test.says, "nonsense") && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: repeats a value: %v", name, err)
		}
	}
}

func TestATopicCannotBeAskedForARecord(t *testing.T) {
	t.Parallel()
	asked := spec([]string{"h:1"}, "", "topic: a")
	asked.Tools["publish"] = dispatch.ToolSpec{Class: dispatch.ReadOnly, AnswersLookups: true, Settings: block("topic: a")}
	_, err := kafka.New(asked)
	var wrong *dispatch.ToolError
	if !errors.As(err, &wrong) || wrong.Operation != "publish" {
		t.Errorf("got %v", err)
	}
}

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string][]dispatch.Destination{
		"brokers: [\"a.example:9092\", \"b.example:9092\"]": {{Network: "tcp", Address: "a.example:9092"}, {Network: "tcp", Address: "b.example:9092"}},
		"{brokers: [\"a.example:9093\"], tls: true}":        {{Network: "tcp", Address: "a.example:9093", TLS: dispatch.ImplicitTLS}},
	} {
		adapter, err := kafka.New(dispatch.Spec{Settings: dispatchtest.Block(settings)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = adapter.Close() })
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}

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
	if got.Outcome != dispatch.CredentialsRefused || got.ErrorClass != "sasl_authentication_failed" {
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
