// Package docblock reads the commands in the documentation, so that tests run
// exactly those.
package docblock

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
)

// First is the first block of that language on a page, named from the module's
// folder.
func First(t testing.TB, page, language string) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here), "..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatalf("%s has no %s block", page, language)
	}
	return string(block[1])
}
