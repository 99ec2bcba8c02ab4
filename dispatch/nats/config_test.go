package nats_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/nats"
)

func TestAWrongConfigurationIsRefusedWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	const good = "subject: charges.created"
	dispatchtest.Refuses(t, nats.Kind(), dispatchtest.Mistakes{
		"no servers":        {`{}`, good, "urls is missing"},
		"unknown setting":   {`{urls: ["nats://h:1"], nonsense: 1}`, good, "not what *nats.Settings takes"},
		"not a URL":         {`{urls: ["nats://canary:%zz"]}`, good, "urls[0] is not a URL"},
		"another scheme":    {`{urls: ["http://canary"]}`, good, "urls[0] is neither nats:// nor tls://"},
		"no host":           {`{urls: ["nats://:4222"]}`, good, "urls[0] has no host"},
		"a password in it":  {`{urls: ["nats://u:canary@h:1"]}`, good, "urls[0] carries credentials"},
		"two logins":        {`{urls: ["nats://h:1"], token: canary, username: u}`, good, "set one of"},
		"password alone":    {`{urls: ["nats://h:1"], password: canary}`, good, "no username"},
		"no seed":           {`{urls: ["nats://h:1"], nkey_seed: canary}`, good, "nkey_seed is not a seed"},
		"no credentials":    {`{urls: ["nats://h:1"], credentials: canary}`, good, "credentials hold no user"},
		"inbox wildcard":    {`{urls: ["nats://h:1"], inbox_prefix: "a.>"}`, good, "inbox_prefix"},
		"no subject":        {`{urls: ["nats://h:1"]}`, `{}`, "subject is missing"},
		"unknown tool":      {`{urls: ["nats://h:1"]}`, `{subject: a, nonsense: 1}`, "not what *nats.Tool takes"},
		"wildcard":          {`{urls: ["nats://h:1"]}`, `{subject: "a.*"}`, "subject is not"},
		"empty token":       {`{urls: ["nats://h:1"]}`, `{subject: "a..b"}`, "subject is not"},
		"subject with line": {`{urls: ["nats://h:1"]}`, `{subject: "a\r\nPUB b"}`, "subject is not"},
		"stream":            {`{urls: ["nats://h:1"]}`, `{subject: a, stream: "a.b"}`, "stream is not"},
		"the key's header":  {`{urls: ["nats://h:1"]}`, `{subject: a, headers: {nats-msg-id: x}}`, "set by the adapter itself"},
		"trace header":      {`{urls: ["nats://h:1"]}`, `{subject: a, headers: {traceparent: x}}`, "set by the adapter itself"},
		"header name":       {`{urls: ["nats://h:1"]}`, `{subject: a, headers: {"a: b": x}}`, "not a valid header name"},
		"header template":   {`{urls: ["nats://h:1"]}`, `{subject: a, headers: {x: "{"}}`, "headers.x"},
		"map":               {`{urls: ["nats://h:1"]}`, `{subject: a, map: "("}`, "map: jq does not parse"},
	})
}

func TestASubjectCannotBeAskedForAMessage(t *testing.T) {
	t.Parallel()
	asked := spec("nats://h:1", "", "subject: a")
	asked.Tools["publish"] = dispatch.ToolSpec{Class: dispatch.ReadOnly, AnswersLookups: true, Settings: dispatchtest.Block("subject: a")}
	_, err := nats.New(asked)
	var wrong *dispatch.ToolError
	if !errors.As(err, &wrong) || wrong.Operation != "publish" {
		t.Errorf("got %v", err)
	}
}

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	dispatchtest.ConnectsTo(t, nats.Kind(), map[string][]dispatch.Destination{
		"urls: [\"nats://a.example\", \"tls://b.example:5222\"]": {{Network: "tcp", Address: "a.example:4222"}, {Network: "tcp", Address: "b.example:5222", TLS: dispatch.UpgradedTLS}},
		"{urls: [\"nats://[::1]:4222\"], tls: true}":             {{Network: "tcp", Address: "[::1]:4222", TLS: dispatch.UpgradedTLS}},
	})
}

// letIn is the error class of a dispatch without a stream. It shows that the server accepted the login.
const letIn = "no_responders"

func tryLogin(t *testing.T, c *counterpart, settings string) dispatch.Result {
	t.Helper()
	return newAdapter(t, ofClass(dispatch.NonIdempotent, spec(c.ClientURL(), settings, "subject: "+subject))).Dispatch(t.Context(), request(`{}`))
}

func TestALoginIsRightOrNothingIsSent(t *testing.T) {
	t.Parallel()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := user.Seed()
	public, _ := user.PublicKey()
	other, _ := nkeys.CreateUser()
	otherSeed, _ := other.Seed()
	for name, test := range map[string]struct {
		server       func(*server.Options)
		right, wrong string
	}{
		"password": {func(options *server.Options) { options.Username, options.Password = "drainer", "right" }, "username: drainer\npassword: right", "username: drainer\npassword: wrong"},
		"token":    {func(options *server.Options) { options.Authorization = "right" }, "token: right", "token: wrong"},
		"nkey":     {func(options *server.Options) { options.Nkeys = []*server.NkeyUser{{Nkey: public}} }, "nkey_seed: " + string(seed), "nkey_seed: " + string(otherSeed)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, test.server)
			dispatchtest.Expect(t, tryLogin(t, c, test.right), dispatch.Throttled, letIn)
			dispatchtest.Expect(t, tryLogin(t, c, test.wrong), dispatch.CredentialsRefused, "authorization")
			dispatchtest.Expect(t, tryLogin(t, c, ""), dispatch.CredentialsRefused, "authorization")
		})
	}
}

func TestAUserLogsInByCredentials(t *testing.T) {
	t.Parallel()
	operator, _ := nkeys.CreateOperator()
	account, _ := nkeys.CreateAccount()
	user, _ := nkeys.CreateUser()
	operatorPublic, _ := operator.PublicKey()
	accountPublic, _ := account.PublicKey()
	userPublic, _ := user.PublicKey()
	accountJWT, err := jwt.NewAccountClaims(accountPublic).Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	userClaims := jwt.NewUserClaims(userPublic)
	userJWT, err := userClaims.Encode(account)
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := user.Seed()
	credentials, err := jwt.FormatUserConfig(userJWT, seed)
	if err != nil {
		t.Fatal(err)
	}
	resolver := &server.MemAccResolver{}
	if err := resolver.Store(accountPublic, accountJWT); err != nil {
		t.Fatal(err)
	}
	c := start(t, func(options *server.Options) {
		options.TrustedKeys, options.AccountResolver, options.JetStream = []string{operatorPublic}, resolver, false
	})
	indented := "  " + strings.ReplaceAll(string(credentials), "\n", "\n  ")
	dispatchtest.Expect(t, tryLogin(t, c, "credentials: |\n"+indented), dispatch.Throttled, letIn)
	dispatchtest.Expect(t, tryLogin(t, c, ""), dispatch.CredentialsRefused, "authorization")
}

// The documentation names these permissions.
func TestThesePermissionsAreEnough(t *testing.T) {
	t.Parallel()
	c := start(t, func(options *server.Options) {
		options.Users = []*server.User{{Username: "admin", Password: "right"}, {
			Username: "drainer", Password: "right",
			Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{subject, "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.NAMES"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			},
		}}
	})
	c.look(t, natsgo.UserInfo("admin", "right"))
	c.create(t)
	for _, tool := range []string{"subject: " + subject, "{subject: " + subject + ", stream: " + stream + "}"} {
		adapter := newAdapter(t, spec(c.ClientURL(), "username: drainer\npassword: right", tool))
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent(tool)), dispatch.Completed, "")
	}
}

func TestWhatAUserMayNotPublishIsNamed(t *testing.T) {
	t.Parallel()
	c := start(t, func(options *server.Options) {
		options.Users = []*server.User{{
			Username: "drainer", Password: "right",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{subject}}},
		}}
	})
	limited := ofClass(dispatch.NonIdempotent, spec(c.ClientURL(), "username: drainer\npassword: right", "subject: "+subject))
	limited.Timeout = limited.Timeout / 20
	dispatchtest.Expect(t, newAdapter(t, limited).Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, "permission_violation")
}

func TestTLSIsThatOfTheNetwork(t *testing.T) {
	t.Parallel()
	certificate, trusted := dispatchtest.Certificate(t)
	c := start(t, func(options *server.Options) {
		options.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	})
	for _, settings := range []string{"tls: true", ""} {
		t.Run(fmt.Sprintf("settings %q", settings), func(t *testing.T) {
			trusting := ofClass(dispatch.NonIdempotent, spec(c.ClientURL(), settings, "subject: "+subject))
			trusting.Network = dispatch.NewNetwork(nil, trusted)
			dispatchtest.Expect(t, newAdapter(t, trusting).Dispatch(t.Context(), request(`{}`)), dispatch.Throttled, letIn)

			wary := ofClass(dispatch.NonIdempotent, spec(c.ClientURL(), settings, "subject: "+subject))
			dispatchtest.Expect(t, newAdapter(t, wary).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "tls")
		})
	}
}

func TestWhereTLSIsInsistedOnNothingIsSentInTheClear(t *testing.T) {
	t.Parallel()
	c := start(t)
	dispatchtest.Expect(t, tryLogin(t, c, "tls: true"), dispatch.NotSent, "tls")
}
