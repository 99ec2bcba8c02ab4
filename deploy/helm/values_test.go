package helm_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	core "k8s.io/api/core/v1"
)

func TestTheGracePeriodExceedsTheShutdownTimeout(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]int64{
		"{}": 25 + 15,
		"config: {worker: {shutdown_timeout: 40s}}":                                                     40 + 15,
		"config: {worker: {shutdown_timeout: 1m30s}}":                                                   90 + 15,
		"config: {worker: {shutdown_timeout: 1.5s}}":                                                    2 + 15,
		"config: {worker: {shutdown_timeout: 500ms}}":                                                   1 + 15,
		"config: {worker: {shutdown_timeout: 1h}}":                                                      3600 + 15,
		"config: {providers: null}\nconfigText: '{worker: {shutdown_timeout: 7s}, providers: {a: {}}}'": 7 + 15,
		"config: {worker: {shutdown_timeout: 60s}}\nterminationGracePeriodSeconds: 65":                  65,
	} {
		pod := daemons(t, scenario(t, "minimal").with(t, values)).Spec.Template.Spec
		if got := *pod.TerminationGracePeriodSeconds; got != want {
			t.Errorf("%s: %d s, want %d", values, got, want)
		}
	}
}

func TestWhatCannotWorkIsNotRendered(t *testing.T) {
	t.Parallel()
	for values, why := range map[string]string{
		"terminationGracePeriodSeconds: 25":                                                 "at least 5 s more than config.worker.shutdown_timeout",
		"terminationGracePeriodSeconds: 35\nconfig: {worker: {shutdown_timeout: 2m}}":       "which is 120 s",
		"config: {worker: {shutdown_timeout: soon}}":                                        "is no duration",
		"config: {worker: {shutdown_timeout: 30}}":                                          "is no duration",
		"existingConfigMap: mine":                                                           "terminationGracePeriodSeconds is missing",
		"config: {providers: null}":                                                         "config.providers is empty",
		"config: {database: {url: 'postgres://user:password@host/app'}}":                    "config.database.url is not for values",
		"config: {server: {listen: ':1'}}":                                                  "config.server.listen has to be",
		"configText: 'version: 1'":                                                          "both given",
		"config: {providers: null}\nconfigText: 'version: ['":                               "is no YAML",
		"config: {providers: null}\nconfigText: 'providers: {a: {}}'\nport: 9000":           "config.server.listen has to be",
		"config: {providers: null}\nconfigText: 'version: 1'":                               "config.providers is empty",
		"database: {ca: {secret: a, configMap: b}}":                                         "keep one",
		"image: {repository: ''}":                                                           "image.repository is missing",
		"database: {secret: ''}":                                                            "database.secret is missing",
		"migrations: {secret: ''}":                                                          "migrations.secret is missing",
		"migrations: {secret: '', mode: init}":                                              "migrations.secret is missing",
		"autoscaling: {enabled: true}":                                                      "autoscaling.prometheus.serverAddress is missing",
		"autoscaling: {enabled: true, minReplicas: 5, maxReplicas: 4, trigger: postgresql}": "minReplicas is more than",
		"database: {ca: {secret: a}}\nautoscaling: {enabled: true, trigger: postgresql}":    "autoscaling.postgresql.secret is missing",
		"database: {ca: {configMap: a}}\nautoscaling: {enabled: true, trigger: postgresql}": "autoscaling.postgresql.secret is missing",

		// The schema itself refuses these.
		"autoscaling: {minReplicas: 0}":                                  "minimum",
		"replicas: 0":                                                    "minimum",
		"replicaCount: 3":                                                "replicaCount",
		"image: {repo: x}":                                               "repo",
		"podMonitor: {enable: true}":                                     "enable",
		"migrations: {mode: job}":                                        "mode",
		"secretEnv: {TOKEN: plain-text}":                                 "TOKEN",
		"secretEnv: {TOKEN: {value: plain-text}}":                        "value",
		"secretEnv: {DATABASE_URL: {secret: a, key: b}}":                 "DATABASE_URL",
		"configFiles: {drainer.yaml: 'version: 1'}":                      "drainer.yaml",
		"sidecars: [{name: a}]":                                          "image",
		"sidecars: [{name: a, image: b, restartPolicy: Never}]":          "restartPolicy",
		"image: {digest: latest}":                                        "digest",
		"port: '9464'":                                                   "port",
		"networkPolicy: {egress: {rules: [443]}}":                        "rules",
		"extraEnv: [{name: DATABASE_URL, value: a}]":                     "extraEnv",
		"topologySpread: {whenUnsatisfiable: Never}":                     "whenUnsatisfiable",
		"autoscaling: {prometheus: {serverAddress: prometheus:9090}}":    "serverAddress",
		"secretFiles: [{secret: a, items: {key: file}, optional: true}]": "optional",
	} {
		if got := refusal(t, scenario(t, "minimal").with(t, values)); !strings.Contains(got, why) {
			t.Errorf("%s: refused with %q, want a word about %q", values, got, why)
		}
	}
}

func TestDashboardsAndRulesThatAreNotThereAreNotPromised(t *testing.T) {
	t.Parallel()
	for values, why := range map[string]string{
		"dashboards: {enabled: true}":     "without dashboards",
		"prometheusRule: {enabled: true}": "without rules",
	} {
		chart := loadChart(t)
		chart.Files = nil
		if _, err := render(t, chart, scenario(t, "minimal").with(t, values)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// The schema refuses a key of values.yaml that it lacks. This test checks the other direction, and that values.yaml
// explains each value.
func TestEveryValueIsInTheValuesFileAndExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(folder + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema node
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	defaults := readValues(t, folder+"/values.yaml")
	compare(t, "", schema, defaults)

	file, err := os.ReadFile(folder + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile(`\n\n`).Split(string(file), -1)
	for _, block := range blocks[1:] {
		if !strings.Contains(block, "#") && !strings.HasPrefix(block, "resources:") {
			t.Errorf("nothing explains\n%s", block)
		}
	}
}

type node struct {
	Properties           map[string]node `json:"properties"`
	AdditionalProperties any             `json:"additionalProperties"`
}

func compare(t *testing.T, path string, schema node, defaults map[string]any) {
	t.Helper()
	for name, property := range schema.Properties {
		value, there := defaults[name]
		if !there && path+name != "global" {
			t.Errorf("values.yaml lacks %s%s", path, name)
		}
		if below, isBlock := value.(map[string]any); isBlock && len(property.Properties) > 0 {
			if property.AdditionalProperties != false {
				t.Errorf("the schema takes any field in %s%s", path, name)
			}
			compare(t, path+name+".", property, below)
		}
	}
}

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

// filesIn returns only the files whose content is meant. The tests of the rules, for one, are beside the rules.
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

// People copy the examples of the documentation.
func TestTheValuesInTheDocumentationAreRendered(t *testing.T) {
	t.Parallel()
	blocks := 0
	for _, page := range []string{"../../docs/kubernetes.md", folder + "/README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile("(?s)```yaml\n(.*?)\n *```").FindAllStringSubmatch(string(text), -1) {
			blocks++
			example := match[1]
			if inList := strings.HasPrefix(example, "   "); inList {
				example = strings.ReplaceAll("\n"+example, "\n   ", "\n")
			}
			v := scenario(t, "minimal").with(t, example)
			for _, manifest := range manifests(t, v) {
				if _, err := decode(manifest); err != nil {
					t.Errorf("%s: %v\n%s", page, err, example)
				}
			}
			if output, err := validate(t, configOf(t, v), v); err != nil {
				t.Errorf("%s: %v\n%s", page, err, output)
			}
		}
	}
	if blocks < 4 {
		t.Errorf("found only %d examples", blocks)
	}
}

func TestHelmFindsNothingToComplainAbout(t *testing.T) {
	t.Parallel()
	all := scenarios(t)
	delete(all, "everything") // it needs rules and dashboards, which are copied into the chart later
	for name, v := range all {
		for _, message := range lint.All(folder, v.merged(), namespace, true).Messages {
			if message.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, message)
			}
		}
	}
}
