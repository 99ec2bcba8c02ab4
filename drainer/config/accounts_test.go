package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainer/config"
)

const accountFile = `version: 1
database: {url: "${env:DATABASE_URL}"}
x-auth: &auth {Authorization: "Bearer ${file:/run/secrets/stripe}"}
providers:
  stripe:
    adapter: http
    http: {base_url: https://api.stripe.com, headers: *auth}
    tools:
      charge: {http: {path: /v1/charges}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}}
  queue:
    adapter: rabbitmq
    rabbitmq: {url: "amqps://app:${env:QUEUE}@queue.internal/orders"}
    tools: {post: {rabbitmq: {exchange: orders}}}
`

// Neither file needs the secrets that it names.
func TestTwoFilesThatReachOneAccountAreFound(t *testing.T) {
	t.Parallel()
	both := []config.Shared{{Provider: "queue", SameCredentials: true}, {Provider: "stripe", SameCredentials: true}}
	queue := both[:1]
	for name, test := range map[string]struct {
		replace []string
		want    []config.Shared
	}{
		"the same":                       {nil, both},
		"another spelling of an address": {[]string{"https://api.stripe.com", "https://API.stripe.com/"}, both},
		"other limits":                   {[]string{"    adapter: http\n", "    adapter: http\n    concurrency: 3\n"}, both},
		"another credential":             {[]string{"secrets/stripe", "secrets/other"}, []config.Shared{queue[0], {Provider: "stripe"}}},
		"another login in the address":   {[]string{"app:${env:QUEUE}", "app:${env:OTHER}"}, []config.Shared{{Provider: "queue"}, both[1]}},
		"a namespace on one side":        {[]string{"    adapter: http\n", "    adapter: http\n    idempotency: {namespace: eu}\n"}, queue},
		"another address":                {[]string{"api.stripe.com", "localhost:12111"}, queue},
		"another adapter":                {[]string{"adapter: http", "adapter: webhook", "    http: {base_url", "    webhook: {url"}, queue},
		"another provider's name":        {[]string{"  stripe:\n", "  billing:\n"}, queue},
		"no operation in common":         {[]string{"      charge:", "      refund:"}, queue},
		"one database":                   {[]string{"${env:DATABASE_URL}", "postgres://db/app"}, both},
		"no provider at all":             {[]string{"providers:", "pages:"}, []config.Shared{}},
	} {
		folder := t.TempDir()
		one, other := filepath.Join(folder, "one.yaml"), filepath.Join(folder, "other.yaml")
		for path, text := range map[string]string{one: accountFile, other: strings.NewReplacer(test.replace...).Replace(accountFile)} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, files := range [][2]string{{one, other}, {other, one}} {
			if got, err := config.SharedAccounts(files[0], files[1]); err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
			}
		}
	}
}

func TestTwoFilesOfOneOutboxShareItsKeys(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "drainer.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(accountFile, "${env:DATABASE_URL}", "postgres://db/app", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := config.SharedAccounts(file, file); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestAFileThatCannotBeComparedIsNamed(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("providers: [hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{broken, "gone.yaml"} {
		_, err := config.SharedAccounts(path, path)
		var mistakes *config.InvalidError
		if !errors.As(err, &mistakes) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
