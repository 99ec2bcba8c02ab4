package cli

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/drainer/config"
)

// The configuration came through a pipe, and one of its secrets is rotated:
// that is refused, but once, not at every look.
func TestWhatAPipeKeepsFromBeingReloadedIsRefusedOnce(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	secret := filepath.Join(folder, "secret")
	write := func(content string) {
		if err := os.WriteFile(secret, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if _, err := io.WriteString(to, "version: 1\ndatabase: {url: \"${file:"+secret+"}\"}\nproviders: {}\n"); err != nil {
		t.Fatal(err)
	}
	to.Close()
	loaded, err := config.Load(filepath.Join("/dev/fd", strconv.Itoa(int(from.Fd()))), builtins(t))
	if err != nil {
		t.Fatal(err)
	}
	write("two")
	r := &reloader{files: loaded.Files}
	_, err = r.read()
	var mistakes *config.InvalidError
	if !errors.As(err, &mistakes) {
		t.Fatalf("%v, want a refusal", err)
	}
	for _, file := range mistakes.Files {
		if file.Current() != file.Version {
			t.Errorf("%s is as it was, and yet the next look would find it changed", filepath.Base(file.Path))
		}
	}
}

// Whatever stands in a file when it is reloaded: it is refused with its
// mistakes, or all of the daemon can go by it. No secret is shown either way.
func FuzzAReloadIsRefusedOrTakenOver(f *testing.F) {
	const canary = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // which is also a secret that signs
	f.Setenv("CANARY", canary)
	secret := regexp.MustCompile(`\$\{file:[^}]*\}`)
	for _, seed := range append(documentedConfigurations(f), validConfig, "", "{", "version: 1\nproviders: {}") {
		seed = secret.ReplaceAllLiteralString(seed, "${env:CANARY}")
		f.Add([]byte(seed))
		f.Add([]byte(strings.NewReplacer("https://", "${env:CANARY}", ": /", ": ${env:CANARY}").Replace(seed)))
	}
	registry, path := builtins(f), filepath.Join(f.TempDir(), "drainer.yaml")
	running, err := config.Load(writeValid(f), registry)
	if err != nil {
		f.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	parts, err := partsOf(pools{}, running, log, prometheus.NewRegistry())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := config.Reload(path, registry)
		var mistakes *config.InvalidError
		if err != nil {
			if !errors.As(err, &mistakes) || len(mistakes.Files) == 0 || mistakes.Files[0].Current() != mistakes.Files[0].Version {
				t.Errorf("not a list of mistakes in a file: %v", err)
			}
			if strings.Contains(err.Error(), canary) && !bytes.Contains(content, []byte(canary)) {
				t.Errorf("a secret is shown: %v", err)
			}
			return
		}
		use, err := parts.prepare(loaded)
		if err != nil {
			t.Fatalf("%q is loaded, and cannot be taken over: %v", content, err)
		}
		use()
		for _, provider := range loaded.Providers {
			_ = hostOf(provider.Adapter)
			if closer, closes := provider.Adapter.(io.Closer); closes {
				_ = closer.Close()
			}
		}
		if again, err := config.Reload(path, registry); err != nil || !slices.Equal(again.Files, loaded.Files) {
			t.Errorf("the same file is another one: %v", err)
		}
	})
}

// documentedConfigurations are the examples of the documentation.
func documentedConfigurations(t testing.TB) (examples []string) {
	t.Helper()
	pages, err := filepath.Glob("../../../docs/adapters/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
			example, _, _ := strings.Cut(block, "```")
			examples = append(examples, example)
		}
	}
	return examples
}
