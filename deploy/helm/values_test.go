package helm_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
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
		"image: {repository: ''}":                                                           "image.repository is missing",
		"database: {secret: ''}":                                                            "database.secret is missing",
		"autoscaling: {enabled: true}":                                                      "autoscaling.prometheus.serverAddress is missing",
		"autoscaling: {enabled: true, minReplicas: 5, maxReplicas: 4, trigger: postgresql}": "minReplicas is more than",

		// The schema's own.
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

// A key of values.yaml that the schema lacks is refused by it; this is the
// other direction, and that each is explained where people look.
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
