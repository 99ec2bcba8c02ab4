package integration_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/integration/program"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// What the configuration forbids must not leave, whatever an agent asks for.
func TestWhatTheConfigurationForbidsNeverLeaves(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change  func(config, baseURL string) string
		payload string
		status  string
		class   string
	}{
		"a payload against its schema": {
			func(config, _ string) string {
				return config + "        payload_schema: {type: object, properties: {amount: {type: integer}}}\n"
			}, `{"amount": "canary"}`, "failed", "payload_schema",
		},
		"a private address where that is denied": {
			func(config, _ string) string {
				return "egress: {private: deny}\n" + oneTry(config)
			}, `{"amount": 1}`, "failed", "egress_refused",
		},
		"a name that is not on the list": {
			func(config, baseURL string) string {
				return "egress: {allow: [api.example.com]}\n" + oneTry(strings.Replace(config, baseURL, strings.Replace(baseURL, "127.0.0.1", "localhost", 1), 1))
			}, `{"amount": 1}`, "failed", "egress_refused",
		},
		"a cloud's metadata service": {
			func(config, baseURL string) string {
				return oneTry(strings.Replace(config, baseURL, "http://[::ffff:169.254.169.254]/latest", 1))
			}, `{"amount": 1}`, "failed", "egress_refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Healthy())
			shell := program.New(t, drainertest.Database(t), "BILLING_TOKEN=t")
			config := program.WriteConfig(t, test.change(fmt.Sprintf(billingConfig, baseURL), baseURL))
			shell.Run(0, enqueueCharge(test.payload)...)
			_, log := shell.Run(0, "run", "--once", "--config", config)

			var intent struct {
				Status    string
				LastError string `json:"last_error"`
			}
			shell.RunJSON(&intent, append([]string{"intents", "show"}, chargeKey...)...)
			if intent.Status != test.status || intent.LastError != test.class {
				t.Errorf("the intent is %+v, want %s by %s", intent, test.status, test.class)
			}
			if got := provider.Ledger.Audit().TotalRequests(); got != 0 {
				t.Errorf("%d requests left", got)
			}
			if strings.Contains(log, "canary") {
				t.Errorf("the log shows the payload:\n%s", log)
			}
		})
	}
}

// oneTry makes the first failure the last.
func oneTry(config string) string {
	return config + "        retry: {max_attempts: 1}\n"
}
