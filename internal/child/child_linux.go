package child

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

func endWithParent(attr *syscall.SysProcAttr, farewell syscall.Signal) { attr.Pdeathsig = farewell }

// awaitExit waits until the process ends, but does not reap it, so that its number stays in use.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
