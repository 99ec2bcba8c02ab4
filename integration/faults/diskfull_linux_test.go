package faults_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/internal/throwaway"
)

// The data and the write-ahead log are on one disk, and other data fills it. Postgres refuses commits or crashes.
// When the disk has room again, the test restarts a crashed server.
func TestAFullDiskStopsSendingUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	server := cluster.Start(t, throwaway.In(disk), throwaway.WithSettings(map[string]string{
		"wal_recycle": "off", "max_wal_size": "32MB", "shared_buffers": "1MB",
	}))
	rig := harness.At(t, server.URL, nil)
	rig.Start()
	rig.Start()
	stop := rig.Agents(everyClass...)
	rig.AwaitMoreEffects(50)

	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	refusals := 0
	drainertest.Eventually(t, "commits fail", func() bool {
		if answer := rig.Step(rig.NewRun(), 1, harness.Keyed); answer != history.Committed {
			refusals++
		}
		fill(t, filler)
		return refusals >= 20
	})
	stop()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if conn, err := pgx.Connect(t.Context(), server.URL); err == nil {
		conn.Close(t.Context())
	} else {
		cluster.Restart(t, server)
	}
	rig.Enqueue(harness.Keyed, 20)
	rig.AwaitRest()
	fault.Injected(t, 30, refusals)
	rig.Check()
	rig.CheckClaimed()
}

// smallDisk returns the path of a small file system in memory.
func smallDisk(t *testing.T) string {
	t.Helper()
	disk, err := os.MkdirTemp("", "drainer-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(disk) })
	if err := syscall.Mount("drainer-test", disk, "tmpfs", 0, "size=200m,mode=0777"); err != nil {
		t.Skip("a disk of its own cannot be mounted here: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// fill writes until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	block := make([]byte, 64<<10)
	for len(block) > 0 {
		_, err := file.Write(block)
		switch {
		case errors.Is(err, syscall.ENOSPC):
			block = block[:len(block)/2]
		case err != nil:
			t.Fatal(err)
		}
	}
}
