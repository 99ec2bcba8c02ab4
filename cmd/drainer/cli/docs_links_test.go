package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestEveryLinkOfTheDocumentationLeadsSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	for _, page := range prose(t) {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(read(t, page), "code"), -1) {
			target, section, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s is not there", page, found[1])
			} else if section != "" && strings.HasSuffix(file, ".md") && !sections(read(t, file))[section] {
				t.Errorf("%s: %s has no such section", page, found[1])
			}
		}
	}
}

func TestEveryTestThatTheDocumentationNamesExists(t *testing.T) {
	t.Parallel()
	written := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, found := range declaration.FindAllStringSubmatch(read(t, path), -1) {
			written[found[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w+`)
	for _, page := range []string{"docs/guarantees.md", "docs/operations.md", "docs/security.md", "CONTRIBUTING.md"} {
		for _, name := range named.FindAllString(read(t, "../../../"+page), -1) {
			if !written[name] {
				t.Errorf("%s names %s, which no file declares", page, name)
			}
		}
	}
}

// prose are all pages for people, by their paths from here.
func prose(t *testing.T) (pages []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adapters/*.md"} {
		found, err := filepath.Glob("../../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 20 {
		t.Fatalf("found only %v", pages)
	}
	return pages
}

// sections are the anchors that a page's headings have at GitHub.
func sections(page string) map[string]bool {
	anchors := map[string]bool{}
	dropped := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		anchors[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-")] = true
	}
	return anchors
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
