package helm_test

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
)

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(programFolder)
	os.Exit(code)
}

var programFolder string // where the program was built, if it was

var program = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "drainer-chart-")
	if err != nil {
		return "", err
	}
	programFolder = folder
	path := filepath.Join(folder, "drainer")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "./cmd/drainer")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return path, nil
})

// The daemon's own loader reads the file that the daemon finds in its pod.
func TestTheConfigInTheConfigMapIsValid(t *testing.T) {
	t.Parallel()
	for name, v := range scenarios(t) {
		if v.merged()["existingConfigMap"] != nil {
			continue
		}
		if output, err := validate(t, configOf(t, v), v); err != nil {
			t.Errorf("%s: %v\n%s", name, err, output)
		}
	}
}

func TestTheCheckOfTheConfigFindsMistakes(t *testing.T) {
	t.Parallel()
	v := scenario(t, "minimal").with(t, "config: {providers: {billing: {concurency: 3}}}")
	if output, err := validate(t, configOf(t, v), v); err == nil || !strings.Contains(string(output), "concurency") {
		t.Errorf("a misspelt field passes: %v\n%s", err, output)
	}
}

func configOf(t *testing.T, v values) map[string]string {
	t.Helper()
	for _, config := range findAll[core.ConfigMap](t, v) {
		if config.Data["drainer.yaml"] != "" {
			return config.Data
		}
	}
	t.Fatal("no ConfigMap holds drainer.yaml")
	return nil
}

// validate runs the check that precedes an installation.
func validate(t *testing.T, config map[string]string, v values) ([]byte, error) {
	t.Helper()
	return inPod(t, hook(t, v, "validation").Spec.Template.Spec, config).CombinedOutput()
}

// inPod returns a pod's command line with its files and variables. A folder takes the place of its root.
func inPod(t *testing.T, pod core.PodSpec, config map[string]string) *exec.Cmd {
	t.Helper()
	drainer, err := program()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	below := strings.NewReplacer("${file:/", "${file:"+root+"/", "=/etc/", "="+root+"/etc/", "=/run/", "="+root+"/run/").Replace
	for name, content := range config {
		write(t, filepath.Join(root, "etc/drainer", name), below(content))
	}
	url := "postgres://app@127.0.0.1:1/app?connect_timeout=1"
	if slices.ContainsFunc(pod.Volumes, func(volume core.Volume) bool { return volume.Name == "database-ca" }) {
		url += below("&sslmode=verify-full&sslrootcert=/run/database-ca/ca.crt")
	}
	certificate, key := clientCertificate(t)
	contents := map[string]string{
		"url": url, "tokens": "alice operator " + strings.Repeat("t", 20), ".crt": certificate, ".key": key,
	}
	container := pod.Containers[0]
	for _, volume := range pod.Volumes {
		var items []core.KeyToPath
		if volume.Secret != nil {
			items = volume.Secret.Items
		} else if volume.ConfigMap != nil {
			items = volume.ConfigMap.Items
		} else if volume.Projected != nil {
			for _, source := range volume.Projected.Sources {
				items = append(items, source.Secret.Items...)
			}
		}
		for _, item := range items {
			at := slices.IndexFunc(container.VolumeMounts, func(mount core.VolumeMount) bool { return mount.Name == volume.Name })
			if at < 0 {
				continue // another container mounts it
			}
			write(t, filepath.Join(root, container.VolumeMounts[at].MountPath, item.Path), cmp.Or(contents[item.Path], contents[filepath.Ext(item.Path)], "secret"))
		}
	}
	command := exec.CommandContext(t.Context(), drainer)
	for _, arg := range container.Args {
		if strings.HasPrefix(arg, "/") {
			arg = root + arg
		}
		command.Args = append(command.Args, below(arg))
	}
	for _, variable := range container.Env {
		command.Env = append(command.Env, variable.Name+"="+cmp.Or(below(variable.Value), "secret"))
	}
	return command
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func clientCertificate(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
}

// The chart assumes these defaults if the config does not set them.
func TestTheChartKnowsTheProgramsDefaults(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../drainer.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Worker struct {
				Properties struct {
					ShutdownTimeout struct{ Default string } `json:"shutdown_timeout"`
				}
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	if got := schema.Properties.Worker.Properties.ShutdownTimeout.Default; got != "25s" {
		t.Errorf("shutdown_timeout is %q by default; change it in templates/_grace.tpl", got)
	}
}

// The daemon reads its file again by itself. Replacing the pods as well would only interrupt their work.
func TestOnlyWhatNeedsANewProcessReplacesThePods(t *testing.T) {
	t.Parallel()
	checksum := func(values string) string {
		return daemons(t, scenario(t, "minimal").with(t, values)).Spec.Template.Annotations["checksum/config"]
	}
	before := checksum("{}")
	page, err := os.ReadFile("../../docs/reload.md")
	if err != nil {
		t.Fatal(err)
	}
	needARestart := regexp.MustCompile("(?s)Changes of (`[^.]*)need a restart").FindString(string(page))
	if replaces := checksum("configFiles: {a.json: '{}'}") != before; replaces || needARestart == "" {
		t.Errorf("a file replaces the pods: %t; docs/reload.md says %q", replaces, needARestart)
	}
	values := map[string]string{ // blocks in which the chart would refuse another value
		"database": "{url: '${env:OTHER_URL}'}", "worker": "{lease: 30s}", "server": "{debug: 'localhost:6060'}", "providers": "{billing: {concurrency: 3}}", "version": "2",
	}
	for block := range blocksOfTheConfig(t) {
		replaces := checksum("config: {"+block+": "+cmp.Or(values[block], "{a: 1}")+"}") != before
		if want := strings.Contains(needARestart, "`"+block+"`"); replaces != want {
			t.Errorf("a change of the block %s replaces the pods: %t, want %t", block, replaces, want)
		}
	}
	asked := checksum("restartOnConfigChange: true")
	for _, change := range []string{"config: {providers: {billing: {concurrency: 3}}}", "configFiles: {a.json: '{}'}"} {
		if checksum("restartOnConfigChange: true\n"+change) == asked {
			t.Errorf("%s: does not replace the pods, though that was asked for", change)
		}
	}
}

func blocksOfTheConfig(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile("../../drainer.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct{ Properties map[string]any }
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	return schema.Properties
}

func TestTheServersOtherSettingsArrive(t *testing.T) {
	t.Parallel()
	v := scenario(t, "minimal").with(t, "config: {server: {debug: 'localhost:6060'}}")
	if text := configOf(t, v)["drainer.yaml"]; !strings.Contains(text, "debug: localhost:6060") || !strings.Contains(text, "listen: :9464") {
		t.Errorf("the ConfigMap holds\n%s", text)
	}
	if output, err := validate(t, configOf(t, v), v); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestAConfigGivenAsTextArrivesAsItIs(t *testing.T) {
	t.Parallel()
	v := scenario(t, "text")
	if got, want := strings.TrimSpace(configOf(t, v)["drainer.yaml"]), strings.TrimSpace(v.merged()["configText"].(string)); got != want {
		t.Errorf("the ConfigMap holds\n%s\nwant\n%s", got, want)
	}
}

func TestAConfigMapOfOnesOwnIsMountedAndNoneIsMade(t *testing.T) {
	t.Parallel()
	v := scenario(t, "existing-config")
	if made := findAll[core.ConfigMap](t, v); len(made) > 0 {
		t.Errorf("the chart makes %s", made[0].Name)
	}
	for _, volume := range daemons(t, v).Spec.Template.Spec.Volumes {
		if volume.Name == "config" && volume.ConfigMap.Name == "drainer-config" {
			return
		}
	}
	t.Error("it is not mounted")
}
