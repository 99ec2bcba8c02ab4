package helm_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Helm reads nothing outside of a chart, so the chart holds copies.
func TestTheChartsRulesAndDashboardsAreTheProjects(t *testing.T) {
	t.Parallel()
	dashboards := filesIn(t, "../../dashboards/*.json", regexp.MustCompile(`^\s*\{`))
	rules := filesIn(t, "../../dashboards/*.yaml", regexp.MustCompile(`(?m)^groups:`))
	for folder, want := range map[string]map[string][]byte{
		"drainer/files/dashboards/*.json": dashboards,
		"drainer/files/rules/*.yaml":      rules,
	} {
		got := filesIn(t, folder, regexp.MustCompile(""))
		for name, content := range want {
			if !bytes.Equal(got[name], content) {
				t.Errorf("%s in the chart is not dashboards/%s; run `make chart-files`", name, name)
			}
		}
		for name := range got {
			if _, there := want[name]; !there {
				t.Errorf("%s in the chart is none of dashboards/; run `make chart-files`", name)
			}
		}
	}
}

// filesIn are those that are meant: beside rules lie their tests, for one.
func filesIn(t *testing.T, pattern string, meant *regexp.Regexp) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if meant.Match(content) {
			found[filepath.Base(path)] = content
		}
	}
	return found
}
