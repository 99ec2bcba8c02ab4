package deploy_test

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// confined holds the chart's security context, as options of Docker.
var confined = []string{"--read-only", "--user", "65532", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"}

func TestTheImageHoldsTheProgramAndWhatItNeeds(t *testing.T) {
	t.Parallel()
	requireDocker(t)
	image := buildImage(t)

	if printed := docker(t, append(append([]string{"run", "--rm"}, confined...), image, "version")...); !strings.Contains(printed, "test") {
		t.Errorf("version printed %q", printed)
	}
	var described []struct {
		Config struct {
			User   string
			Labels map[string]string
		}
	}
	if err := json.Unmarshal([]byte(docker(t, "image", "inspect", image)), &described); err != nil {
		t.Fatal(err)
	}
	if user := described[0].Config.User; user != "65532:65532" {
		t.Errorf("it runs as %q; Kubernetes wants a number that is not 0", user)
	}
	if label := described[0].Config.Labels["org.opencontainers.image.version"]; label != "test" {
		t.Errorf("its version label is %q", label)
	}

	files := filesOf(t, image)
	for _, shell := range []string{"bin/sh", "bin/bash", "bin/busybox", "usr/bin/sh"} {
		if _, there := files[shell]; there {
			t.Errorf("it has a shell: %s", shell)
		}
	}
	if !x509.NewCertPool().AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"]) {
		t.Error("it trusts no authority, so no provider")
	}
}

// The README's promises for a daemon also hold for a daemon in a container.
func TestADaemonWithoutAnyRightsDrainsAndLeavesInPeace(t *testing.T) {
	t.Parallel()
	requireDocker(t)
	postgres, image, network := postgresImage(t), buildImage(t), newNetwork(t)
	start(t, "--network", network, "--network-alias", "postgres", "--env", "POSTGRES_PASSWORD="+postgresPassword, postgres)
	start(t, append(append([]string{"--network", network, "--network-alias", "provider"}, confined...),
		image, "demo", "provider", "--listen", ":8080")...)
	drainer := func(args ...string) ([]byte, error) {
		once := append([]string{"run", "--rm", "--network", network, "--env", "DATABASE_URL=" + databaseURL}, confined...)
		return exec.Command("docker", append(append(once, image), args...)...).Output()
	}
	eventually(t, "Postgres takes the migration", func() bool {
		_, err := drainer("migrate", "up")
		return err == nil
	})
	if _, err := drainer("enqueue", "--run", "r", "--step", "s", "--tool", "payments/charge", "--scope", "i", "--payload", `{"amount": 1}`); err != nil {
		t.Fatalf("enqueue: %v", err)
	}

	folder, err := filepath.Abs("compose/drainer")
	if err != nil {
		t.Fatal(err)
	}
	daemon := start(t, append(append([]string{
		"--network", network, "--env", "DATABASE_URL=" + databaseURL,
		"--volume", folder + ":/etc/drainer:ro", "--publish", "127.0.0.1::9464",
	}, confined...), image)...)
	address := docker(t, "port", daemon, "9464/tcp")
	eventually(t, "/readyz answers 200", func() bool {
		reply, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		reply.Body.Close()
		return reply.StatusCode == http.StatusOK
	})
	eventually(t, "the intent is completed", func() bool {
		listed, err := drainer("intents", "list", "--status", "completed", "-o", "json")
		return err == nil && bytes.Contains(listed, []byte("payments/charge"))
	})

	docker(t, "stop", "--time", "40", daemon)
	if code := docker(t, "inspect", "--format", "{{.State.ExitCode}}", daemon); code != "0" {
		t.Errorf("after SIGTERM it exits with %s, want 0", code)
	}
}

// filesOf returns the files of an image, as a container sees them.
func filesOf(t *testing.T, image string) map[string][]byte {
	t.Helper()
	container := docker(t, "create", image)
	defer docker(t, "rm", container)
	exported, err := exec.Command("docker", "export", container).Output()
	if err != nil {
		t.Fatal(err)
	}
	return untar(t, bytes.NewReader(exported))
}

func untar(t *testing.T, from io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(from); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	postgresPassword = "secret-of-this-test"
	databaseURL      = "postgres://postgres:" + postgresPassword + "@postgres:5432/postgres?sslmode=disable"
)

// docker runs Docker's command line and returns what it printed.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	output, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return strings.TrimSpace(string(output))
}

func requireDocker(t *testing.T) {
	t.Helper()
	if output, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		t.Skipf("no Docker here, so no image is built: %s", firstLine(output))
	}
}

// postgresImage returns an image that is on this machine already. Nothing is pulled.
func postgresImage(t *testing.T) string {
	t.Helper()
	candidates := []string{os.Getenv("TEST_POSTGRES_IMAGE"), "postgres:17-alpine", "drainer-postgres:17"}
	for _, image := range candidates {
		if image != "" && exec.Command("docker", "image", "inspect", image).Run() == nil {
			return image
		}
	}
	t.Skip("Docker has no image of Postgres; .ci/postgres-image.sh makes one")
	return ""
}

// image builds the image once, as a person would, under a name of its own.
var image = sync.OnceValues(func() (string, error) {
	name := "drainer:test-" + strings.ToLower(rand.Text())
	output, err := exec.Command("make", "-C", "..", "image", "IMAGE="+name, "VERSION=test").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make image: %w\n%s", err, output)
	}
	built = name
	return name, nil
})

var built string // the image's name, once there is one

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = exec.Command("docker", "rmi", "--force", built).Run()
	}
	os.Exit(code)
}

func buildImage(t *testing.T) string {
	t.Helper()
	name, err := image()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func newNetwork(t *testing.T) string {
	t.Helper()
	network := "drainer-test-" + strings.ToLower(rand.Text())
	docker(t, "network", "create", network)
	t.Cleanup(func() { docker(t, "network", "rm", network) })
	return network
}

// start runs a container until the test ends, and returns its id.
func start(t *testing.T, args ...string) string {
	t.Helper()
	id := docker(t, append([]string{"run", "--detach"}, args...)...)
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := exec.Command("docker", "logs", "--tail", "30", id).CombinedOutput()
			t.Logf("docker logs of %v:\n%s", args, logs)
		}
		docker(t, "rm", "--force", "--volumes", id)
	})
	return id
}

// eventually calls holds until it returns true. The other side is another process, which cannot notify the test.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		case <-poll.C:
		}
	}
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}
