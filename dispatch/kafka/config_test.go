package kafka_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
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
