package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

// variant is what a build differs in from the program that ships.
type variant struct {
	failpoints bool
	raced      bool
	mutant     string // of Mutants; empty for none
}

var builds sync.Map // variant → func() (path string, err error)

// path builds each variant once in the life of this test binary.
func (v variant) path() (string, error) {
	build, _ := builds.LoadOrStore(v, sync.OnceValues(v.build))
	return build.(func() (string, error))()
}

func (v variant) build() (string, error) {
	folder, err := os.MkdirTemp("", "drainer-program-")
	if err != nil {
		return "", err
	}
	drainertest.AtEnd(func() { os.RemoveAll(folder) })
	path := filepath.Join(folder, "drainer")
	arguments := append([]string{"build", "-ldflags", "-s -w", "-o", path}, coverage()...) // as it is released
	if v.failpoints {
		arguments = append(arguments, "-tags", "failpoints")
	}
	if v.raced {
		arguments = append(arguments, "-race")
	}
	if v.mutant != "" {
		overlay, err := overlayOf(folder, v.mutant)
		if err != nil {
			return "", err
		}
		arguments = append(arguments, "-overlay", overlay)
	}
	build := exec.Command("go", append(arguments, "./cmd/drainer")...)
	build.Dir = root()
	output, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return path, nil
}

// coverage has the program measured like the tests that run it. It reports to
// GOCOVERDIR when it ends, and for that main is measured too.
func coverage() []string {
	if testing.CoverMode() == "" {
		return nil
	}
	return []string{"-covermode=" + testing.CoverMode(), "-coverpkg=./cmd/drainer,./drainer/...,./dispatch/...,./compensations/..."}
}

// root is the module's folder, wherever the test runs.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
