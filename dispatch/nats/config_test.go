package nats_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/nats"
)

func TestAWrongConfigurationIsRefusedWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	const good = "subject: charges.created"
	for name, test := range map[string]struct{ settings, tool, says string }{
		"no servers":        {`{}`, good, "urls is missing"},
		"unknown setting":   {`{urls: ["nats://h:1"], nonsense: 1}`, good, "nonsense"},
		"not a URL":         {`{urls: ["nats://s3cret:%zz"]}`, good, "urls[0] is not a URL"},
		"another scheme":    {`{urls: ["http://s3cret"]}`, good, "urls[0] is neither nats:// nor tls://"},
		"no host":           {`{urls: ["nats://:4222"]}`, good, "urls[0] has no host"},
		"a password in it":  {`{urls: ["nats://u:s3cret@h:1"]}`, good, "urls[0] carries credentials"},
		"two logins":        {`{urls: ["nats://h:1"], token: s3cret, username: u}`, good, "set one of"},
		"password alone":    {`{urls: ["nats://h:1"], password: s3cret}`, good, "no username"},
		"no seed":           {`{urls: ["nats://h:1"], nkey_seed: s3cret}`, good, "nkey_seed is not a seed"},
		"no credentials":    {`{urls: ["nats://h:1"], credentials: s3cret}`, good, "credentials hold no user"},
		"inbox wildcard":    {`{urls: ["nats://h:1"], inbox_prefix: "a.>"}`, good, "inbox_prefix"},
		"no subject":        {`{urls: ["nats://h:1"]}`, `{}`, "subject is missing"},
		"unknown tool":      {`{urls: ["nats://h:1"]}`, `{subject: a, nonsense: 1}`, "nonsense"},
		"wildcard":          {`{urls: ["nats://h:1"]}`, `{subject: "a.*"}`, "subject is not"},
		"empty token":       {`{urls: ["nats://h:1"]}`, `{subject: "a..b"}`, "subject is not"},
		"subject with line": {`{urls: ["nats://h:1"]}`, `{subject: "a\r\nPUB b"}`, "subject is not"},
		"stream":            {`{urls: ["nats://h:1"]}`, `{subject: a, stream: "a.b"}`, "stream is not"},
		"the key's header":  {`{urls: ["nats://h:1"]}`, `{subject: a, headers: {nats-msg-id: x}}`, "set by the adapter itself"},
		"trace header":      {`{urls: ["nats://h:1"]}`, `{subject: a, headers: {traceparent: x}}`, "set by the adapter itself"},
		"header name":       {`{urls: ["nats://h:1"]}`, `{subject: a, headers: {"a: b": x}}`, "not a valid header name"},
		"header template":   {`{urls: ["nats://h:1"]}`, `{subject: a, headers: {x: "{"}}`, "headers.x"},
		"map":               {`{urls: ["nats://h:1"]}`, `{subject: a, map: "("}`, "map: jq does not parse"},
	} {
		wrong := spec("", "", test.tool)
		wrong.Settings = block(test.settings)
		_, err := nats.New(wrong)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
			continue
		}
		if !strings.Contains(test.says, "nonsense") && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: repeats a value: %v", name, err)
		}
	}
}

func TestASubjectCannotBeAskedForAMessage(t *testing.T) {
	t.Parallel()
	asked := spec("nats://h:1", "", "subject: a")
	asked.Tools["publish"] = dispatch.ToolSpec{Class: dispatch.ReadOnly, AnswersLookups: true, Settings: block("subject: a")}
	_, err := nats.New(asked)
	var wrong *dispatch.ToolError
	if !errors.As(err, &wrong) || wrong.Operation != "publish" {
		t.Errorf("got %v", err)
	}
}
