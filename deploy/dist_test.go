package deploy_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"helm.sh/helm/v3/pkg/chart/loader"
	helmregistry "helm.sh/helm/v3/pkg/registry"
)

// distribution is the folder that `make dist` filled, and the commit from which it was made.
type distribution struct {
	folder                  string
	version, revision, date string
}

var platforms = []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"}

func requireDist(t *testing.T) distribution {
	t.Helper()
	folder := os.Getenv("DIST")
	if folder == "" {
		t.Skip("DIST names no folder; `make dist-test` builds one and runs this")
	}
	charts, err := filepath.Glob(filepath.Join(folder, "drainer-chart-*.tgz"))
	if err != nil || len(charts) != 1 {
		t.Fatalf("want one chart, which tells the version: %v (%v)", charts, err)
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(charts[0]), "drainer-chart-"), ".tgz")
	commit := exec.Command("git", "log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%H %cd")
	commit.Env = append(os.Environ(), "TZ=UTC")
	head, err := commit.Output()
	if err != nil {
		t.Fatalf("git log -1: %v", err)
	}
	revision, date, _ := strings.Cut(strings.TrimSpace(string(head)), " ")
	return distribution{folder, version, revision, date}
}

// path returns the path of an artefact whose name has the version at %s.
func (d distribution) path(name string) string {
	return filepath.Join(d.folder, fmt.Sprintf(name, d.version))
}

func TestDistNamesEachOfItsFilesWithItsChecksum(t *testing.T) {
	t.Parallel()
	dist := requireDist(t)
	wanted := []string{"drainer-chart-%s.tgz", "drainer_%s_image.tar", "drainer_%s_image_amd64.cdx.json", "drainer_%s_image_arm64.cdx.json"}
	for _, platform := range platforms {
		wanted = append(wanted, "drainer_%s_"+platform+".tar.gz", "drainer_%s_"+platform+".cdx.json")
		if strings.HasPrefix(platform, "linux") {
			wanted = append(wanted, "drainer_%s_"+platform+".deb", "drainer_%s_"+platform+".rpm")
		}
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(readFile(t, filepath.Join(dist.folder, "checksums.txt")))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed[name] = sum
	}
	for _, name := range wanted {
		name = filepath.Base(dist.path(name))
		if sum := fmt.Sprintf("%x", sha256.Sum256(readFile(t, filepath.Join(dist.folder, name)))); listed[name] != sum {
			t.Errorf("%s has the checksum %s, and checksums.txt says %q", name, sum, listed[name])
		}
		delete(listed, name)
	}
	if len(listed) > 0 {
		t.Errorf("checksums.txt also lists %v", slices.Sorted(maps.Keys(listed)))
	}
}

func TestDistsArchivesHoldTheProgramOfTheirPlatformWithPagesAndDocuments(t *testing.T) {
	t.Parallel()
	dist := requireDist(t)
	for _, platform := range platforms {
		files := unpack(t, dist.path("drainer_%s_"+platform+".tar.gz"))
		top := fmt.Sprintf("drainer_%s_%s", dist.version, platform)
		for _, name := range []string{
			"LICENSE", "README.md", "CHANGELOG.md", "drainer.schema.json", "docs/operations.md", "docs/runbooks/DrainerBacklog.md",
			"man/drainer.1", "man/drainer-intents-list.1", "completion/drainer.bash", "completion/_drainer", "completion/drainer.fish",
		} {
			if len(files[path.Join(top, name)]) == 0 {
				t.Errorf("%s has no %s", platform, name)
			}
		}
		built, err := buildinfo.Read(bytes.NewReader(files[path.Join(top, "drainer")]))
		if err != nil {
			t.Errorf("the program in %s: %v", platform, err)
			continue
		}
		settings := map[string]string{}
		for _, setting := range built.Settings {
			settings[setting.Key] = setting.Value
		}
		if target := settings["GOOS"] + "_" + settings["GOARCH"]; target != platform {
			t.Errorf("the program in %s is for %s", platform, target)
		}
		if settings["CGO_ENABLED"] != "0" {
			t.Errorf("the program in %s needs a C library", platform)
		}

		var sbom struct {
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal(readFile(t, dist.path("drainer_%s_"+platform+".cdx.json")), &sbom); err != nil {
			t.Fatal(err)
		}
		told := map[string]string{}
		for _, component := range sbom.Components {
			told[component.Name] = component.Version
		}
		for _, module := range built.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			if told[module.Path] != module.Version {
				t.Errorf("%s holds %s %s, and its SBOM says %q", platform, module.Path, module.Version, told[module.Path])
			}
		}
	}
}

func TestDistsChartIsOfTheSameVersion(t *testing.T) {
	t.Parallel()
	dist := requireDist(t)
	packaged, err := loader.Load(dist.path("drainer-chart-%s.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if err := packaged.Validate(); err != nil {
		t.Error(err)
	}
	if packaged.Metadata.Version != dist.version || packaged.Metadata.AppVersion != dist.version {
		t.Errorf("it is version %s of drainer %s, want %s of both", packaged.Metadata.Version, packaged.Metadata.AppVersion, dist.version)
	}
	source, err := loader.Load("helm/drainer") // Load omits the files that .helmignore names
	if err != nil {
		t.Fatal(err)
	}
	held, wanted := map[string]string{}, map[string]string{}
	for _, file := range packaged.Raw {
		held[file.Name] = string(file.Data)
	}
	for _, file := range source.Raw {
		wanted[file.Name] = string(file.Data)
	}
	delete(held, "Chart.yaml")
	delete(wanted, "Chart.yaml")
	delete(wanted, ".helmignore") // it is of no use in the package
	if !maps.Equal(held, wanted) {
		t.Errorf("it holds %v, want %v with the same contents", slices.Sorted(maps.Keys(held)), slices.Sorted(maps.Keys(wanted)))
	}
}

// The second build is of a clone, in another folder, at another time and with a build cache of its own. With a
// shared cache it would reuse the results of the first build.
func TestDistIsTheSameWhenItIsBuiltAgain(t *testing.T) {
	t.Parallel()
	dist := requireDist(t)
	if changed, err := exec.Command("git", "status", "--porcelain", "..").Output(); err != nil || len(changed) > 0 {
		t.Skipf("this tree has changes that are not committed, and a clone has not: %s (%v)", firstLine(changed), err)
	}
	clone := filepath.Join(t.TempDir(), "another folder")
	for _, command := range [][]string{
		{"git", "clone", "--quiet", "..", clone},
		{"git", "-C", clone, "checkout", "--quiet", "--detach", dist.revision},
		{"sh", "-c", `umask 077 && exec make -C "$1" dist`, "sh", clone},
	} {
		build := exec.Command(command[0], command[1:]...)
		build.Env = append(os.Environ(), "GOCACHE="+filepath.Join(t.TempDir(), "cache"))
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, output)
		}
	}
	first := readFile(t, filepath.Join(dist.folder, "checksums.txt"))
	again := readFile(t, filepath.Join(clone, "dist/checksums.txt"))
	if !bytes.Equal(first, again) {
		t.Errorf("the checksums were\n%sand of the second build they are\n%s", first, again)
	}
}

func TestDistsPackageInstallsAndDrainsByItsUnit(t *testing.T) {
	t.Parallel()
	dist := requireDist(t)
	requireDocker(t)
	image, err := exec.Command("../.ci/postgres-image.sh", "debian").Output()
	if err != nil {
		t.Skipf("no container of Debian can be made here: %v", err)
	}
	machine := start(t, "--env", "POSTGRES_PASSWORD="+postgresPassword, "--env", "POSTGRES_DB=app",
		"--env", "PATH=/usr/lib/postgresql/17/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--volume", dist.folder+":/dist:ro", strings.TrimSpace(string(image)))
	inside := func(args ...string) string {
		t.Helper()
		return docker(t, append([]string{"exec", machine}, args...)...)
	}
	deb := "/dist/" + filepath.Base(dist.path("drainer_%s_linux_"+runtime.GOARCH+".deb"))
	inside("dpkg", "--install", deb)

	var built struct {
		Version, Revision, Date string
		Modified                bool
	}
	if err := json.Unmarshal([]byte(inside("drainer", "version", "-o", "json")), &built); err != nil {
		t.Fatal(err)
	}
	if built.Version != dist.version || built.Revision != dist.revision || built.Date != dist.date {
		t.Errorf("drainer version: %+v, want %+v", built, dist)
	}
	if defined := inside("bash", "-c", ". /usr/share/bash-completion/completions/drainer && complete -p drainer"); !strings.HasSuffix(defined, " drainer") {
		t.Errorf("bash completes drainer by %q", defined)
	}
	inside("test", "-s", "/usr/share/doc/drainer/operations.md")
	day, err := time.Parse(time.RFC3339, dist.date)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"drainer", "drainer-intents-list"} {
		if text := inside("cat", "/usr/share/man/man1/"+page+".1"); !strings.Contains(text, dist.version) || !strings.Contains(text, day.Format("Jan 2006")) {
			t.Errorf("the page %s names neither the version nor the month: %s", page, firstLine([]byte(text)))
		}
	}

	// docs/operations.md has these steps: logins, schema, environment.
	eventually(t, "Postgres listens", func() bool {
		return exec.Command("docker", "exec", machine, "pg_isready", "--quiet", "--host", "localhost").Run() == nil
	})
	owner := "postgres://postgres:" + postgresPassword + "@localhost/app"
	inside("drainer", "migrate", "up", "--database-url", owner)
	inside("psql", "--quiet", "--host", "/tmp", "--username", "postgres", "--dbname", "app", "--command",
		"CREATE ROLE drainer LOGIN PASSWORD '"+postgresPassword+"' IN ROLE outbox_drainer")
	inside("sed", "-i", "s/drainer@/drainer:"+postgresPassword+"@/", "/etc/drainer/environment")

	// An upgrade installs the package again.
	inside("dpkg", "--install", deb)
	if rights := inside("stat", "--format", "%a %U:%G", "/etc/drainer/environment", "/etc/drainer/drainer.yaml"); rights != "600 root:root\n640 root:drainer" {
		t.Errorf("the files in /etc/drainer have %q", rights)
	}

	unit := settingsOf(inside("cat", "/usr/lib/systemd/system/drainer.service"))
	environment := inside("cat", strings.TrimPrefix(unit["EnvironmentFile"], "-"))
	if !strings.Contains(environment, postgresPassword) {
		t.Fatal("an upgrade does not keep the environment as it was written")
	}
	asUnit := []string{"exec", "--user", unit["User"]}
	for name, value := range settingsOf(environment) {
		asUnit = append(asUnit, "--env", name+"="+value)
	}
	daemon := exec.Command("docker", append(asUnit, machine, "sh", "-c", "echo $$ >/tmp/drainer.pid && umask "+unit["UMask"]+" && exec "+unit["ExecStart"]+" >/tmp/drainer.log 2>&1")...)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()

	enqueue := []string{
		"drainer", "enqueue", "--config", "/etc/drainer/drainer.yaml", "--database-url", owner,
		"--run", "run-001", "--tool", "log/note", "--scope", "a", "--payload", "{}", "--step",
	}
	completed := func() int {
		listed := docker(t, append(asUnit, machine, "drainer", "intents", "list", "--config", "/etc/drainer/drainer.yaml", "--status", "completed", "-o", "json")...)
		return strings.Count(listed, `"log/note"`)
	}
	inside(append(enqueue, "1")...)
	eventually(t, "the first intent is completed", func() bool { return completed() == 1 })

	docker(t, append(asUnit, machine, "sh", "-c", "export MAINPID=$(cat /tmp/drainer.pid); "+unit["ExecReload"])...)
	log := func() string { return inside("cat", "/tmp/drainer.log") }
	eventually(t, "the configuration is reloaded", func() bool { return strings.Contains(log(), "configuration reloaded") })
	inside(append(enqueue, "2")...)
	eventually(t, "after that the second intent is completed", func() bool { return completed() == 2 })

	inside("sh", "-c", "kill $(cat /tmp/drainer.pid)")
	select {
	case err = <-ended:
	case <-time.After(time.Minute):
		err = errors.New("it goes on for a minute")
	}
	if err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, log())
	}

	inside("dpkg", "--purge", "drainer")
	if left := inside("sh", "-c", "ls -d /etc/drainer /usr/bin/drainer /usr/share/doc/drainer /usr/share/man/man1/drainer* 2>/dev/null || true"); left != "" {
		t.Errorf("a purge leaves %s", left)
	}
}

// settingsOf reads the lines NAME=VALUE of a unit, or of a file with an environment.
func settingsOf(text string) map[string]string {
	settings := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(name, "#") {
			settings[name] = value
		}
	}
	return settings
}

func unpack(t *testing.T, name string) map[string][]byte {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(readFile(t, name)))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return untar(t, unzipped)
}

// The registry runs in this process.
func TestDistsImageAndChartGoThroughARegistry(t *testing.T) {
	t.Parallel()
	dist := requireDist(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")

	folder := t.TempDir()
	for name, content := range untar(t, bytes.NewReader(readFile(t, dist.path("drainer_%s_image.tar")))) {
		place := filepath.Join(folder, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(place), 0o700), os.WriteFile(place, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 2 {
		t.Fatalf("the index holds %+v (%v), want two images", manifest, err)
	}
	reference, err := name.ParseReference(host + "/owner/drainer:" + dist.version)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(reference, index); err != nil {
		t.Fatal(err)
	}
	for _, architecture := range []string{"amd64", "arm64"} {
		image, err := remote.Image(reference, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != architecture || config.Config.User != "65532:65532" || config.Config.Labels["org.opencontainers.image.revision"] != dist.revision {
			t.Errorf("the image of %s is of %s, user %s, labels %v", architecture, config.Architecture, config.Config.User, config.Config.Labels)
		}
		content := mutate.Extract(image)
		files := untar(t, content)
		_ = content.Close()
		archive := unpack(t, dist.path("drainer_%s_linux_"+architecture+".tar.gz"))
		if program := archive[fmt.Sprintf("drainer_%s_linux_%s/drainer", dist.version, architecture)]; len(program) == 0 || !bytes.Equal(files["drainer"], program) {
			t.Errorf("the image of %s holds another program than its archive", architecture)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"]) {
			t.Errorf("the image of %s trusts no authority", architecture)
		}
		sbom := string(readFile(t, dist.path("drainer_%s_image_"+architecture+".cdx.json")))
		for _, part := range []string{`"type": "container"`, `"ca-certificates.crt"`, `"github.com/jackc/pgx/v5"`} {
			if !strings.Contains(sbom, part) {
				t.Errorf("the SBOM of the image of %s lacks %s", architecture, part)
			}
		}
		if architecture == runtime.GOARCH {
			dist.runImage(t, image)
		}
	}

	client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP(), helmregistry.ClientOptWriter(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	chart, at := readFile(t, dist.path("drainer-chart-%s.tgz")), host+"/owner/charts/drainer:"+strings.ReplaceAll(dist.version, "+", "_")
	if _, err := client.Push(chart, at); err != nil {
		t.Fatal(err)
	}
	pulled, err := client.Pull(at)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(pulled.Chart.Data, chart) {
		t.Error("the chart that was pulled is not the one that was pushed")
	}
}

// runImage runs the pulled image in Docker, if Docker is there.
func (d distribution) runImage(t *testing.T, image v1.Image) {
	t.Helper()
	if exec.Command("docker", "info").Run() != nil {
		t.Log("there is no Docker here: the image is not run")
		return
	}
	tag, err := name.NewTag("drainer-dist-test:" + strings.ToLower(rand.Text()))
	if err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(packed, tag, image); err != nil {
		t.Fatal(err)
	}
	docker(t, "load", "--input", packed)
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "--force", tag.Name()).Run() })
	if printed := docker(t, append(append([]string{"run", "--rm"}, confined...), tag.Name(), "version")...); !strings.Contains(printed, d.version) {
		t.Errorf("version printed %q, want %s", printed, d.version)
	}
}
