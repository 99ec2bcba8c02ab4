package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// atOnce is the largest number of requests in flight: the provider's concurrency.
const atOnce = 16

func TestPodsThatAreReplacedUnderLoadLoseAndDoubleNothing(t *testing.T) {
	r := newRelease(t, "replaced")
	r.upgrade()
	r.startLoad()
	r.underLoad(50)

	r.kubectl("rollout", "restart", "deployment/drainer")
	r.kubectl("rollout", "status", "deployment/drainer", "--timeout=120s")
	r.underLoad(50)

	r.kubectl("delete", "pod", r.pods()[0])
	r.kubectl("rollout", "status", "deployment/drainer", "--timeout=120s")
	r.underLoad(50)

	r.audit(0)
}

func TestAPodThatIsKilledUnderLoadLosesAndDoublesNothing(t *testing.T) {
	r := newRelease(t, "killed")
	r.upgrade()
	r.startLoad()
	for _, pod := range r.pods() {
		r.underLoad(50)
		r.kill(pod)
		r.kubectl("rollout", "status", "deployment/drainer", "--timeout=120s")
	}
	r.underLoad(50)
	if restarted := r.restarts(); restarted < 2 {
		t.Errorf("%d containers were restarted, want 2", restarted)
	}
	r.audit(2 * atOnce)
	if lost := count(t, r.database, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'lost'`); lost == 0 {
		t.Error("nothing was in flight when they were killed, so this has shown nothing")
	}
}

// kill sends SIGKILL to the daemon of a pod, which cannot clean up, and waits until the kubelet has noticed it.
func (r *release) kill(pod string) {
	r.t.Helper()
	cgroup := r.cgroup(pod)
	content, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, word := range strings.Fields(string(content)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			r.t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			r.t.Fatal(err)
		}
	}
	eventually(r.t, "the kubelet has seen it", func() error {
		now := r.kubectl("get", "pod", pod, "--output", "jsonpath={.status.containerStatuses[0].containerID}")
		if strings.HasSuffix(now, filepath.Base(cgroup)) {
			return fmt.Errorf("the container is still %s", now)
		}
		return nil
	})
}

// cgroup returns the cgroup that counts the memory of a pod's daemon.
func (r *release) cgroup(pod string) string {
	r.t.Helper()
	found := strings.Fields(r.kubectl("get", "pod", pod, "--output", "jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID}"))
	folders, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/memory/%s*/kubepods/*/pod%s/%s", network, found[0], strings.TrimPrefix(found[1], "containerd://")))
	if err != nil || len(folders) != 1 {
		r.t.Fatalf("the cgroup of %s: found %v, %v", pod, folders, err)
	}
	return folders[0]
}

func (r *release) restarts() (number int) {
	r.t.Helper()
	for _, word := range strings.Fields(r.kubectl("get", "pods", "--selector", daemons, "--output", "jsonpath={.items[*].status.containerStatuses[0].restartCount}")) {
		count, err := strconv.Atoi(word)
		if err != nil {
			r.t.Fatal(err)
		}
		number += count
	}
	return number
}
