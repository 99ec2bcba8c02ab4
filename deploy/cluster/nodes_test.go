package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// All parts of the cluster have these names. By them the next run finds the rest of an interrupted run. The
// addresses exist only in the two network namespaces of the cluster, which have no connection to the outside.
const (
	home     = "/var/lib/drainer-cluster"
	network  = "drainer-cluster-n" // the prefix of namespaces and cgroups, before a number
	services = "10.96.0.0/16"
	apiIP    = "172.30.0.1"
	nodeIP   = "172.30.0.1%d"
	podRange = "10.244.%d.0/24"
)

var nodes = []int{1, 2}

// kubelets change these for the whole machine.
var tunables = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// machine is the running cluster. Every process of it is in one of the two network namespaces or in a pod's cgroup.
// All its mounts are in one mount namespace, which ends with the last process.
type machine struct {
	tools  string
	mounts string // the mount namespace, as a file
}

// takeLock keeps other runs away until this process ends, also those of another version of Kubernetes.
func takeLock(folder string) (*os.File, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(errors.New("another run has the cluster"), lock.Close())
	}
	return lock, nil
}

func inNetwork(node int) string { return network + strconv.Itoa(node) }

// startMachine starts control plane and nodes, without waiting for the nodes.
func startMachine(ctx context.Context, tools, postgres string) (*machine, error) {
	m := &machine{tools: tools}
	if err := sweep(); err != nil {
		return nil, fmt.Errorf("clearing what an earlier run left: %w", err)
	}
	for _, step := range []func() error{
		m.keepTunables, m.link, m.hold, func() error { return writeCertificates(filepath.Join(home, "pki")) },
		func() error { return m.controlPlane(ctx) },
		func() error { return m.node(ctx, 1, counterpart, image, nextImage, postgres) },
		func() error { return m.node(ctx, 2, counterpart, image, nextImage) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *machine) keepTunables() error {
	for _, name := range tunables {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return err
		}
		file := filepath.Join(home, "sysctl", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, value, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// link connects the nodes and gives each the route to the other's pods.
func (m *machine) link() error {
	commands := []string{
		"ip netns add " + inNetwork(1), "ip netns add " + inNetwork(2),
		"ip link add dc1 netns " + inNetwork(1) + " type veth peer name dc2 netns " + inNetwork(2),
		fmt.Sprintf("ip -n %s addr add %s/24 dev dc1", inNetwork(1), apiIP),
	}
	for _, node := range nodes {
		other := 3 - node
		name := inNetwork(node)
		commands = append(commands,
			fmt.Sprintf("ip -n %s link set lo up", name),
			fmt.Sprintf("ip -n %s addr add "+nodeIP+"/24 dev dc%d", name, node, node),
			fmt.Sprintf("ip -n %s link set dc%d up", name, node),
			fmt.Sprintf("nsenter --net=/run/netns/%s sysctl -qw net.ipv4.ip_forward=1", name),
			fmt.Sprintf("ip -n %s route add "+podRange+" via "+nodeIP, name, other, other),
			// A packet to a service needs a route before kube-proxy rewrites its address.
			fmt.Sprintf("ip -n %s route add default dev dc%d", name, node))
	}
	for _, command := range commands {
		words := strings.Fields(command)
		if _, err := run(exec.Command(words[0], words[1:]...)); err != nil {
			return err
		}
	}
	return nil
}

// hold starts the process that owns the mount namespace.
func (m *machine) hold() error {
	holder := exec.Command("nsenter", "--net=/run/netns/"+inNetwork(1), "unshare", "--mount", "--propagation", "private", "sh", "-c", "echo && exec sleep infinity")
	output, err := holder.StdoutPipe()
	if err != nil {
		return err
	}
	if err := holder.Start(); err != nil {
		return err
	}
	go func() { _ = holder.Wait() }()
	m.mounts = fmt.Sprintf("/proc/%d/ns/mnt", holder.Process.Pid)
	_, err = output.Read(make([]byte, 1)) // it has unshared by now
	return err
}

// inside returns a command that runs on a node.
func (m *machine) inside(ctx context.Context, node int, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + inNetwork(node), "--mount=" + m.mounts, "nice", "-n", "5"}, args...)...)
	command.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(home, "pki", "admin.kubeconfig"), "HOME="+home)
	return command
}

// start runs a program until the cluster stops. A signal to the tests does not reach it.
func (m *machine) start(node int, log string, args ...string) error {
	file, err := os.Create(filepath.Join(home, log+".log"))
	if err != nil {
		return err
	}
	defer file.Close()
	command := m.inside(context.Background(), node, args...)
	command.Stdout, command.Stderr = file, file
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return err
	}
	go func() { _ = command.Wait() }()
	return nil
}

func (m *machine) kube(component string, args ...string) []string {
	return append([]string{filepath.Join(m.tools, "kubeone"), component}, args...)
}

func pki(name string) string { return filepath.Join(home, "pki", name) }

func (m *machine) controlPlane(ctx context.Context) error {
	if err := m.start(1, "etcd", "etcd", "--data-dir", filepath.Join(home, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380"); err != nil {
		return err
	}
	if err := m.start(1, "apiserver", m.kube("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range="+services,
		"--advertise-address="+apiIP, "--bind-address=0.0.0.0", "--secure-port=6443", "--client-ca-file="+pki("ca.crt"),
		"--tls-cert-file="+pki("apiserver.crt"), "--tls-private-key-file="+pki("apiserver.key"),
		"--kubelet-client-certificate="+pki("admin.crt"), "--kubelet-client-key="+pki("admin.key"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+pki("accounts.crt"),
		"--service-account-signing-key-file="+pki("accounts.key"), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged")...); err != nil {
		return err
	}
	if err := poll(ctx, 3*time.Minute, "the API server is ready", func() error {
		_, err := run(m.inside(ctx, 1, m.kube("kubectl", "get", "--raw", "/readyz")...))
		return err
	}); err != nil {
		return err
	}
	config := func(name string) []string {
		file := pki(name + ".kubeconfig")
		return []string{"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file, "--leader-elect=false"}
	}
	return errors.Join(
		m.start(1, "controllers", m.kube("kube-controller-manager", append(config("controllers"), "--use-service-account-credentials",
			"--service-account-private-key-file="+pki("accounts.key"), "--root-ca-file="+pki("ca.crt"),
			// A node that dies is noticed within seconds.
			"--node-monitor-grace-period=16s", "--node-monitor-period=2s")...)...),
		m.start(1, "scheduler", m.kube("kube-scheduler", config("scheduler")...)...))
}

const cniConfig = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
"ipam":{"type":"host-local","dataDir":"%[1]s/ipam","ranges":[[{"subnet":"10.244.%[2]d.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
{"type":"portmap","capabilities":{"portMappings":true}}]}`

const containerdConfig = `version = 2
root = "%[1]s/containerd"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs","io.containerd.snapshotter.v1.zfs","io.containerd.snapshotter.v1.devmapper","io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "%[1]s/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/` + counterpart + `"
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %[3]s/ca.crt}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /%[4]s
containerRuntimeEndpoint: unix://%[1]s/containerd.sock
failSwapOn: false
failCgroupV1: false
enforceNodeAllocatable: []
tlsCertFile: %[3]s/n%[2]d.crt
tlsPrivateKeyFile: %[3]s/n%[2]d.key
resolvConf: ""
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, imagefs.available: 1%%, nodefs.inodesFree: 1%%}
address: 172.30.0.1%[2]d
healthzPort: 0
podLogsDir: %[1]s/podlogs
nodeStatusUpdateFrequency: 4s
syncFrequency: 5s
configMapAndSecretChangeDetectionStrategy: Watch
`

// node starts containerd, kubelet and kube-proxy.
func (m *machine) node(ctx context.Context, node int, images ...string) error {
	folder, name := filepath.Join(home, fmt.Sprintf("n%d", node)), fmt.Sprintf("n%d", node)
	for file, content := range map[string]string{
		"cni/10-pods.conflist": fmt.Sprintf(cniConfig, folder, node),
		"containerd.toml":      fmt.Sprintf(containerdConfig, folder),
		"kubelet.yaml":         fmt.Sprintf(kubeletConfig, folder, node, filepath.Join(home, "pki"), inNetwork(node)),
	} {
		file = filepath.Join(folder, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
			return err
		}
	}
	if err := makeCgroups(inNetwork(node)); err != nil {
		return err
	}
	if err := m.start(node, name+"-containerd", "containerd", "--config", filepath.Join(folder, "containerd.toml")); err != nil {
		return err
	}
	ctr := []string{"ctr", "--address", filepath.Join(folder, "containerd.sock"), "--namespace", "k8s.io"}
	if err := poll(ctx, time.Minute, "containerd answers", func() error {
		_, err := run(m.inside(ctx, node, append(ctr, "version")...))
		return err
	}); err != nil {
		return err
	}
	save := exec.CommandContext(ctx, "docker", append([]string{"save"}, images...)...)
	load := m.inside(ctx, node, append(ctr, "images", "import", "-")...)
	var err error
	if load.Stdin, err = save.StdoutPipe(); err != nil {
		return err
	}
	if err := save.Start(); err != nil {
		return err
	}
	if _, err := run(load); err != nil {
		return errors.Join(err, save.Process.Kill(), save.Wait())
	}
	if err := save.Wait(); err != nil {
		return fmt.Errorf("docker save: %w", err)
	}
	return errors.Join(
		m.start(node, name+"-kubelet", m.kube("kubelet", "--config="+filepath.Join(folder, "kubelet.yaml"), "--kubeconfig="+pki(name+".kubeconfig"),
			"--hostname-override="+name, fmt.Sprintf("--node-ip="+nodeIP, node), "--root-dir="+filepath.Join(folder, "kubelet"))...),
		m.start(node, name+"-proxy", m.kube("kube-proxy", "--kubeconfig="+pki("proxy.kubeconfig"), "--hostname-override="+name,
			"--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0")...))
}

func cgroupRoots() []string {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs") // the pattern is well-formed
	for i, root := range roots {
		roots[i] = filepath.Dir(root)
	}
	return roots
}

func makeCgroups(name string) error {
	for _, root := range cgroupRoots() {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile("/sys/fs/cgroup/cpuset/" + file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join("/sys/fs/cgroup/cpuset", name, file), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sweep kills every process of the cluster by its number, and removes namespaces, cgroups and files. Mounts and
// rules of iptables disappear with their namespaces.
func sweep() error {
	deadline := time.Now().Add(time.Minute)
	for pids := processes(); len(pids) > 0; pids = processes() {
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", pids)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
		}
		<-time.After(50 * time.Millisecond)
	}
	var failures []error
	for _, node := range nodes {
		if _, err := os.Stat("/run/netns/" + inNetwork(node)); err == nil {
			_, err = run(exec.Command("ip", "netns", "delete", inNetwork(node)))
			failures = append(failures, err)
		}
		for _, root := range cgroupRoots() {
			failures = append(failures, removeCgroups(filepath.Join(root, inNetwork(node))))
		}
	}
	for _, name := range tunables {
		if value, err := os.ReadFile(filepath.Join(home, "sysctl", name)); err == nil {
			failures = append(failures, os.WriteFile("/proc/sys/"+name, value, 0o644))
		}
	}
	return errors.Join(append(failures, os.RemoveAll(home))...)
}

func removeCgroups(folder string) error {
	var folders []string
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, each := range slices.Backward(folders) {
		if err := syscall.Rmdir(each); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing %s: %w", each, err)
		}
	}
	return nil
}

// processes returns the processes in the cluster's network namespaces and cgroups.
func processes() (pids []int) {
	var lists []string
	for _, node := range nodes {
		if output, err := exec.Command("ip", "netns", "pids", inNetwork(node)).Output(); err == nil {
			lists = append(lists, string(output))
		}
		for _, root := range cgroupRoots() {
			_ = filepath.WalkDir(filepath.Join(root, inNetwork(node)), func(path string, entry fs.DirEntry, err error) error {
				if err == nil && entry.Name() == "cgroup.procs" {
					content, _ := os.ReadFile(path) // the cgroup may be gone
					lists = append(lists, string(content))
				}
				return nil
			})
		}
	}
	for _, word := range strings.Fields(strings.Join(lists, "\n")) {
		if pid, err := strconv.Atoi(word); err == nil && !slices.Contains(pids, pid) && !isZombie(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isZombie(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	at := bytes.LastIndexByte(status, ')')
	return err != nil || at < 0 || bytes.HasPrefix(status[at+1:], []byte(" Z"))
}
