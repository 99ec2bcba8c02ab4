// Package docblock reads commands from the documentation, so that tests run exactly these commands.
package docblock

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
)

// First returns the first block of a language on a page. The page's path is relative to the module's folder.
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
