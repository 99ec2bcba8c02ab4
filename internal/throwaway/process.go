package throwaway

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

const logTail = 4 << 10

// command is one of Postgres's programs, run as the server's owner.
func (s *Server) command(ctx context.Context, program string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.binaries, program), arguments...)
	cmd.Dir = s.dir
	cmd.Env = slices.Concat(os.Environ(), []string{"LC_ALL=C"}, s.environment)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner, Setpgid: true} // Ctrl-C is for the parent
	cmd.Stdout, cmd.Stderr = s.log, s.log
	return cmd
}

// said is the end of what the server wrote to its log.
func (s *Server) said() string {
	said, err := os.ReadFile(s.log.Name())
	if err != nil {
		return ""
	}
	return string(said[max(0, len(said)-logTail):])
}

// owner is who the server runs as: nil for the user of this process, except
// for root, as whom Postgres refuses to run.
func owner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(account.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(account.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("postgres refuses to run as root, and there is neither a user postgres nor a user nobody; run as another user")
}
