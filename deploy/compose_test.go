package deploy_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

const composeFile = "compose.yaml"

func TestTheComposeFileIsWhatComposeReads(t *testing.T) {
	t.Parallel()
	project := loadCompose(t, readFile(t, composeFile))
	for _, name := range []string{"postgres", "migrate", "provider", "drainer", "console", "prometheus", "grafana"} {
		if _, err := project.GetService(name); err != nil {
			t.Error(err)
		}
	}
	for _, service := range project.Services {
		for _, volume := range service.Volumes {
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("%s mounts what is not there: %v", service.Name, err)
			}
			if !volume.ReadOnly {
				t.Errorf("%s may change %s", service.Name, volume.Source)
			}
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s can be reached from everywhere, at port %s", service.Name, port.Published)
			}
		}
	}
	drainer := project.Services["drainer"]
	for name, login := range map[string]string{"drainer": "drainer", "migrate": "outbox_owner", "console": "console"} {
		if url := project.Services[name].Environment["DATABASE_URL"]; url == nil || !strings.HasPrefix(*url, "postgres://"+login+":") {
			t.Errorf("%s does not log in as %s, and may do what it need not", name, login)
		}
	}
	if url := project.Services["console"].Environment["VIEWER_DATABASE_URL"]; url == nil || !strings.HasPrefix(*url, "postgres://viewer:") {
		t.Error("the console reads with a login that may change something")
	}
	if drainer.GetScale() != 2 || !drainer.ReadOnly || time.Duration(*drainer.StopGracePeriod) <= 25*time.Second {
		t.Errorf("the drainers: %d of them, read-only %t, stopped after %s", drainer.GetScale(), drainer.ReadOnly, drainer.StopGracePeriod)
	}
}

// The console demands the same form: a name, a role and a token of at least 20 characters.
func TestTheComposeFilesConsoleAsksForAToken(t *testing.T) {
	t.Parallel()
	console := loadCompose(t, readFile(t, composeFile)).Services["console"]
	at := slices.Index(console.Command, "--tokens")
	if at < 0 {
		t.Fatalf("whom does it serve? %v", console.Command)
	}
	file := console.Command[at+1]
	for _, volume := range console.Volumes {
		if inside, found := strings.CutPrefix(file, volume.Target); found {
			text := readFile(t, filepath.Join(volume.Source, inside))
			if !regexp.MustCompile(`(?m)^\S+ operator \S{20,}$`).Match(text) {
				t.Errorf("%s has no token", file)
			}
			return
		}
	}
	t.Errorf("nothing is mounted at %s", file)
}

func TestAMisspeltFieldOfTheComposeFileIsFound(t *testing.T) {
	t.Parallel()
	text := bytes.Replace(readFile(t, composeFile), []byte("stop_grace_period"), []byte("stop_grace"), 1)
	if _, err := parseCompose(text); err == nil || !strings.Contains(err.Error(), "stop_grace") {
		t.Errorf("it is read as if nothing were wrong: %v", err)
	}
}

func loadCompose(t *testing.T, text []byte) *types.Project {
	t.Helper()
	project, err := parseCompose(text)
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func parseCompose(text []byte) (*types.Project, error) {
	folder, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	details := types.ConfigDetails{
		WorkingDir:  folder,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(folder, composeFile), Content: text}},
	}
	return loader.LoadWithContext(context.Background(), details, func(o *loader.Options) { o.SetProjectName("drainer", true) })
}

// The test reads only the parts of these files that matter here. Another field is a mistake.
func TestPrometheusScrapesTheDrainersAndGrafanaAsksPrometheus(t *testing.T) {
	t.Parallel()
	var prometheus struct {
		Global        map[string]string `json:"global"`
		RuleFiles     []string          `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName string `json:"job_name"`
			DNS     []struct {
				Names           []string `json:"names"`
				Type            string   `json:"type"`
				Port            int      `json:"port"`
				RefreshInterval string   `json:"refresh_interval"`
			} `json:"dns_sd_configs"`
		} `json:"scrape_configs"`
	}
	readStrictly(t, "compose/prometheus/prometheus.yml", &prometheus)
	if target := prometheus.ScrapeConfigs[0].DNS[0]; target.Names[0] != "drainer" || target.Port != 9464 {
		t.Errorf("it scrapes %+v", target)
	}

	var datasources struct {
		APIVersion  int `json:"apiVersion"`
		Datasources []struct {
			Name, UID, Type, Access, URL string
			IsDefault                    bool `json:"isDefault"`
		} `json:"datasources"`
	}
	readStrictly(t, "compose/grafana/datasources/prometheus.yaml", &datasources)
	if source := datasources.Datasources[0]; source.URL != "http://prometheus:9090" || !source.IsDefault {
		t.Errorf("Grafana asks %+v", source)
	}

	var dashboards struct {
		APIVersion int `json:"apiVersion"`
		Providers  []struct {
			Name, Type string
			Options    struct{ Path string }
		} `json:"providers"`
	}
	readStrictly(t, "compose/grafana/dashboards/drainer.yaml", &dashboards)
	mounts := map[string]bool{}
	for _, service := range loadCompose(t, readFile(t, composeFile)).Services {
		for _, volume := range service.Volumes {
			mounts[volume.Target] = true
		}
	}
	for _, folder := range []string{dashboards.Providers[0].Options.Path, filepath.Dir(prometheus.RuleFiles[0])} {
		if !mounts[folder] {
			t.Errorf("nothing is mounted at %s", folder)
		}
	}
}

func readStrictly(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(readFile(t, path), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// The test starts the drainer and the services that it needs. The images of Prometheus and Grafana may not be on
// this machine.
func TestWhatTheComposeFileStartsDrains(t *testing.T) {
	t.Parallel()
	requireDocker(t)
	program := composeProgram(t)
	project := "drainertest" + strings.ToLower(rand.Text())
	env := append(os.Environ(), "DRAINER_IMAGE="+buildImage(t), "POSTGRES_IMAGE="+postgresImage(t))
	compose := func(args ...string) ([]byte, error) {
		command := exec.Command(program[0], append(append(program[1:], "--file", composeFile, "--project-name", project), args...)...)
		command.Env = env
		return command.CombinedOutput()
	}
	t.Cleanup(func() {
		if logs, err := compose("logs", "--tail", "30"); t.Failed() {
			t.Logf("%v\n%s", err, logs)
		}
		if output, err := compose("down", "--volumes"); err != nil {
			t.Errorf("down: %v\n%s", err, output)
		}
	})

	if output, err := compose("up", "--detach", "--scale", "drainer=2", "drainer"); err != nil {
		t.Fatalf("up: %v\n%s", err, output)
	}
	const enqueue = `SELECT count(*) FROM generate_series(1, 100) AS n,
		outbox.enqueue('run-' || n, 'step-1', 'payments/charge', 'invoice-' || n, '{"amount": 1200}')`
	if output, err := compose("exec", "-T", "postgres", "psql", "--username", "postgres", "--command", enqueue); err != nil {
		t.Fatalf("psql: %v\n%s", err, output)
	}
	var answer []byte
	eventually(t, "100 intents are completed, by two workers", func() bool {
		var err error
		answer, err = compose("exec", "-T", "postgres", "psql", "--username", "postgres", "--tuples-only", "--no-align", "--command",
			`SELECT count(*) FROM outbox.status WHERE status = 'completed' UNION ALL SELECT count(*) FROM outbox.worker`)
		return err == nil && strings.Contains(string(answer), "100\n2\n")
	})
}

func composeProgram(t *testing.T) []string {
	t.Helper()
	for _, program := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.Command(program[0], append(program[1:], "version")...).Run() == nil {
			return program
		}
	}
	t.Skip("Docker's compose is not here, so the file is only read")
	return nil
}
