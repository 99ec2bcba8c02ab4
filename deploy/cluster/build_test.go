package cluster_test

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

const (
	// This is the newest version that starts on cgroup v1 and with containerd 1.6.
	kubernetesVersion = "1.34.4"
	helmVersion       = "v3.22.0"

	image       = "drainer-cluster/drainer:test"
	nextImage   = "drainer-cluster/drainer:next" // the same program, as another version
	counterpart = "drainer-cluster/counterpart:test"
	entrypoint  = `ENTRYPOINT ["/counterpart"]`
)

//go:embed components.go.txt
var components []byte

// toolsFolder returns the folder of the built programs, kubeone and helm. They are built once for each version,
// outside the repository.
func toolsFolder() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "drainer-cluster", fmt.Sprintf("kubernetes-%s-helm-%s-%x", kubernetesVersion, helmVersion, sha256.Sum256(components))[:64]), nil
}

// missing returns the reason why no cluster can run here, or an empty text.
func missing() string {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return "a cluster of network namespaces needs Linux and root"
	}
	for _, program := range []string{"containerd", "ctr", "runc", "etcd", "iptables", "conntrack", "ip", "nsenter", "unshare", "docker", "make", "/usr/lib/cni/bridge"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is not installed; CONTRIBUTING.md lists what the cluster needs"
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory/cgroup.procs"); err != nil {
		return "there is no cgroup v1 here, which these nodes are set up for"
	}
	if err := exec.Command("docker", "info").Run(); err != nil {
		return "Docker does not run here, so no image is built"
	}
	folder, err := toolsFolder()
	if err != nil {
		return err.Error()
	}
	if _, err := os.Stat(filepath.Join(folder, "helm")); err != nil && os.Getenv("CLUSTER") != "1" {
		return "Kubernetes was not built here yet, which takes long: CLUSTER=1 builds it"
	}
	return ""
}

// buildTools returns the folder of kubeone and helm, and builds them if they are not there.
func buildTools(ctx context.Context) (string, error) {
	folder, err := toolsFolder()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(folder, "helm")); err == nil {
		return folder, nil
	}
	if err := buildKubernetes(ctx, folder); err != nil {
		return "", fmt.Errorf("building Kubernetes: %w", err)
	}
	build := exec.CommandContext(ctx, "nice", "-n", "5", "go", "install", "helm.sh/helm/v3/cmd/helm@"+helmVersion)
	build.Env = append(os.Environ(), "GOBIN="+folder, "CGO_ENABLED=0", "GOFLAGS=-ldflags=-s")
	if _, err := run(build); err != nil {
		return "", fmt.Errorf("building Helm: %w", err)
	}
	return folder, nil
}

// buildKubernetes builds the components in a module with the same requirements as Kubernetes' own. Its local
// replacements are taken from the module proxy.
func buildKubernetes(ctx context.Context, folder string) error {
	module := filepath.Join(folder, "module")
	if err := os.MkdirAll(module, 0o755); err != nil {
		return err
	}
	goIn := func(args ...string) ([]byte, error) {
		command := exec.CommandContext(ctx, "nice", append([]string{"-n", "5", "go"}, args...)...)
		command.Dir, command.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off")
		return run(command)
	}
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte("module kubeone\n"), 0o644); err != nil {
		return err
	}
	answer, err := goIn("mod", "download", "-json", "k8s.io/kubernetes@v"+kubernetesVersion)
	if err != nil {
		return err
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(answer, &downloaded); err != nil {
		return err
	}
	requirements, err := os.ReadFile(filepath.Join(downloaded.Dir, "go.mod"))
	if err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(downloaded.Dir, "go.sum"))
	if err != nil {
		return err
	}
	minor := strings.TrimPrefix(kubernetesVersion, "1.")
	requirements = regexp.MustCompile(`(?m)^module .*`).ReplaceAll(requirements, []byte("module kubeone"))
	requirements = regexp.MustCompile(`=> \./staging/src/(k8s\.io/[a-z-]+)`).ReplaceAll(requirements, []byte("=> $1 v0."+minor))
	for name, content := range map[string][]byte{"go.mod": requirements, "go.sum": sums, "main.go": components} {
		if err := os.WriteFile(filepath.Join(module, name), content, 0o644); err != nil {
			return err
		}
	}
	flags := "-s -w"
	major, rest, _ := strings.Cut(kubernetesVersion, ".")
	minor, _, _ = strings.Cut(rest, ".")
	for _, where := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for name, value := range map[string]string{
			"gitVersion": "v" + kubernetesVersion, "gitMajor": major, "gitMinor": minor,
			"gitTreeState": "clean", "gitCommit": "0000000", "buildDate": "2026-01-01T00:00:00Z",
		} {
			flags += fmt.Sprintf(" -X %s.%s=%s", where, name, value)
		}
	}
	for _, step := range [][]string{
		{"mod", "edit", "-require", "k8s.io/kubernetes@v" + kubernetesVersion},
		{"mod", "tidy", "-e"},
		{"build", "-ldflags", flags, "-o", filepath.Join(folder, "kubeone"), "."},
	} {
		if _, err := goIn(step...); err != nil {
			return err
		}
	}
	return nil
}

// buildImages builds all images and returns the name of Postgres' image. The names of the others are constants.
func buildImages(ctx context.Context, folder string) (postgres string, err error) {
	for _, name := range []string{image, nextImage} {
		if _, err := run(exec.CommandContext(ctx, "make", "-C", "../..", "image", "IMAGE="+name, "VERSION=0.0.0-"+name[strings.Index(name, ":")+1:])); err != nil {
			return "", err
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(folder, "counterpart"), "./counterpart")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if _, err := run(build); err != nil {
		return "", err
	}
	if _, err := run(exec.CommandContext(ctx, "sh", "-c", `tar -C "$0" -c counterpart | docker import -c "$1" - "$2"`, folder, entrypoint, counterpart)); err != nil {
		return "", err
	}
	name, err := run(exec.CommandContext(ctx, "../../.ci/postgres-image.sh", "debian"))
	return strings.TrimSpace(string(name)), err
}

// run returns the output of a command. An error also has the end of its stderr.
func run(command *exec.Cmd) ([]byte, error) {
	var complaints strings.Builder
	if command.Stderr == nil {
		command.Stderr = &complaints
	}
	output, err := command.Output()
	if err != nil {
		return output, fmt.Errorf("%s: %w\n%s%s", strings.Join(command.Args, " "), err, tail(string(output)), tail(complaints.String()))
	}
	return output, nil
}

func tail(text string) string { return text[max(0, len(text)-4000):] }

func removeImages() error {
	_, err := run(exec.Command("docker", "image", "rm", "--force", image, nextImage, counterpart))
	return err
}
