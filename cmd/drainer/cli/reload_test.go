package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

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
