package config_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/drainer/config"
)

const interval = time.Second

// desk watches files of one folder, by a clock of its own.
type desk struct {
	t      *testing.T
	folder string
	asked  chan os.Signal
	causes chan config.Cause
}

func (d *desk) write(name, content string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.folder, name), []byte(content), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) remove(name string) {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.folder, name)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) read(names ...string) (files []config.File) {
	for _, name := range names {
		file := config.File{Path: filepath.Join(d.folder, name)}
		file.Version = file.Current()
		files = append(files, file)
	}
	return files
}

// pass lets a number of intervals go by, and returns why was reloaded meanwhile.
func (d *desk) pass(intervals int) (causes []config.Cause) {
	time.Sleep(time.Duration(intervals) * interval)
	synctest.Wait()
	for len(d.causes) > 0 {
		causes = append(causes, <-d.causes)
	}
	return causes
}

func (d *desk) want(what string, got []config.Cause, want ...config.Cause) {
	d.t.Helper()
	if len(got) != len(want) || (len(want) > 0 && got[0] != want[0]) {
		d.t.Errorf("%s: reloads because of %v, want %v", what, got, want)
	}
}

func watching(t *testing.T, test func(*desk)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{t: t, folder: t.TempDir(), asked: make(chan os.Signal, 1), causes: make(chan config.Cause, 10)}
		d.write("drainer.yaml", "one")
		d.write("secret", "one")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go config.Watch(ctx, interval, d.read("drainer.yaml", "secret", "missing"), d.asked, func(cause config.Cause) []config.File {
			d.causes <- cause
			return d.read("drainer.yaml", "secret", "missing")
		})
		time.Sleep(interval / 2) // so that no look is at the same moment as a change
		synctest.Wait()
		test(d)
	})
}

func TestNothingIsReloadedWithoutACause(t *testing.T) {
	watching(t, func(d *desk) {
		d.want("at rest", d.pass(10))
		d.write("drainer.yaml", "one")
		d.want("written again with the same content", d.pass(10))
	})
}

func TestAChangeOfAnyFileIsReloadedOnce(t *testing.T) {
	watching(t, func(d *desk) {
		for _, step := range []struct {
			what   string
			change func()
		}{
			{"the configuration", func() { d.write("drainer.yaml", "two") }},
			{"a file that it refers to", func() { d.write("secret", "two") }},
			{"one that was missing", func() { d.write("missing", "here") }},
			{"one that is missing from on", func() { d.remove("missing") }},
		} {
			step.change()
			d.want(step.what, d.pass(1))
			d.want(step.what, d.pass(10), config.Change)
		}
	})
}

func TestAFileThatIsBeingWrittenIsLeftAlone(t *testing.T) {
	watching(t, func(d *desk) {
		for _, half := range []string{"t", "tw", "two", "two ", "two three"} {
			d.write("drainer.yaml", half)
			d.want("while it grows", d.pass(1))
		}
		d.want("at its end", d.pass(2), config.Change)
	})
}

func TestAChangeThatIsTakenBackAtOnceIsNone(t *testing.T) {
	watching(t, func(d *desk) {
		d.write("drainer.yaml", "two")
		d.want("changed", d.pass(1))
		d.write("drainer.yaml", "one")
		d.want("taken back", d.pass(10))
	})
}

func TestASignalIsHeededAtOnceAndWithoutAChange(t *testing.T) {
	watching(t, func(d *desk) {
		d.asked <- syscall.SIGHUP
		d.want("asked", d.pass(0), config.Signal)
		d.write("drainer.yaml", "two")
		d.asked <- syscall.SIGHUP
		d.want("asked after a change", d.pass(0), config.Signal)
		d.want("which is known then", d.pass(10))
	})
}

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
	if err := os.WriteFile(file, []byte(strings.NewReplacer("version: 1\n", "\ufeff", "${env:DATABASE_URL}", "postgres://db/app").Replace(accountFile)), 0o600); err != nil {
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
