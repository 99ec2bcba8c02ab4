package dashboards_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are the labels of what the program registers, by name.
type metrics map[string][]string

// registered reads the documentation, which a test of the program keeps to what
// it registers, and asks for the runtime's metrics.
func registered(t *testing.T) metrics {
	t.Helper()
	found := metrics{"up": nil, "ALERTS": {"alertname", "alertstate"}}
	row := regexp.MustCompile("(?m)^\\| `(drainer_\\w+)` \\| \\w+ \\| ([^|]*) \\|")
	for _, match := range row.FindAllStringSubmatch(read(t, "../docs/metrics.md"), -1) {
		found[match[1]] = strings.FieldsFunc(match[2], func(r rune) bool { return r == ',' || r == ' ' })
	}
	if len(found) < 30 {
		t.Fatalf("docs/metrics.md lists only %v", found)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		found[family.GetName()] = nil
	}
	return found
}

var (
	anyMetric  = regexp.MustCompile(`\b(?:drainer|go|process)_\w+|\b(?:up|ALERTS)\b`)
	selector   = regexp.MustCompile(`(\w+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)\s*[=!]`)
	quoted     = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	fromScrape = []string{"namespace", "job", "instance", "le"}
)

// check refuses a query that asks for a metric, or a label of one, that is not there.
func (m metrics) check(t *testing.T, where, query string) {
	t.Helper()
	query = quoted.ReplaceAllString(query, `""`)
	names := anyMetric.FindAllString(query, -1)
	if len(names) == 0 {
		t.Errorf("%s: %q asks for nothing", where, query)
	}
	for _, name := range names {
		if _, is := m.labels(name); !is {
			t.Errorf("%s: %s is not registered", where, name)
		}
	}
	for _, selected := range selector.FindAllStringSubmatch(query, -1) {
		labels, _ := m.labels(selected[1])
		for _, match := range matcher.FindAllStringSubmatch(selected[2], -1) {
			if !slices.Contains(labels, match[1]) && !slices.Contains(fromScrape, match[1]) {
				t.Errorf("%s: %s has no label %s", where, selected[1], match[1])
			}
		}
	}
}

func (m metrics) labels(name string) (labels []string, is bool) {
	if labels, is = m[name]; is {
		return labels, true
	}
	labels, is = m[strings.TrimSuffix(name, "_bucket")]
	return labels, is
}
