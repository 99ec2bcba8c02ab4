package integration_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/program"
)

// prometheusProgram is Debian's, or another one on the PATH.
type prometheusProgram string

func findPrometheus(t *testing.T) prometheusProgram {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no prometheus here; install Debian's prometheus to see what the dashboards show")
	}
	return prometheusProgram(path)
}

// prometheusServer scrapes every second.
type prometheusServer struct{ url string }

func (program prometheusProgram) start(t *testing.T, replicas []*program.Daemon) *prometheusServer {
	t.Helper()
	rules, err := filepath.Abs("../dashboards/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, replica := range replicas {
		targets = append(targets, strings.TrimPrefix(replica.Base, "http://"))
	}
	folder := t.TempDir()
	config := filepath.Join(folder, "prometheus.yaml")
	text := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - {job_name: drainer, static_configs: [{targets: [%s], labels: {namespace: test}}]}
`, rules, `"`+strings.Join(targets, `", "`)+`"`)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	var log strings.Builder
	command := exec.Command(string(program), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(folder, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	server := &prometheusServer{url: "http://" + address}
	drainertest.Eventually(t, "Prometheus is ready", func() bool {
		response, err := http.Get(server.url + "/-/ready")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return server
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// await asks until there is an answer, and returns its number of series.
func (p *prometheusServer) await(t *testing.T, what, query string) (series int) {
	t.Helper()
	drainertest.Eventually(t, what, func() bool {
		var err error
		if series, err = p.ask(query); err != nil {
			t.Fatalf("%s: %v\n%s", what, err, query)
		}
		return series > 0
	})
	return series
}

// ask counts the series that are a number now.
func (p *prometheusServer) ask(query string) (series int, err error) {
	response, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	for _, one := range answer.Data.Result {
		if one.Value[1] != "NaN" {
			series++
		}
	}
	return series, nil
}
