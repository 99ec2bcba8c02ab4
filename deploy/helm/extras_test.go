package helm_test

import (
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	core "k8s.io/api/core/v1"
)

// A parent chart turns its dependencies on and off, and gives each its values.
func TestItIsAChartThatOthersDependOn(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]bool{"{}": true, "drainer: {enabled: true}": true, "drainer: {enabled: false}": false} {
		parent := &chart.Chart{Metadata: &chart.Metadata{
			APIVersion: "v2", Name: "shop", Version: "1.0.0",
			Dependencies: []*chart.Dependency{{Name: "drainer", Version: "*", Condition: "drainer.enabled"}},
		}}
		parent.AddDependency(loadChart(t))
		given := map[string]any{"drainer": scenario(t, "minimal").merged(), "global": map[string]any{"region": "north"}}
		given = chartutil.MergeTables(parseValues(t, asked), given)
		if err := chartutil.ProcessDependenciesWithMerge(parent, given); err != nil {
			t.Fatal(err)
		}
		prepared, err := chartutil.ToRenderValues(parent, given, chartutil.ReleaseOptions{Name: release, Namespace: namespace}, chartutil.DefaultCapabilities)
		if err != nil {
			t.Fatal(err)
		}
		rendered, err := engine.Render(parent, prepared)
		if err != nil {
			t.Fatal(err)
		}
		manifest, there := rendered["shop/charts/drainer/templates/deployment.yaml"]
		if there != want {
			t.Errorf("%s: installed %t, want %t", asked, there, want)
		}
		if there && !strings.Contains(manifest, "name: shop-drainer\n") {
			t.Errorf("%s: its name is in\n%s", asked, manifest)
		}
	}
}

func TestWhatTheChartDoesNotKnowCanBeAdded(t *testing.T) {
	t.Parallel()
	v := scenario(t, "everything")
	daemon := daemonOf(t, v)
	if !slices.ContainsFunc(daemon.Env, func(variable core.EnvVar) bool { return variable.Name == "GOMAXPROCS" && variable.Value == "2" }) {
		t.Errorf("the variables are %v", daemon.Env)
	}
	if daemon.Lifecycle == nil || daemon.Lifecycle.PreStop.Sleep.Seconds != 3 {
		t.Errorf("the lifecycle is %v", daemon.Lifecycle)
	}
	if kept := daemons(t, v).Spec.RevisionHistoryLimit; kept == nil || *kept != 5 {
		t.Errorf("%v old ReplicaSets are kept", kept)
	}
	found := map[string]*core.ConfigMap{}
	for _, config := range findAll[core.ConfigMap](t, v) {
		found[config.Name] = config
	}
	if ours := found["shop-ours"]; ours == nil || ours.Data["drained-by"] != "shop-outbox" {
		t.Errorf("the object became %v", ours)
	}
	if ours := found["ours-too"]; ours == nil || ours.Labels["app.kubernetes.io/instance"] != release {
		t.Errorf("the text became %v", ours)
	}
}
