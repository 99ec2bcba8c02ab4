package http_test

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

func TestBadConfigurationIsRefusedByFieldName(t *testing.T) {
	t.Parallel()
	const base = "base_url: https://api.example.com\n"
	for name, test := range map[string]struct{ settings, tool, want string }{
		"no base":              {"", "{path: /}", "base_url is missing"},
		"ftp":                  {"base_url: ftp://h", "{path: /}", "neither http nor https"},
		"no host":              {"base_url: 'https:///x'", "{path: /}", "no host"},
		"userinfo":             {"base_url: https://u:canary@h", "{path: /}", "credentials"},
		"query":                {"base_url: https://h/?k=canary", "{path: /}", "query"},
		"fragment":             {"base_url: https://h/#canary", "{path: /}", "fragment"},
		"unparsable":           {"base_url: 'https://h:canary'", "{path: /}", "not a URL"},
		"header newline":       {base + "headers: {A: \"canary\\n\"}", "{path: /}", "value of A"},
		"header name":          {base + "headers: {'A B': x}", "{path: /}", "header name"},
		"host header":          {base + "headers: {host: evil}", "{path: /}", "Host"},
		"tool host header":     {base, "{path: /, headers: {host: evil}}", "Host"},
		"key header twice":     {base + "headers: {idempotency-key: x}", "{path: /}", "idempotency key"},
		"two key places":       {base + "idempotency_key: {header: A, field: b}", "{path: /}", "set one of"},
		"key header name":      {base + "idempotency_key: {header: 'canary !'}", "{path: /}", "idempotency_key.header is not"},
		"key parameter twice":  {base + "idempotency_key: {query: id}", "{path: /, query: {id: '7'}}", "query: a parameter carries"},
		"query placeholder":    {base, "{path: /, query: {q: '{.canary'}}", "query.q: placeholder at offset 0"},
		"key format":           {base + "idempotency_key: {format: base64}", "{path: /}", "idempotency_key.format"},
		"key too short":        {base + "idempotency_key: {max_length: 8}", "{path: /}", "max_length"},
		"uuid too short":       {base + "idempotency_key: {format: uuid, max_length: 32}", "{path: /}", "max_length"},
		"key field, no body":   {base + "idempotency_key: {field: k}", "{path: /, body: none}", "idempotency_key.field"},
		"negative limit":       {base + "max_response_body: -1", "{path: /}", "max_response_body"},
		"unknown field":        {base, "{path: /, bdoy: json}", "bdoy"},
		"no path":              {base, "{method: GET}", "path must start"},
		"absolute URL":         {base, "{path: 'https://evil/'}", "path must start"},
		"query in path":        {base, "{path: '/a?b=canary'}", "use query"},
		"bad escape":           {base, "{path: '/a%zz'}", "%"},
		"method":               {base, "{path: /, method: CONNECT}", "method"},
		"body":                 {base, "{path: /, body: xml}", "body is none of"},
		"body of GET":          {base, "{path: /, method: GET, body: json}", "GET"},
		"map without body":     {base, "{path: /, body: none, map: .payload}", "map"},
		"map does not parse":   {base, "{path: /, map: '.canary | |'}", "map: jq does not parse"},
		"map reads the clock":  {base, "{path: /, map: '{at: (now | floor)}'}", "now"},
		"open placeholder":     {base, "{path: '/{.canary'}", "placeholder at offset 1"},
		"stray brace":          {base, "{path: '/a}'}", "closes nothing"},
		"ref":                  {base, "{path: /, response: {ref: '.['}}", "response.ref"},
		"profile":              {base + "profile: canary", "{path: /}", "profile is none of github, ietf, none,"},
		"replay header":        {base + "replay_header: 'canary !'", "{path: /}", "replay_header"},
		"retry header":         {base + "should_retry_header: 'canary !'", "{path: /}", "should_retry_header"},
		"capture header":       {base + "capture_headers: ['canary !']", "{path: /}", "capture_headers"},
		"no condition":         {base, "{path: /, response: {rules: [{outcome: rejected}]}}", "response.rules.0: when is missing"},
		"bad condition":        {base, "{path: /, response: {rules: [{when: '.canary ==', outcome: rejected}]}}", "when: jq does not parse"},
		"clock in condition":   {base, "{path: /, response: {rules: [{when: 'now > 1', outcome: rejected}]}}", "now"},
		"no outcome":           {base, "{path: /, response: {rules: [{when: .status == 1}]}}", "outcome is none of"},
		"outcome of an engine": {base, "{path: /, response: {rules: [{when: .status == 1, outcome: lost}]}}", "outcome is none of"},
		"wait for a failure":   {base, "{path: /, response: {rules: [{when: .status == 1, outcome: rejected, retry_after: '1'}]}}", "rejected is not tried again"},
		"bad wait":             {base, "{path: /, response: {rules: [{when: .status == 1, outcome: throttled, retry_after: '.['}]}}", "retry_after: jq"},
		"error of a success":   {base, "{path: /, response: {rules: [{when: .status == 1, outcome: completed, error: x}]}}", "completed is none"},
		"long error":           {base, "{path: /, response: {rules: [{when: .status == 1, outcome: rejected, error: Canary Error}]}}", "short name"},
		"absent of a write":    {base, "{path: /, response: {rules: [{when: .status == 404, outcome: absent}]}}", "not read_only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := dispatchhttp.New(dispatch.Spec{
				Settings: block(test.settings),
				Tools:    map[string]dispatch.ToolSpec{"charge": {Class: dispatch.KeyIdempotent, Settings: block(test.tool)}},
			})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v does not mention %q", err, test.want)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("the error repeats a value: %v", err)
			}
		})
	}
}

func TestAllProblemsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := dispatchhttp.New(spec("ftp://h", "max_response_body: -1", "{path: x, method: BREW}"))
	for _, want := range []string{"base_url", "max_response_body", "tool charge: path", "method"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %s: %v", want, err)
		}
	}
}
