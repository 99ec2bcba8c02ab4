package sidecar

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// checkSocket checks a new connection before anything is written to it. The user that owns the socket must also
// listen on it, and no other user may be able to replace the socket. If the configuration names the owner, user is
// that owner. Otherwise the socket must belong to root, to this process's user, or to the owner of its folder.
func checkSocket(conn net.Conn, path string, user *int) error {
	listener, err := listenerOf(conn)
	if err != nil {
		return fmt.Errorf("%w: asking for the listener's user: %w", evidence.ErrUntrustedSocket, err)
	}
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("%w: %w", evidence.ErrUntrustedSocket, err)
	}
	socket, err := look(path)
	if err != nil {
		return err
	}
	folder, err := look(filepath.Dir(path))
	if err != nil {
		return err
	}
	switch {
	case socket.mode&fs.ModeSocket == 0:
		return fmt.Errorf("%w: it is no socket", evidence.ErrUntrustedSocket)
	case user != nil && socket.owner != *user:
		return fmt.Errorf("%w: it belongs to user %d, and sidecar.user says %d", evidence.ErrUntrustedSocket, socket.owner, *user)
	case user == nil && !socket.ownedBy(0, os.Geteuid(), folder.owner):
		return fmt.Errorf("%w: it belongs to user %d; if that is the sidecar's, set sidecar.user", evidence.ErrUntrustedSocket, socket.owner)
	case listener != socket.owner:
		return fmt.Errorf("%w: user %d listens on it, and it belongs to user %d", evidence.ErrUntrustedSocket, listener, socket.owner)
	}
	return checkFolders(filepath.Dir(path), socket.owner)
}

// checkFolders checks all folders up to the root: a user who may replace a folder may replace everything in it.
func checkFolders(path string, owner int) error {
	for last := true; ; last = false {
		folder, err := look(path)
		if err != nil {
			return err
		}
		if !folder.ownedBy(0, os.Geteuid(), owner) {
			return fmt.Errorf("%w: a folder on its path belongs to user %d", evidence.ErrUntrustedSocket, folder.owner)
		}
		parent := filepath.Dir(path)
		if folder.mode&0o022 != 0 && folder.mode&fs.ModeSticky == 0 {
			private, err := isPrivateVolume(path, parent, folder)
			if err != nil || !private || !last {
				return fmt.Errorf("%w: others may write to a folder on its path", evidence.ErrUntrustedSocket)
			}
		}
		if parent == path {
			return nil
		}
		path = parent
	}
}

// isPrivateVolume reports whether the folder is a mount that holds a single socket. Kubernetes lets all users write
// to an emptyDir. Other pods cannot, since they do not mount it. A second socket shows that another sidecar mounts
// it.
func isPrivateVolume(path, parent string, folder entry) (bool, error) {
	above, err := look(parent)
	if err != nil || above.device == folder.device {
		return false, err
	}
	opened, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = opened.Close() }()
	entries, err := opened.ReadDir(100)
	if err != nil || len(entries) == 100 {
		return false, err
	}
	sockets := 0
	for _, entry := range entries {
		if entry.Type()&fs.ModeSocket != 0 {
			sockets++
		}
	}
	return sockets == 1, nil
}

// entry holds the facts about a file that decide which users could replace it.
type entry struct {
	mode   fs.FileMode
	owner  int
	device uint64
}

func (e entry) ownedBy(users ...int) bool {
	for _, user := range users {
		if e.owner == user {
			return true
		}
	}
	return false
}

func look(path string) (entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return entry{}, fmt.Errorf("%w: %w", evidence.ErrUntrustedSocket, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return entry{}, fmt.Errorf("%w: its owner cannot be found", evidence.ErrUntrustedSocket)
	}
	return entry{mode: info.Mode(), owner: int(stat.Uid), device: uint64(stat.Dev)}, nil //nolint:unconvert // 32 bits on some machines
}

// listenerOf returns the user of the process that listens at the other end.
func listenerOf(conn net.Conn) (user int, err error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *syscall.Ucred
	asking := raw.Control(func(descriptor uintptr) {
		credentials, err = syscall.GetsockoptUcred(int(descriptor), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if asking != nil {
		return 0, asking
	}
	if err != nil {
		return 0, err
	}
	return int(credentials.Uid), nil
}
