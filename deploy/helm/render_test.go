// Package helm_test renders the chart. It compares the manifests with the types of Kubernetes, field by field, and
// with the promises of the chart.
package helm_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

const (
	folder    = "drainer"
	release   = "shop"
	namespace = "agents"
)

// values are layers, of which the last one wins.
type values []map[string]any

// scenarios returns the values that the chart has for its tests.
func scenarios(t *testing.T) map[string]values {
	t.Helper()
	files, err := filepath.Glob(folder + "/ci/*-values.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("found %v: %v", files, err)
	}
	all := map[string]values{}
	for _, file := range files {
		all[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = values{readValues(t, file)}
	}
	return all
}

func scenario(t *testing.T, name string) values {
	t.Helper()
	return values{readValues(t, folder+"/ci/"+name+"-values.yaml")}
}

func readValues(t *testing.T, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return parseValues(t, string(text))
}

func parseValues(t *testing.T, text string) map[string]any {
	t.Helper()
	parsed, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return parsed
}

// with adds values over the others, as a second --values does.
func (v values) with(t *testing.T, text string) values {
	t.Helper()
	return append(slices.Clone(v), parseValues(t, text))
}

func (v values) merged() map[string]any {
	merged := map[string]any{}
	for _, layer := range v {
		merged = chartutil.MergeTables(chartutil.Values(layer), merged)
	}
	return merged
}

// loadChart loads the chart with rules and a dashboard in it, whether or not those of the project were copied.
func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	loaded, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	loaded.Files = append(loaded.Files,
		&chart.File{Name: "files/rules/test.yaml", Data: []byte("groups: [{name: test, rules: [{record: one, expr: 'sum(up) # {{ $value }}'}]}]")},
		&chart.File{Name: "files/dashboards/test.json", Data: []byte(`{"title": "{{ test }}"}`)},
	)
	return loaded
}

func render(t *testing.T, chart *chart.Chart, v values) (map[string]string, error) {
	t.Helper()
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true}
	prepared, err := chartutil.ToRenderValues(chart, v.merged(), options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, prepared)
}

// manifests returns all manifests that Helm would pass to Kubernetes.
func manifests(t *testing.T, v values) []string {
	t.Helper()
	rendered, err := render(t, loadChart(t), v)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range slices.Sorted(maps.Keys(rendered)) {
		if strings.HasSuffix(file, ".txt") {
			continue
		}
		for _, manifest := range releaseutil.SplitManifests(rendered[file]) {
			all = append(all, manifest)
		}
	}
	return all
}

// refusal returns the reason why values are not rendered, or an empty text.
func refusal(t *testing.T, v values) string {
	t.Helper()
	_, err := render(t, loadChart(t), v)
	if err == nil {
		return ""
	}
	return err.Error()
}

// described has the fields that identify a manifest.
type described struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name        string            `json:"name"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
}

func describe(t *testing.T, manifest string) (d described) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(manifest), &d); err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	return d
}

func (d described) String() string { return fmt.Sprintf("%s %s", d.Kind, d.Metadata.Name) }
