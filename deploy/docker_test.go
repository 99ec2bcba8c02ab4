package deploy_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

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

// postgresImage is one that is here already: nothing is pulled.
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

// image is built once, as a person does, under a name of its own.
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

// eventually asks until the answer is yes. The other side is another process,
// which has no way to tell.
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
