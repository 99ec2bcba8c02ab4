package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEachBlockThatNoTestRanIsNamedByItsFunction(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(name string, lines ...string) {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a/a.go", "package a", "", "func f() {", "}", "", "func (b *B) g() {", "}")
	write("profile",
		"mode: atomic",
		module()+"a/a.go:3.10,4.2 1 0",
		module()+"a/a.go:6.17,7.2 1 0",
		module()+"b/b.go:1.1,2.2 1 7",
		"mode: atomic", // the profile of another program
		module()+"a/a.go:3.10,4.2 1 2",
	)
	var said strings.Builder
	if err := report(&said, "profile"); err != nil {
		t.Fatal(err)
	}
	const want = "    1 of     2  a\n    1 of     1  b\na/a.go:6 (*B).g\n"
	if said.String() != want {
		t.Errorf("it says\n%swant\n%s", said.String(), want)
	}
}

func TestWhatIsNoProfileIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := readProfile(strings.NewReader("mode: set\nhello\n"), ""); err == nil || !strings.Contains(err.Error(), `"hello"`) {
		t.Errorf("it says %v", err)
	}
}
