package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// folder holds a configuration whose database URL is in a file called secret,
// named twice.
func folder(t *testing.T, secret string) (path string) {
	t.Helper()
	dir := t.TempDir()
	reference := "${file:" + filepath.Join(dir, "secret") + "}"
	put(t, filepath.Join(dir, "drainer.yaml"), "version: 1\ndatabase: {url: \""+reference+"/"+reference+"\"}\n")
	if secret != "" {
		put(t, filepath.Join(dir, "secret"), secret)
	}
	return filepath.Join(dir, "drainer.yaml")
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func names(files []File) (names []string) {
	for _, file := range files {
		names = append(names, filepath.Base(file.Path))
	}
	return names
}

func changed(files []File) (names []string) {
	for _, file := range files {
		if file.Current() != file.Version {
			names = append(names, filepath.Base(file.Path))
		}
	}
	return names
}

func TestAConfigurationKnowsTheFilesItWasReadFrom(t *testing.T) {
	t.Parallel()
	path := folder(t, "one")
	loaded, err := Load(path, fakeRegistry(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := names(loaded.Files); !slices.Equal(got, []string{"drainer.yaml", "secret"}) {
		t.Errorf("it was read from %v", got)
	}
	if got := changed(loaded.Files); got != nil {
		t.Errorf("%v changed without a change", got)
	}
	put(t, filepath.Join(filepath.Dir(path), "secret"), "two")
	if got := changed(loaded.Files); !slices.Equal(got, []string{"secret"}) {
		t.Errorf("%v changed, want the secret", got)
	}
}

func TestARejectedConfigurationKnowsTheFileThatWasMissing(t *testing.T) {
	t.Parallel()
	path := folder(t, "")
	_, err := Load(path, fakeRegistry(t))
	var mistakes *InvalidError
	if !errors.As(err, &mistakes) || !slices.Equal(names(mistakes.Files), []string{"drainer.yaml", "secret"}) {
		t.Fatalf("%v: it names the files %v", err, mistakes)
	}
	put(t, filepath.Join(filepath.Dir(path), "secret"), "here")
	if got := changed(mistakes.Files); !slices.Equal(got, []string{"secret"}) {
		t.Errorf("%v changed, want the secret", got)
	}
}

func TestAFileThatIsNoYAMLIsKnown(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "drainer.yaml")
	for _, content := range []string{"", "\tno: yaml"} {
		if content != "" {
			put(t, path, content)
		}
		_, err := Load(path, fakeRegistry(t))
		var mistakes *InvalidError
		if !errors.As(err, &mistakes) || len(mistakes.Files) != 1 || mistakes.Files[0].Path != path {
			t.Errorf("%q: %v names the files %v", content, err, mistakes)
		}
	}
}

// Two references to a file that is being replaced must not mean two contents.
func TestAFileIsReadOnceForAConfiguration(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	put(t, path, "one")
	sources := &sources{read: map[string]source{}}
	for _, next := range []string{"two", "three"} {
		content, err := sources.readFile(path)
		if err != nil || string(content) != "one" {
			t.Errorf("%q, %v", content, err)
		}
		put(t, path, next)
	}
	if len(sources.files) != 1 {
		t.Errorf("it counts as %d files", len(sources.files))
	}
}

// Opening a pipe that nobody writes to waits for ever, and with it would every
// reload to come.
func TestAPipeInThePlaceOfAFileIsRefusedAtAReload(t *testing.T) {
	t.Parallel()
	path := folder(t, "one")
	loaded, err := Load(path, fakeRegistry(t))
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(filepath.Dir(path), "secret")
	if err := errors.Join(os.Remove(secret), syscall.Mkfifo(secret, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := changed(loaded.Files); !slices.Equal(got, []string{"secret"}) {
		t.Errorf("%v changed, want the secret", got)
	}
	_, err = Reload(path, fakeRegistry(t))
	var mistakes *InvalidError
	if !errors.As(err, &mistakes) || !strings.Contains(err.Error(), errIsPipe.Error()) {
		t.Fatalf("%v, want a refusal of the pipe", err)
	}
	if got := changed(mistakes.Files); got != nil {
		t.Errorf("%v changed since: it would be refused again and again", got)
	}
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	put(t, secret, "two")
	if got := changed(mistakes.Files); !slices.Equal(got, []string{"secret"}) {
		t.Errorf("%v changed, want the secret, which is a file again", got)
	}
}

func TestAFileThatNeverEndsIsNotReadForEver(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "drainer.yaml")
	put(t, path, "version: 1\ndatabase: {url: \"${file:/dev/zero}\"}\n")
	if _, err := Load(path, fakeRegistry(t)); err == nil || !strings.Contains(err.Error(), errHuge.Error()) {
		t.Errorf("%v", err)
	}
}

// A pipe gives its content once, and reading it may wait for ever.
func TestAPipeIsNeverReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { _ = os.WriteFile(path, []byte("once"), 0o600) }()
	sources := &sources{read: map[string]source{}}
	if content, err := sources.readFile(path); err != nil || string(content) != "once" {
		t.Fatalf("%q, %v", content, err)
	}
	if file := sources.files[0]; !file.OnlyOnce() || file.Current() != file.Version {
		t.Errorf("a pipe is read again: %+v", file)
	}
}
